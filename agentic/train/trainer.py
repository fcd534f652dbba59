"""TRL's SFTTrainer on packed batches. Imports torch and trl: import it inside functions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, get_scheduler
from trl import SFTTrainer

from agentic import jsonl
from agentic.errors import UserError
from agentic.train.attention import Segment, layout
from agentic.train.corpus import Batches
from agentic.train.packing import IGNORED, Row, collate, segment_bounds
from agentic.train.saving import SealedSaving


def with_layout(rows: Sequence[Row], pad_id: int) -> dict[str, Any]:
    """A batch for PackedTrainer: the tensors of `collate` and the layout of its rows."""
    batch: dict[str, Any] = dict(collate(rows, pad_id))
    # Any 4D mask keeps transformers from building its own; packed attention never reads it.
    batch["attention_mask"] = torch.ones(len(rows), 1, 1, 1, dtype=torch.bool)
    batch["layout"] = [[Segment(*bounds) for bounds in segment_bounds(row)] for row in rows]
    return batch


class Failure(str):
    """What is wrong with a batch. Tokenising workers hand it over: an exception would arrive with their traceback."""


class BatchData(torch.utils.data.Dataset[list[Row] | Failure]):
    """The batches of all epochs as one sequence: index `epoch * len(batches) + place`."""

    def __init__(self, batches: Batches, pad_id: int) -> None:
        self.batches, self.pad_id = batches, pad_id

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> list[Row] | Failure:
        try:
            return self.batches.rows(*divmod(index, len(self.batches)))
        except UserError as error:
            return Failure(error)

    def collate(self, items: list[list[Row] | Failure]) -> dict[str, Any]:
        """One forward pass from several batches."""
        rows: list[Row] = []
        for item in items:
            if isinstance(item, Failure):
                return {"failure": str(item)}
            rows += item
        return with_layout(rows, self.pad_id)


class EpochOrder(torch.utils.data.Sampler[int]):
    """Indices into BatchData of one epoch, in order; the order within an epoch is that of the batches.

    It has no set_epoch on purpose: accelerate does not reach it behind the wrappers of a resumed epoch. `epoch` is set by
    Progress when an epoch begins.
    """

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch * self.length, (self.epoch + 1) * self.length))


class PackedTrainer(SealedSaving, SFTTrainer):  # type: ignore[misc]
    """SFT whose loss is the mean over all trained tokens of an optimizer step.

    Logits are computed only where a token is trained: a hook in front of the output layer picks those positions, so the
    model is still called as a whole (DDP, autocast and PEFT wrappers keep working).
    """

    def __init__(
        self,
        data: BatchData,
        max_minutes: float | None = None,
        elapsed_s: float = 0.0,
        tokens_trained: int = 0,
        **kwargs: Any,
    ) -> None:
        """`elapsed_s` and `tokens_trained` are those of the run so far, when it is resumed."""
        # TRL takes datasets of its own kind only, and looks at one row.
        placeholder = Dataset.from_dict({"labels": [[0]]})
        super().__init__(train_dataset=placeholder, data_collator=data.collate, **kwargs)
        self.train_dataset = data
        self.order = EpochOrder(len(data))
        # The loss below is divided by num_items_in_batch, so the Trainer must count it and must not divide again.
        self.model_accepts_loss_kwargs = True
        self.max_s = None if max_minutes is None else max_minutes * 60
        self.elapsed_before_s = elapsed_s
        self.started = time.monotonic()
        self.schedule_s = elapsed_s
        """Training time that the schedule goes by: the first process's clock, as of the last step."""
        self.tokens_trained = self._trained_before = tokens_trained
        self._counts = [0, 0, 0]  # computed, trained and rightly predicted tokens of this process
        self._selected: torch.Tensor | None = None
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        base.get_output_embeddings().register_forward_pre_hook(self._select)

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochOrder:
        return self.order

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        if self.state.global_step >= self.state.max_steps:
            return [], None  # a run that was finished is resumed: nothing is left to do
        batch: tuple[list[Any], Any] = super().get_batch_samples(epoch_iterator, num_batches, device)
        return batch

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Raises UserError before the processes count together: the others must not wait for this one."""
        for sample in batch_samples:
            if "failure" in sample:
                raise UserError(sample["failure"])
        return super()._get_num_items_in_batch(batch_samples, device)

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
            loss = loss / max(1, int(num_items_in_batch))  # a step of EMPTY rows alone has none
            if self.args.average_tokens_across_devices:
                loss = loss * self.accelerator.num_processes  # DDP averages gradients over the processes
        if self.model.training:
            right = int((logits.argmax(-1) == targets).sum())
            self._counts = [a + b for a, b in zip(self._counts, (labels.numel(), targets.numel(), right), strict=True)]
        return (loss, outputs) if return_outputs else loss

    def shared(self, values: Sequence[float], how: str = "sum") -> list[float]:
        """`values` summed (or their maximum) over the processes; every process must call it."""
        if self.args.world_size == 1:
            return list(values)
        box = torch.tensor(values, dtype=torch.float64, device=self.args.device)
        torch.distributed.all_reduce(box, getattr(torch.distributed.ReduceOp, how.upper()))
        found: list[float] = box.tolist()
        return found

    def totals(self) -> list[int]:
        """Computed, trained and right tokens of all processes since the start of this one; every process must call it."""
        totals = [int(count) for count in self.shared(self._counts)]
        self.tokens_trained = self._trained_before + totals[1]
        return totals

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
            # Every process must have the same rate, and their clocks differ.
            elapsed = self.elapsed_s if self.args.world_size == 1 else self.schedule_s
            progress = min(1.0, max(step / num_training_steps, elapsed / (self.max_s or math.inf)))
            return min(1.0, (step + 1) / (warmup + 1)) * decay(round(progress * num_training_steps))

        self.lr_scheduler = LambdaLR(optimizer, factor)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def seal_facts(self) -> dict[str, Any]:
        self.totals()
        return {"elapsed_s": round(self.elapsed_s, 1), "tokens_trained": self.tokens_trained}


def schedule_function(name: str, steps: int) -> Callable[[int], float]:
    """The factor of a transformers schedule as a function of the step, without warm-up."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=0, num_training_steps=steps)
    function: Callable[[int], float] = scheduler.lr_lambdas[0]
    return function


