"""TRL's trainer with steps that make their own data: rollouts, then packed forward passes, then one optimizer step.

Imports torch and trl: import it inside functions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import DistributedType, gather_object
from torch.optim.lr_scheduler import LambdaLR

from agentic.train.attention import layout
from agentic.train.packing import IGNORED
from agentic.train.rl_batch import MicroBatch, empty_batch
from agentic.train.rl_loss import LossOptions, mixed_loss
from agentic.train.sums import Sums
from agentic.train.trainer import PackedTrainer, schedule_function, with_layout


@dataclass
class StepData:
    """What one step trains on, on this process."""

    batches: list[MicroBatch]
    gamma: float
    sums: Sums
    """What the rollouts gave, of this process."""
    expert_tokens: int = 0
    own_tokens: int = 0


class Steps(torch.utils.data.Dataset[int]):
    """The numbers of the steps: all that the data loader hands out."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, items: list[int]) -> dict[str, Any]:
        return {"step": items}


class RLTrainer(PackedTrainer):
    """A training step asks `prepare` for its data and runs the passes itself.

    The Trainer sees one batch a step and keeps what it is good at: optimizer, clipping, schedule, DDP, DeepSpeed,
    checkpoints, trackers. Its data loader only counts steps, so nothing of it has to be restored on resuming.
    """

    def __init__(
        self,
        *,
        steps: int,
        prepare: Callable[[int], StepData],
        loss_options: LossOptions,
        num_iterations: int = 1,
        sft_rate: Callable[[int], float] = lambda step: 1.0,
        progress: Any = None,
        **kwargs: Any,
    ) -> None:
        """`steps` of the run; `prepare(step)` makes the data of a step on this process; `sft_rate(step)` multiplies its learning rate."""
        data: Any = Steps(steps * kwargs["args"].world_size)
        super().__init__(data=data, **kwargs)
        self.progress = progress
        self.prepare = prepare
        self.loss_options = loss_options
        self.num_iterations = num_iterations
        self.sft_rate = sft_rate
        self.step_sums = Sums()
        """Of the last step, over all processes."""
        self.step_data: StepData | None = None
        self.step_skipped = False
        self.train_s = 0.0

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Rollouts (no collective operation inside them), then forward and backward over every micro-batch."""
        step = int(self.state.global_step)
        if step % self.num_iterations == 0 or self.step_data is None:
            self.step_data = self.prepare(step)
        data = self.step_data
        started = time.monotonic()
        counts = gather_object([len(data.batches)])
        passes = max(counts)
        end_id = int(self.processing_class.eos_token_id)
        # Passes gather (ZeRO-3) or reduce (ZeRO-2) something, so every process makes the same number of them.
        batches = [*data.batches, *(empty_batch(end_id) for _ in range(passes - len(data.batches)))]
        self.step_skipped = passes == 0
        model.train()
        total = torch.zeros((), device=self.args.device)
        sums = data.sums.merge([])
        for number, batch in enumerate(batches, start=1):
            last = number == passes
            self.accelerator.gradient_state._set_sync_gradients(last)
            deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
            with contextlib.nullcontext() if last or deepspeed else self.accelerator.no_sync(model):
                with self.compute_loss_context_manager():
                    loss, found = self.micro_loss(model, batch, data.gamma)
                # Gradients are averaged over the processes; the weights are those of a sum.
                scaled = loss * self.accelerator.num_processes
                self.accelerator.backward(scaled, **({"scale_wrt_gas": False} if deepspeed else {}))
            total += loss.detach().float()
            sums = sums.merge([found])
            sums.add("tokens/computed", float(batch.tokens), 0.0)
            self._counts = [self._counts[0] + batch.tokens, self._counts[1] + len(batch.sampled), 0]
        # A step without any data leaves the weights and the optimizer as they are: nothing is in its gradients.
        self.accelerator.gradient_state._set_sync_gradients(not self.step_skipped)
        merged = gather_object([sums])
        self.step_sums = merged[0].merge(merged[1:])
        self.train_s = time.monotonic() - started
        return total * self.accelerator.num_processes  # the Trainer logs the mean over the processes

    def micro_loss(self, model: torch.nn.Module, batch: MicroBatch, gamma: float) -> tuple[torch.Tensor, Sums]:
        """Loss of one packed forward pass; logits only where a token is trained."""
        inputs: dict[str, Any] = self._prepare_inputs(with_layout(batch.rows, int(self.processing_class.pad_token_id)))
        labels = inputs.pop("labels")
        following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # [B, L]: the label of the next token
        self._selected = following != IGNORED
        targets = following[self._selected]
        try:
            with layout(inputs.pop("layout")):
                outputs = model(**inputs, use_cache=False)
        finally:
            self._selected = None
        return mixed_loss(outputs.logits, targets, batch, gamma, self.loss_options)

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        return torch.zeros(()) if self.step_skipped else super()._clip_grad_norm(model)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trackers get the step's whole row, flat."""
        if "loss" in logs and self.progress is not None:
            logs = {**logs, **self.progress.log_row(logs)}
        super().log(logs, start_time)

    def seal_facts(self) -> dict[str, Any]:
        best = {"best": self.progress.best} if self.progress is not None and self.progress.best else {}
        return {**super().seal_facts(), **best}

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the inputs only number the steps."""
        return 0

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Warm-up from the first step on (no rollouts for a rate of 0), then the schedule by steps or by the clock."""
        warmup = self.args.get_warmup_steps(num_training_steps)
        decay = schedule_function(str(self.args.lr_scheduler_type.value), num_training_steps)

        def factor(step: int) -> float:
            place = round(self.progress_at(step) * num_training_steps)
            return min(1.0, (step + 1) / (warmup + 1)) * decay(place) * self.sft_rate(step)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def progress_at(self, step: int) -> float:
        """How far the run is, 0 to 1, by steps or by the clock, whichever is further on."""
        by_steps = step / max(1, self.args.max_steps)
        by_clock = self.schedule_s / self.max_s if self.max_s else 0.0
        return min(1.0, max(by_steps, by_clock))
