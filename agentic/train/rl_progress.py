"""What an RL run says while it goes: a row a step, samples, alarms, evaluation on the dev slice, best/, and stopping.

Imports transformers: import it inside functions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.records import Trajectory
from agentic.run_folder import METRICS
from agentic.train.alarms import alarms
from agentic.train.rl_data import Stopwatch
from agentic.train.rl_rollouts import Collector
from agentic.train.rl_trainer import RLTrainer
from agentic.train.sums import Sums
from agentic.train.trainer import Progress, minutes

SAMPLES = "samples.jsonl"


class Evaluation:
    """Success on the first tasks of the dev file: greedy, and sampled as in training."""

    def __init__(self, collector: Collector, samples: int, rank: int, world: int) -> None:
        self.collector, self.samples = collector, samples
        self.mine = range(rank, len(collector.sources), world)

    async def run(self) -> Sums:
        """What this process's share of the tasks gave."""
        plan, sampler, found = self.collector.plan, self.collector.sampler, Sums()
        for name, temperature, samples in (("greedy", 0.0, 1), ("sampled", plan.temperature, self.samples)):
            episodes = [self.collector.episode(task, sample) for sample in range(samples) for task in self.mine]
            trajectories: list[Trajectory] = await sampler.run(
                episodes, concurrency=plan.limits.concurrency, seed=f"{plan.seed}/dev", temperature=temperature
            )
            for one in trajectories:
                if one.reward is None:  # unjudged: says nothing, and must not count as wrong
                    continue
                found.add(name, one.parts.get("task_success", 0.0))
                found.add(f"{name}_reward", one.reward)
                found.add(f"{name}_length", float(sum(turn.generated_tokens for turn in one.turns)))
        return found


