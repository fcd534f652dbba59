"""`agentic train`: reinforcement learning on the agent's own rollouts, alone, after SFT, or mixed with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic import run_folder
from agentic.config import TrainConfig
from agentic.data_analysis_env import task_tools
from agentic.errors import MissingExtra, UserError
from agentic.model.chat import Renderer
from agentic.model.fetch import resolve
from agentic.model.quiet import quiet_libraries
from agentic.policy.hf import set_threads
from agentic.rollout import RolloutLimits
from agentic.train import runlog
from agentic.train.adapter import Adapter, adapter_of, tokenizer_folder
from agentic.train.checkpoints import Checkpoints, read_seal
from agentic.train.documented import at_root, places
from agentic.train.launch import autocast_type, deepspeed_config, first_process_does, say
from agentic.train.rl_interrupt import Interrupted, RolloutLoop, stop_on_signal
from agentic.train.rl_rollouts import Collector, Plan
from agentic.train.rl_tasks import Expert, Order, Source, read_sources
from agentic.train.schedule import gamma as gamma_schedule

if TYPE_CHECKING:
    from agentic.train.rl_trainer import RLTrainer

INTERRUPTED = 130
# What a resumed run may be told anew: where it lies, how far it goes, how often it reports.
_MAY_CHANGE = frozenset(
    (
        *("data_path", "output_dir", "resume_from_checkpoint", "dry_run", "report_to", "dev_data"),
        *("max_steps", "max_minutes", "num_train_epochs", "save_steps", "save_total_limit", "sample_steps"),
    )
)


def run(config: TrainConfig) -> int:
    """Train; 0 when done, 130 when interrupted (resumable). Raises UserError for bad options, data or models."""
    try:
        import peft  # noqa: F401
        import transformers
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtra("agentic train", "train") from None
    quiet_libraries()
    check_options(config)
    set_threads()
    sources = read_sources(config.data_path)
    dev = read_sources([config.dev_data])[: config.dev_tasks] if config.dev_data else []
    _check_expert(config, sources)
    dtype = autocast_type(config.dtype)
    prompts_here = config.batch_size * config.accumulation_steps
    if config.dry_run:
        _say_plan(config, sources, dev, prompts_here, total_steps(config, len(sources), prompts_here))
        return 0
    from agentic.train.rl_model import arguments

    deepspeed = deepspeed_config(str(config.deepspeed) if config.deepspeed else "auto")
    world = _world()
    steps = total_steps(config, len(sources), prompts_here * world)
    args = arguments(config, dtype, deepspeed, steps)
    folder = first_process_does(lambda: _model_folder(config))
    adapter = adapter_of(folder, config.lora_rank)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder(folder, adapter))
    renderer = Renderer(tokenizer)
    _say_plan(config, sources, dev, prompts_here * args.world_size, steps)
    facts = {
        "data_hash": runlog.data_hash([*config.data_path, *([config.dev_data] if config.dev_data else [])]),
        "template_hash": renderer.template_hash,
        "end_ids": renderer.end_ids,
    }
    store = _store(config, folder)
    checkpoint = first_process_does(lambda: prepare_folder(config, store, {**facts, "processes": args.world_size}))
    job = Job(config, args, folder, adapter, renderer, facts, store, checkpoint, sources, dev, dtype)
    return job.train()


def check_options(config: TrainConfig) -> None:
    """Raise UserError for a value that no run can use."""
    positive = (
        *("num_generations", "batch_size", "accumulation_steps", "max_turns", "max_new_tokens", "max_total_tokens"),
        *("rollout_batch_size", "num_iterations", "tokens_per_batch", "max_length", "dev_tasks", "dev_samples"),
        *("eval_steps", "save_steps", "sample_steps"),
    )
    for name in positive:
        if getattr(config, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(config, name)}")
    for name in ("max_resamples", "lora_rank", "warmup_steps", "importance_cap", "epsilon_low", "epsilon_high"):
        if getattr(config, name) < 0:
            raise UserError(f"--{name} must not be below 0, found {getattr(config, name)}")
    for name in ("gamma_start", "gamma_end", "sft_share"):
        if not 0 <= getattr(config, name) <= 1:
            raise UserError(f"--{name} must lie between 0 and 1, found {getattr(config, name)}")
    for name in ("temperature", "deadline_s", "learning_rate"):
        if getattr(config, name) <= 0:
            raise UserError(f"--{name} must be above 0, found {getattr(config, name)}")
    if config.max_minutes is not None and config.max_minutes <= 0:
        raise UserError(f"--max_minutes must be positive, not {config.max_minutes}")
    if config.num_generations < 2 and config.strategy != "sft":
        raise UserError("--num_generations must be at least 2: a sample is judged against the others of its group")
    if config.save_steps % config.num_iterations:
        raise UserError("--save_steps must be a multiple of --num_iterations: rollouts are not part of a checkpoint")
    if config.from_weight and config.model_name_or_path:
        raise UserError("choose one of --model_name_or_path and --from_weight")
    from transformers import SchedulerType

    names = [item.value for item in SchedulerType]
    if config.lr_scheduler_type not in names:
        raise UserError(f"--lr_scheduler_type {config.lr_scheduler_type}: choose one of {', '.join(names)}")


def _check_expert(config: TrainConfig, sources: Sequence[Source]) -> None:
    if config.strategy != "rl" and not any(source.task.expert_trajectory for source in sources):
        raise UserError(
            f"{', '.join(map(str, config.data_path))}: no task has an expert trajectory, which --strategy "
            f"{config.strategy} trains on; use --strategy rl, or build tasks with agentic build"
        )


def total_steps(config: TrainConfig, tasks: int, prompts: int) -> int:
    """Optimizer steps of the run, by --max_steps or by epochs of `tasks`."""
    if config.max_steps > 0:
        return config.max_steps
    return max(1, round(-(-tasks // prompts) * config.num_train_epochs)) * config.num_iterations


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _say_plan(config: TrainConfig, sources: Sequence[Source], dev: Sequence[Source], prompts: int, steps: int) -> None:
    with_expert = sum(bool(source.task.expert_trajectory) for source in sources)
    say(
        f"{len(sources)} tasks ({with_expert} with an expert trajectory), {len(dev)} dev tasks; {steps} steps"
        + (f" or {config.max_minutes:g} minutes" if config.max_minutes is not None else "")
        + f", {prompts} tasks a step"
        + ("" if config.strategy == "sft" else f" x {config.num_generations} samples, {config.loss_type}")
        + f", {config.strategy}"
    )


def _model_folder(config: TrainConfig) -> str:
    if config.from_weight:
        from agentic.model.searchlm.commands import folder_of_weight

        save_dir, tokenizer = at_root(config.save_dir), at_root(config.tokenizer)
        return str(folder_of_weight(config.from_weight, save_dir, config.model_profile, tokenizer))
    return resolve(config.model_name_or_path or "smollm2")


def _store(config: TrainConfig, folder: str) -> Checkpoints:
    """Where full states lie: in the run folder, or under the documented names with --save_weight."""
    if not config.save_weight:
        return Checkpoints(config.output_dir)
    return places(config.save_weight, config.save_dir, _searchlm_config(config, folder)).checkpoints


def _searchlm_config(config: TrainConfig, folder: str) -> Any:
    from transformers import AutoConfig

    from agentic.model.searchlm import register

    register()
    about = AutoConfig.from_pretrained(folder)
    if about.model_type != "searchlm" or config.lora_rank:
        raise UserError(f"--save_weight writes SearchLM weights trained in full; {folder} is a {about.model_type} model"
                        + (" with an adapter" if config.lora_rank else ""))  # fmt: skip
    return about


def prepare_folder(config: TrainConfig, store: Checkpoints, facts: dict[str, Any]) -> Path | None:
    """Make the run folder and find the checkpoint to continue from (None: start anew)."""
    output = config.output_dir
    shutil.rmtree(store.staging, ignore_errors=True)  # left by a run that was killed while saving
    logs = [output / name for name in (run_folder.METRICS, "samples.jsonl")]
    if not config.resume_from_checkpoint:
        if store.all() or (output / "final").exists():
            raise UserError(f"{output}: holds a run already; add --resume to continue it, or name another --output_dir")
        run_folder.open_run(output, config, "train", facts=facts, restart=True)
        for path in logs:
            path.unlink(missing_ok=True)
        return None
    if store.newest_whole()[0] is not None:
        if not (output / run_folder.CONFIG).exists():
            raise UserError(
                f"{output}: has no {run_folder.CONFIG} that says what its run is; name another --output_dir"
            )
        run_folder.open_run(output, config, "train", _MAY_CHANGE, facts=facts)
    checkpoint = store.resumable("start without --resume", say)
    for path in logs:
        runlog.repair_tail(path)
        runlog.cut_metrics(path, store.step(checkpoint) or 0)
    say(f"resuming from {checkpoint}")
    return checkpoint


class Job:
    """One training run on this process."""

    def __init__(
        self,
        config: TrainConfig,
        args: Any,
        folder: str,
        adapter: Adapter | None,
        renderer: Renderer,
        facts: dict[str, Any],
        store: Checkpoints,
        checkpoint: Path | None,
        sources: list[Source],
        dev: list[Source],
        dtype: str,
    ) -> None:
        from agentic.sandbox import Sandbox
        from agentic.train.rl_data import Share, Stopwatch

        self.config, self.args, self.renderer, self.facts = config, args, renderer, facts
        self.folder, self.adapter, self.store, self.checkpoint, self.dtype = folder, adapter, store, checkpoint, dtype
        self.sources, self.dev = sources, dev
        self.share = Share(
            args.process_index, args.world_size, config.batch_size * config.accumulation_steps * args.world_size
        )
        self.order = Order(len(sources), config.seed)
        self.expert = Expert(sources, renderer, config.max_length)
        self.sandbox = Sandbox()
        self.loop = RolloutLoop()
        self.watch = Stopwatch()
        self.trainer: RLTrainer
        self.collected: Any = None

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

        from agentic.train.rl_data import build, observe
        from agentic.train.rl_trainer import StepData
        from agentic.train.sums import Sums

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
        self.sync(self.trainer.state.global_step)
        found: dict[str, float] = self.loop.run(self.evaluation.run(), may_cancel=False)
        return found

    def sample_rows(self, step: int) -> Sequence[dict[str, Any]]:
        from agentic.train.rl_data import sample_rows

        return sample_rows(self.collected.all, step, 4) if self.collected else []

    # ------------------------------------------------------------------------------------------ training

    def train(self) -> int:
        try:
            self._build()
            with stop_on_signal(self.loop, self.progress):
                return self._train()
        finally:
            self.loop.run(self._close(), may_cancel=False)
            self.loop.close()

    async def _close(self) -> None:
        await self.sandbox.close()
        if hasattr(self, "sampler"):
            await self.sampler.close()

    def _build(self) -> None:
        from datasets import Dataset
        from transformers import PrinterCallback

        from agentic.train.rl_export import Exporter
        from agentic.train.rl_loss import LossOptions
        from agentic.train.rl_model import load_trainable, unsharded
        from agentic.train.rl_progress import Evaluation, RLProgress
        from agentic.train.rl_sampler import make_sampler
        from agentic.train.rl_trainer import RLTrainer

        config, args = self.config, self.args
        model = load_trainable(self.folder, self.adapter, config.lora_rank, self.dtype, self.renderer)
        with unsharded():
            base = self.adapter.base_folder if self.adapter else self.folder
            self.sampler = make_sampler(config, base, self.renderer)
        plan = Plan(
            num_generations=config.num_generations,
            temperature=config.temperature,
            limits=RolloutLimits(
                max_new_tokens=config.max_new_tokens,
                max_total_tokens=config.max_total_tokens,
                deadline_s=config.deadline_s,
                concurrency=config.rollout_batch_size,
            ),
            max_turns=config.max_turns,
            max_resamples=config.max_resamples,
            preset=config.reward,
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
        tools = {tool.name: tool.schema() for source in self.sources for tool in task_tools(source.task)}
        self.export = Exporter(config, self.adapter, self.renderer, self.facts, list(tools.values()), len(self.sources))
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
        )
        trainer = RLTrainer(
            model=model.model,
            args=args,
            train_dataset=Dataset.from_dict({"step": list(range(args.max_steps * args.world_size))}),
            data_collator=lambda items: {"step": [item["step"] for item in items]},
            processing_class=self.renderer.tokenizer,
            peft_config=model.peft_config,
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
        trainer.store = self.store
        if config.save_weight:
            trainer.light_weights = places(config.save_weight, config.save_dir, trainer.model.config).weights
        trainer.remove_callback(PrinterCallback)

    def _train(self) -> int:
        trainer, progress = self.trainer, self.progress
        try:
            trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)
        except Interrupted:  # between two steps, as far as weights and optimizer go
            step = trainer.state.global_step
            saved = self.store.newest_whole()[0]
            if step and (saved is None or self.store.step(saved) != step):
                trainer._save_checkpoint(trainer.model, None)
        step = trainer.state.global_step
        if progress.stop_requested:
            say(
                f"stopped after step {step}; "
                + (
                    f"a checkpoint is in {self.store.folder}. Continue with the same command and --resume"
                    if step
                    else "nothing was trained yet"
                )
            )
            return INTERRUPTED
        if progress.timed_out:
            say(f"time limit of {self.config.max_minutes:g} minutes reached after step {step}")
        trainer.write_light_weights()
        best = progress.best
        self.export(trainer, self.config.output_dir / "final")
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
        self.export(self.trainer, self.config.output_dir / "best", scores)