MOST_SKIPPED = 20
"""Overflowing steps in a row after which float16 is given up: 16 halvings bring the loss scale from 65536 to 1."""


class Progress(TrainerCallback):  # type: ignore[misc]
    """Progress line, metrics.jsonl, the time limit and the stop flag."""

    def __init__(self, metrics: Path, say: Callable[[str], None]) -> None:
        self.metrics = metrics
        self.say = say
        self.trainer: PackedTrainer
        self.stop_requested = False
        self.timed_out = False
        self._skipped = 0
        self._skipped_together = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.started = time.monotonic()
        self._first_step = state.global_step
        self._last = [time.monotonic(), 0, 0, 0]
        if state.global_step >= state.max_steps:
            control.should_training_stop = True

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A resumed epoch begins somewhere in its middle.
        self.trainer.order.epoch = math.floor(round(state.epoch or 0.0, 6))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        self._watch_scale(state)
        # Processes see a signal, and the time limit, in different steps: they have to agree.
        clock = trainer.elapsed_s if args.process_index == 0 else 0.0
        stop, trainer.schedule_s = trainer.shared([float(self.stop_requested), clock], "max")
        self.stop_requested = bool(stop)
        if trainer.max_s is not None and trainer.schedule_s >= trainer.max_s:
            self.timed_out = True
        if self.stop_requested or self.timed_out:
            control.should_training_stop = True
            control.should_save = True
            control.should_log = True

    def _watch_scale(self, state: Any) -> None:
        """float16 halves its loss scale with every step that overflows: at the floor nothing is learnt any more."""
        if not self.trainer.accelerator.optimizer_step_was_skipped:
            self._skipped_together = 0
            return
        self._skipped += 1
        self._skipped_together += 1
        if self._skipped_together >= MOST_SKIPPED:
            raise UserError(
                f"step {state.global_step}: float16 overflowed in {MOST_SKIPPED} steps in a row; continue with --dtype "
                "bfloat16 or a lower --learning_rate from the last checkpoint"
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        trainer = self.trainer
        now = [time.monotonic(), *trainer.totals()]
        seconds, computed, trained, right = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        seconds = max(seconds, 1e-6)
        if not state.is_world_process_zero:
            return
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
        if self._skipped:
            row["skipped_steps"] = self._skipped
        jsonl.append(self.metrics, row)
        self.say(
            f"step {row['step']}/{state.max_steps}  loss {row['loss']:.4f}  right {row['token_accuracy']:.3f}  "
            f"lr {row['learning_rate']:.2e}  {row['tokens_per_s']:.0f} tok/s  "
            f"{row['trained_tokens_per_s']:.0f} trained tok/s  ETA {minutes(self._remaining_s(state))}"
            + (f"  {self._skipped} steps skipped" if self._skipped else "")
        )

    def _remaining_s(self, state: Any) -> float:
        done = max(1, state.global_step - self._first_step)
        here = time.monotonic() - self.trainer.started
        by_steps = here / done * (state.max_steps - state.global_step)
        if self.trainer.max_s is None:
            return by_steps
        return max(0.0, min(by_steps, self.trainer.max_s - self.trainer.elapsed_s))


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
