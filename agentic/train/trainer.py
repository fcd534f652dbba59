"""TRL's SFTTrainer on packed batches. Imports torch and trl: import it inside functions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, get_scheduler
from trl import SFTTrainer

from agentic import jsonl
from agentic.train.attention import Segment, layout
from agentic.train.packing import IGNORED, Row, collate, segment_bounds
from agentic.train.saving import SealedSaving


def with_layout(rows: Sequence[Row], pad_id: int) -> dict[str, Any]:
    """A batch for PackedTrainer: the tensors of `collate` and the layout of its rows."""
    batch: dict[str, Any] = dict(collate(rows, pad_id))
    # Any 4D mask keeps transformers from building its own; packed attention never reads it.
    batch["attention_mask"] = torch.ones(len(rows), 1, 1, 1, dtype=torch.bool)
    batch["layout"] = [[Segment(*bounds) for bounds in segment_bounds(row)] for row in rows]
    return batch


class PackedTrainer(SealedSaving, SFTTrainer):  # type: ignore[misc]
    """SFT whose loss is the mean over all trained tokens of an optimizer step.

    Logits are computed only where a token is trained: a hook in front of the output layer picks those positions, so the
    model is still called as a whole (DDP, autocast and PEFT wrappers keep working).
    """

    def __init__(
        self,
        *args: Any,
        max_minutes: float | None = None,
        elapsed_s: float = 0.0,
        tokens_trained: int = 0,
        **kwargs: Any,
    ) -> None:
        """`elapsed_s` and `tokens_trained` are those of the run so far, when it is resumed."""
        super().__init__(*args, **kwargs)
        # The loss below is divided by num_items_in_batch, so the Trainer must count it and must not divide again.
        self.model_accepts_loss_kwargs = True
        self.max_s = None if max_minutes is None else max_minutes * 60
        self.elapsed_before_s = elapsed_s
        self.started = time.monotonic()
        self.tokens_computed = 0
        self.tokens_trained = tokens_trained
        self.tokens_right = 0
        self._selected: torch.Tensor | None = None
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        base.get_output_embeddings().register_forward_pre_hook(self._select)

    @property
    def elapsed_s(self) -> float:
        """Training time so far, runs before a resume included."""
        return self.elapsed_before_s + time.monotonic() - self.started

    def _select(self, _module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """[B, L, H] -> [N, H], the N positions whose next token is trained."""
        return arguments if self._selected is None else (arguments[0][self._selected], *arguments[1:])

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Sum of token losses in float32 over `num_items_in_batch` (trained tokens of the step, all devices)."""
        labels = inputs["labels"]
        following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # [B, L]: the label of the next token
        self._selected = following != IGNORED
        targets = following[self._selected]  # [N]
        features = {name: value for name, value in inputs.items() if name not in {"labels", "layout"}}
        try:
            with layout(inputs["layout"]):
                outputs = model(**features, use_cache=False)
        finally:
            self._selected = None
        logits = outputs.logits.float()  # [N, V]
        loss = F.cross_entropy(logits, targets, reduction="sum")
        if num_items_in_batch is None:
            loss = loss / max(1, targets.numel())
        else:
            loss = loss / num_items_in_batch
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes  # DDP averages gradients over the processes
        if self.model.training:
            self.tokens_computed += labels.numel()
            self.tokens_trained += targets.numel()
            self.tokens_right += int((logits.argmax(-1) == targets).sum())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Skip SFTTrainer's own metrics (they come from the loss that is replaced here)."""
        super(SFTTrainer, self).log(logs, start_time)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """With a time limit the rate follows whichever is further on, the steps or the clock."""
        if self.max_s is None:
            return super().create_scheduler(num_training_steps, optimizer)
        optimizer = optimizer or self.optimizer
        warmup = self.args.get_warmup_steps(num_training_steps)
        decay = schedule_function(str(self.args.lr_scheduler_type.value), num_training_steps)

        def factor(step: int) -> float:
            progress = min(1.0, max(step / num_training_steps, self.elapsed_s / (self.max_s or math.inf)))
            return min(1.0, (step + 1) / (warmup + 1)) * decay(round(progress * num_training_steps))

        self.lr_scheduler = LambdaLR(optimizer, factor)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def seal_facts(self) -> dict[str, Any]:
        return {"elapsed_s": round(self.elapsed_s, 1), "tokens_trained": self.tokens_trained}


def schedule_function(name: str, steps: int) -> Callable[[int], float]:
    """The factor of a transformers schedule as a function of the step, without warm-up."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=0, num_training_steps=steps)
    function: Callable[[int], float] = scheduler.lr_lambdas[0]
    return function


class Progress(TrainerCallback):  # type: ignore[misc]
    """Progress line, metrics.jsonl, the time limit and the stop flag."""

    def __init__(self, metrics: Path, say: Callable[[str], None]) -> None:
        self.metrics = metrics
        self.say = say
        self.trainer: PackedTrainer
        self.stop_requested = False
        self.timed_out = False
        self._last: tuple[float, int, int, int]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.started = time.monotonic()
        self._first_step = state.global_step
        self._last = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        limit = self.trainer.max_s
        if limit is not None and self.trainer.elapsed_s >= limit:
            self.timed_out = True
        if self.stop_requested or self.timed_out:
            control.should_training_stop = True
            control.should_save = True
            control.should_log = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        trainer = self.trainer
        now = self._now()
        seconds, computed, trained, right = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        seconds = max(seconds, 1e-6)
        row = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 4),
            "loss": logs["loss"],
            "token_accuracy": round(right / max(trained, 1), 4),
            "learning_rate": logs.get("learning_rate", 0.0),
            "grad_norm": logs.get("grad_norm"),
            "tokens_per_s": round(computed / seconds, 1),
            "trained_tokens_per_s": round(trained / seconds, 1),
            "trained_tokens": trainer.tokens_trained,
            "elapsed_s": round(trainer.elapsed_s, 1),
        }
        jsonl.append(self.metrics, row)
        self.say(
            f"step {row['step']}/{state.max_steps}  loss {row['loss']:.4f}  right {row['token_accuracy']:.3f}  "
            f"lr {row['learning_rate']:.2e}  {row['tokens_per_s']:.0f} tok/s  "
            f"{row['trained_tokens_per_s']:.0f} trained tok/s  ETA {minutes(self._remaining_s(state))}"
        )

    def _now(self) -> tuple[float, int, int, int]:
        trainer = self.trainer
        return time.monotonic(), trainer.tokens_computed, trainer.tokens_trained, trainer.tokens_right

    def _remaining_s(self, state: Any) -> float:
        done = max(1, state.global_step - self._first_step)
        here = time.monotonic() - self.trainer.started
        by_steps = here / done * (state.max_steps - state.global_step)
        if self.trainer.max_s is None:
            return by_steps
        return max(0.0, min(by_steps, self.trainer.max_s - self.trainer.elapsed_s))


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