class RLProgress(Progress):
    """The callback of the run. `trainer` is set once there is one."""

    trainer: RLTrainer

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        *,
        evaluate: Callable[[], dict[str, float]] | None,
        eval_steps: int,
        save_best: Callable[[dict[str, float]], None],
        samples: Callable[[int], Sequence[dict[str, Any]]],
        sample_steps: int,
        best: dict[str, float] | None,
        watch: Stopwatch,
        passes: float,
    ) -> None:
        """`passes`: what one step is of a pass over the tasks."""
        super().__init__(folder / METRICS, say)
        self.folder, self.evaluate, self.eval_steps = folder, evaluate, eval_steps
        self.save_best, self.samples, self.sample_steps = save_best, samples, sample_steps
        self.best = best
        """Step and score of the best evaluation so far."""
        self.watch, self.passes = watch, passes
        self.dev: dict[str, float] | None = None
        self.rows: list[dict[str, Any]] = []
        self._row: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control)
        path = self.folder / METRICS
        self.rows = [row for _, row in jsonl.iter_rows(path)] if path.exists() else []
        if state.global_step == 0 and self.evaluate is not None:
            self._evaluate(0)
            if state.is_world_process_zero:
                jsonl.append(path, {"step": 0, "epoch": 0.0, "dev": self.dev})
            self.dev = None
        self._step_started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.epoch = state.global_step * self.passes  # of the tasks; the Trainer's epoch is the whole run
        super().on_step_end(args, state, control)
        if state.global_step % self.trainer.num_iterations:
            # Rollouts are used once more: a checkpoint, which does not hold them, could not go on from here.
            control.should_save = control.should_training_stop = False
            return
        due = state.global_step % self.eval_steps == 0 or state.global_step >= state.max_steps or self.timed_out
        if self.evaluate is not None and due and not self.stop_requested:
            self._evaluate(state.global_step)

    def _evaluate(self, step: int) -> None:
        assert self.evaluate is not None
        with self.watch("eval"):
            self.dev = self.evaluate()
        greedy, sampled = self.dev.get("greedy", 0.0), self.dev.get("sampled", 0.0)  # absent: all of them unjudged
        score = round((greedy + sampled) / 2, 4)
        self.say(f"dev at step {step}: greedy {greedy:.3f}, sampled {sampled:.3f} ({self.watch.seconds['eval']:.0f} s)")
        if self.best is None or score > self.best["score"]:
            self.best = {"step": step, "score": score, **self.dev}
            self.save_best(self.best)

    def log_row(self, logs: dict[str, float]) -> dict[str, float]:
        """Make the step's row; returns its numbers, flat, for the trackers."""
        self._row = self.make_row(logs)
        return dict(_flat(self._row))

    def make_row(self, logs: dict[str, float]) -> dict[str, Any]:
        trainer, state = self.trainer, self.trainer.state
        sums, data = trainer.step_sums, trainer.step_data
        assert data is not None
        now = time.monotonic()
        seconds = {**self.watch.seconds, "train": trainer.train_s, "step": now - self._step_started}
        self._step_started = now
        self.watch.seconds.clear()
        row: dict[str, Any] = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 4),
            "loss": _number(logs.get("loss")),
            "gamma": round(data.gamma, 6),
            "learning_rate": logs.get("learning_rate"),
            "grad_norm": _number(logs.get("grad_norm")),
            "skipped": float(trainer.step_skipped),
        }
        for name, value in sums.values().items():
            _put(row, name, round(value, 6))
        tokens = row.setdefault("tokens", {})
        tokens |= {"expert": data.expert_tokens, "own": data.own_tokens}
        trainer.totals()
        row["trained_tokens"] = trainer.tokens_trained
        if tokens.get("generated") and seconds.get("rollout"):
            row["rollout_tokens_per_s"] = round(tokens["generated"] / seconds["rollout"], 1)
        row["train_tokens_per_s"] = round(tokens.get("computed", 0.0) / max(trainer.train_s, 1e-6), 1)
        row["seconds"] = {name: round(value, 2) for name, value in seconds.items()}
        row["elapsed_s"] = round(trainer.elapsed_s, 1)
        row["eta_s"] = round(self._remaining_s(state), 1)
        if self.dev is not None:
            row["dev"], self.dev = self.dev, None
        if self._skipped:
            row["skipped_steps"] = self._skipped
        found = alarms([*self.rows, row])
        if found:
            row["alarms"] = found
        return row

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        row = self._row
        self.rows.append(row)
        if not state.is_world_process_zero:
            return
        jsonl.append(self.folder / METRICS, row)
        if row["step"] % self.sample_steps == 0 or row["step"] == 1:
            for sample in self.samples(row["step"]):
                jsonl.append(self.folder / SAMPLES, sample)
        self.say(self.line(row, state.max_steps))
        before = set(self.rows[-2].get("alarms", ())) if len(self.rows) > 1 else set()
        for name, text in row.get("alarms", {}).items():
            if name not in before:  # said once, when it begins
                self.say(f"warning: {text}")

    def line(self, row: dict[str, Any], total: int) -> str:
        parts = [f"step {row['step']}/{total}"]
        if row.get("reward") is not None:
            parts.append(f"reward {row['reward']:.3f}  success {row['success']:.3f}  void {row['void']:.2f}")
            parts.append(f"kept {row['kept_groups']:.2f}  length {row['length']:.0f}")
        parts.append(f"gamma {row['gamma']:.2f}  loss {row['loss'] if row['loss'] is not None else float('nan'):.4f}")
        if "rollout_tokens_per_s" in row:
            parts.append(f"{row['rollout_tokens_per_s']:.0f} sampled tok/s")
        parts.append(f"{row['train_tokens_per_s']:.0f} trained tok/s  {row['seconds']['step']:.0f} s")
        return "  ".join([*parts, f"ETA {minutes(row['eta_s'])}"])


def _put(row: dict[str, Any], name: str, value: float) -> None:
    head, _, rest = name.partition("/")
    if rest:
        row.setdefault(head, {})[rest] = value
    else:
        row[head] = value


def _number(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None


def _flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
