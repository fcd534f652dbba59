"""One RL run on one process: what the trainer, the rollouts and the evaluation share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic.data_analysis_env import task_tools
from agentic.model.chat import Renderer
from agentic.rollout import RolloutLimits
from agentic.sandbox import Sandbox
from agentic.train.checkpoints import read_seal
from agentic.train.export import export
from agentic.train.launch import say
from agentic.train.rl_data import Share, Stopwatch, build, observe, sample_rows
from agentic.train.rl_interrupt import Interrupted, RolloutLoop
from agentic.train.rl_rollouts import Collected, Collector, Plan
from agentic.train.rl_setup import Setup
from agentic.train.rl_tasks import Expert, Order, Source
from agentic.train.schedule import gamma as gamma_schedule
from agentic.train.signals import stop_on_signal
from agentic.train.sums import Sums

if TYPE_CHECKING:
    from agentic.train.rl_trainer import RLTrainer

INTERRUPTED = 130


class Job:
    """One training run on this process."""

    def __init__(
        self,
        setup: Setup,
        args: Any,
        renderer: Renderer,
        facts: dict[str, Any],
        checkpoint: Path | None,
        sources: list[Source],
        dev: list[Source],
    ) -> None:
        config = setup.options
        self.setup, self.config, self.args, self.renderer, self.facts = setup, config, args, renderer, facts
        self.checkpoint, self.sources, self.dev = checkpoint, sources, dev
        each = config.batch_size * config.accumulation_steps
        self.share = Share(args.process_index, args.world_size, each * args.world_size)
        self.order = Order(len(sources), config.seed)
        self.expert = Expert(sources, renderer, config.max_length)
        self.sandbox = Sandbox()
        self.loop = RolloutLoop()
        self.watch = Stopwatch()
        self.trainer: RLTrainer
        self.collected: Collected | None = None

    # ------------------------------------------------------------------------------------------ schedule

    def gamma(self, step: int) -> float:
        """Weight of the SFT term at an optimizer step."""
        config, total = self.config, self.args.max_steps
        if config.strategy in ("sft", "rl"):
            return float(config.strategy == "sft")
        progress = self.trainer.progress_at(step)
        if config.strategy == "sft-then-rl":
            return float(progress < config.sft_share)
        by_clock = round(progress * total) if self.trainer.max_s else 0
        return gamma_schedule(max(step, by_clock), total, config.gamma_schedule, config.gamma_start, config.gamma_end)

    def sft_rate(self, step: int) -> float:
        """Factor of the learning rate in steps that are SFT alone."""
        rate = self.config.sft_learning_rate
        return rate / self.config.learning_rate if rate is not None and self.gamma(step) == 1.0 else 1.0

    # ---------------------------------------------------------------------------------------------- data

    def prepare(self, step: int) -> Any:
        """The data of a step on this process; its rollouts come from the weights as they are now."""
        from accelerate.utils import gather_object

        from agentic.train.rl_trainer import StepData

        if self.progress.stop_requested and self.share.world == 1:  # while nothing could be given up: an evaluation
            raise Interrupted
        config, gamma, sums = self.config, self.gamma(step), Sums()
        turn = step // config.num_iterations
        self.collected = None
        if gamma < 1:
            self.sync(step)
            before = self.sampler.generated
            with self.watch("rollout"):
                self.collected = self.loop.run(self.collector.collect(turn, self.share.slots, self.share.prompts))
            observe(self.collected, sums)
            sums.add("tokens/generated", float(self.sampler.generated - before), 0.0)
        with self.watch("pack"):
            batches, expert_tokens, own_tokens = build(
                turn,
                gamma,
                self.collected,
                self.order,
                self.expert,
                self.share,
                config.loss_type,
                config.tokens_per_batch,
                gather_object,
            )
        return StepData(batches, gamma, sums, expert_tokens, own_tokens)

    def sync(self, step: int) -> None:
        """The sampler's weights are those after optimizer step `step`."""
        version = f"step-{step}"
        if self.sampler.version != version:
            with self.watch("sync"):
                self.sampler.sync(self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped), version)

    def evaluate(self) -> dict[str, float]:
        """Every process runs its share; all of them get the result."""
        from accelerate.utils import gather_object

        self.sync(self.trainer.state.global_step)
        found = self.loop.run(self.evaluation.run(), may_cancel=False)
        merged = Sums().merge(gather_object([found]))
        return {name: round(value, 4) for name, value in merged.values().items()}

    def sample_rows(self, step: int) -> Sequence[dict[str, Any]]:
        return sample_rows(self.collected.all, step, 4) if self.collected else []

    # ------------------------------------------------------------------------------------------ training

    def train(self) -> int:
        try:
            self._build()
            # Not all of several processes may stand at the same place: they finish the step.
            alone = self.args.world_size == 1
            with stop_on_signal(self.progress, self.loop.cancel if alone else None):
                return self._train()
        finally:
            self.loop.run(self._close(), may_cancel=False)
            self.loop.close()

    async def _close(self) -> None:
        await self.sandbox.close()
        if hasattr(self, "sampler"):
            await self.sampler.close()

    def _build(self) -> None:
        from transformers import PrinterCallback

        from agentic.train.rl_loss import LossOptions
        from agentic.train.rl_model import load_trainable
        from agentic.train.rl_progress import Evaluation, RLProgress
        from agentic.train.rl_sampler import make_sampler
        from agentic.train.rl_trainer import RLTrainer

        config, args = self.config, self.args
        model, lora_config = load_trainable(self.setup, self.renderer, args.bf16)
        self.sampler = make_sampler(self.setup, self.renderer)
        plan = Plan(
            num_generations=config.num_generations,
            temperature=config.temperature,
            limits=RolloutLimits(
                max_new_tokens=config.max_new_tokens,
                max_total_tokens=config.max_total_tokens,
                deadline_s=config.deadline_s,
                concurrency=config.rollout_batch_size,
                reward=config.reward,
            ),
            max_turns=config.max_turns,
            max_resamples=config.max_resamples,
            truncated=config.truncated,
            scale=config.advantage_scale,
            seed=config.seed,
        )
        end_ids = self.renderer.end_ids
        self.collector = Collector(self.sources, self.order, self.sampler, self.sandbox, plan, end_ids)
        dev_order = Order(max(1, len(self.dev)), config.seed)
        self.evaluation = Evaluation(
            Collector(self.dev, dev_order, self.sampler, self.sandbox, plan, end_ids),
            config.dev_samples,
            args.process_index,
            args.world_size,
        )
        seal = (read_seal(self.checkpoint) if self.checkpoint else None) or {}
        self.progress = RLProgress(
            config.output_dir,
            say,
            evaluate=self.evaluate if self.dev else None,
            eval_steps=config.eval_steps,
            save_best=self._save_best,
            samples=self.sample_rows,
            sample_steps=config.sample_steps,
            best=seal.get("best"),
            watch=self.watch,
            passes=self.share.prompts / (len(self.sources) * config.num_iterations),
        )
        trainer = RLTrainer(
            model=model,
            args=args,
            steps=args.max_steps,
            processing_class=self.renderer.tokenizer,
            peft_config=lora_config,
            callbacks=[self.progress],
            max_minutes=config.max_minutes,
            elapsed_s=seal.get("elapsed_s", 0.0),
            tokens_trained=seal.get("tokens_trained", 0),
            prepare=self.prepare,
            loss_options=LossOptions(
                config.loss_type,
                config.epsilon_low,
                config.epsilon_high,
                config.importance_cap,
                config.temperature,
            ),
            num_iterations=config.num_iterations,
            sft_rate=self.sft_rate,
            progress=self.progress,
        )
        self.trainer = self.progress.trainer = trainer
        trainer.store, trainer.light_weights = self.setup.store, self.setup.light_weights
        trainer.remove_callback(PrinterCallback)

    def _train(self) -> int:
        trainer, progress = self.trainer, self.progress
        try:
            trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)
        except Interrupted:  # between two steps, as far as weights and optimizer go
            step = trainer.state.global_step
            saved = self.setup.store.newest_whole()[0]
            if step and (saved is None or self.setup.store.step(saved) != step):
                trainer._save_checkpoint(trainer.model, None)
        step = trainer.state.global_step
        if progress.stop_requested:
            say(
                f"stopped after step {step}; "
                + (
                    f"a checkpoint is in {self.setup.store.folder}. Continue with the same command and {self.setup.how_to_go_on}"
                    if step
                    else "nothing was trained yet"
                )
            )
            return INTERRUPTED
        if progress.timed_out:
            say(f"time limit of {self.config.max_minutes:g} minutes reached after step {step}")
        if self.setup.light_weights:
            trainer.write_light_weights()
            say(f"wrote {self.setup.light_weights}")
        best = progress.best
        self.export("final")
        say(f"wrote {self.config.output_dir / 'final'}")
        if best:
            say(f"best on the dev tasks: step {best['step']}, in {self.config.output_dir / 'best'}")
        return 0

    def _save_best(self, best: dict[str, float]) -> None:
        tasks = len(self.dev)
        scores = {
            f"{name} success on {tasks} dev tasks": f"{best[name]:.3f}"
            for name in ("greedy", "sampled")
            if name in best
        }
        self.export("best", scores=scores)

    def export(self, name: str, **card: Any) -> None:
        """Write the weights as they are now as a model folder of the run."""
        config = self.config
        algorithm = "" if config.strategy == "sft" else f", {config.loss_type}, G = {config.num_generations}"
        tools = {tool.name: tool.schema() for source in self.sources for tool in task_tools(source.task)}
        export(
            config.output_dir / name,
            self.trainer,
            self.renderer,
            self.setup.base,
            config,
            f"; {config.strategy}{algorithm}",
            trained_with="agentic train",
            examples=len(self.sources),
            tools=list(tools.values()),
            **self.facts,
            **card,
        )
