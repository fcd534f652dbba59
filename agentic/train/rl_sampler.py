"""The copy of the weights that samples, and how the trained weights get into it.

A copy of its own: the trainer's may be wrapped (DDP), sharded (ZeRO) or float32 under autocast, and a bfloat16 copy with
merged adapters samples faster. What it samples carries its own logprobs; the loss corrects for the gap. Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from agentic.model.chat import Renderer
from agentic.policy.generate import Engine
from agentic.policy.timetable import Timetable
from agentic.train.rl_model import load_copy
from agentic.train.rl_rollouts import Episode
from agentic.train.rl_setup import Setup

T = TypeVar("T")


class LocalSampler:
    """Our engine over a copy of the model."""

    def __init__(
        self,
        model: torch.nn.Module,
        renderer: Renderer,
        *,
        batch_size: int = 48,
        temperature: float = 1.0,
        deterministic: bool = True,
    ) -> None:
        """`model`: the copy. `temperature`: that of training, at which logprobs are recorded: those of the distribution sampled from."""
        self.model = model
        engine = Engine(self.model, renderer.end_ids, batch_size=batch_size, logprob_temperature=temperature)
        self.table = Timetable(engine, renderer, name="trainer", deterministic=deterministic)
        self._synced = False

    @property
    def version(self) -> str:
        return self.table.version

    @property
    def generated(self) -> int:
        return self.table.generated

    def sync(self, model: torch.nn.Module, version: str) -> None:
        """Take over the weights of the unwrapped trained model. Under ZeRO-3 a collective operation: all ranks call it."""
        copy_weights(model, self.model, only_trained=self._synced)
        self._synced = True
        self.table.engine.forget()
        self.table.version = version

    async def run(self, episodes: Sequence[Episode[T]], *, concurrency: int, seed: str, temperature: float) -> list[T]:
        if seed != self.table.engine.seed:
            # Keys and values kept by an evaluation with these weights would change the last bits of a step that a
            # resumed run makes without that evaluation.
            self.table.engine.forget()
        self.table.engine.seed = seed
        self.table.engine.temperature = temperature
        return await self.table.run(episodes, concurrency)

    async def close(self) -> None:
        """Nothing runs beside the table."""


def copy_weights(model: torch.nn.Module, copy: torch.nn.Module, only_trained: bool = False) -> None:
    """Weights of `model` into `copy`, adapters merged in float32 and rounded once."""
    targets = dict(copy.named_parameters())
    with torch.no_grad():
        for name, weight in merged_weights(model, only_trained):
            targets[name].copy_(weight)


def merged_weights(model: torch.nn.Module, only_trained: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights of the model without adapters, into which they are merged.

    `only_trained`: without what is frozen. Under ZeRO-3 every weight is whole while it is at hand, and every process has
    to come along.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    source: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    adapted: set[str] = set()
    with torch.no_grad():
        for name, module in source.named_modules():
            if isinstance(module, BaseTunerLayer):
                layer: Any = module
                adapted.add(f"{name}.")
                with gathered(list(layer.parameters())):
                    merged = layer.base_layer.weight.float()
                    for adapter in layer.active_adapters:
                        merged = merged + layer.get_delta_weight(adapter).float()
                    yield f"{name}.weight", merged
        for name, parameter in source.named_parameters():
            if any(name.startswith(prefix) for prefix in adapted):
                head, base, tail = name.partition(".base_layer.")
                if not base or tail == "weight" or only_trained:
                    continue  # merged above, or frozen
                name = f"{head}.{tail}"
            elif only_trained and not parameter.requires_grad:
                continue
            with gathered([parameter]):
                yield name, parameter.detach()


@contextmanager
def gathered(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Whole parameters within this context, also where ZeRO-3 has sharded them."""
    if any(hasattr(parameter, "ds_id") for parameter in parameters):
        import deepspeed

        with deepspeed.zero.GatheredParameters(parameters):
            yield
    else:
        yield


def make_sampler(setup: Setup, renderer: Renderer) -> Any:
    """The sampler that the options ask for."""
    options = setup.options
    if options.endpoint is not None:
        from agentic.train.rl_endpoint import EndpointSampler

        return EndpointSampler(options.endpoint, renderer, sync=options.endpoint_sync)
    deterministic = not torch.cuda.is_available() if options.deterministic is None else options.deterministic
    return LocalSampler(
        load_copy(setup, options.sampler_dtype),
        renderer,
        batch_size=options.rollout_batch_size,
        temperature=options.temperature,
        deterministic=deterministic,
    )
