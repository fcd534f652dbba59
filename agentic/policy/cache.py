"""Keys and values of a running batch, and those of finished rows kept for reuse (see generate.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

KeyValues = list[tuple[torch.Tensor, torch.Tensor]]
"""One (keys, values) per layer."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer [rows, heads, columns, width] that writes into spare columns, not copying itself every step."""

    SPARE = 64

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def replace(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self.keys, self.values, self._buffers = keys, values, None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        new = old + key_states.shape[-2]
        if self._buffers is None or new > self._buffers[0].shape[-2]:
            grown = []
            for held, states in ((self.keys, key_states), (self.values, value_states)):
                buffer = states.new_zeros((*states.shape[:-2], new + self.SPARE, states.shape[-1]))
                if old:
                    buffer[..., :old, :] = held
                grown.append(buffer)
            self._buffers = (grown[0], grown[1])
        keys, values = self._buffers
        keys[..., old:new, :] = key_states
        values[..., old:new, :] = value_states
        self.keys, self.values = keys[..., :new, :], values[..., :new, :]
        return self.keys, self.values


@dataclass(eq=False)
class Past:
    ids: np.ndarray
    """int64 [tokens]"""
    layers: KeyValues
    """Tensors [heads, tokens, width]."""

    @property
    def size(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for pair in self.layers for tensor in pair)


class Pasts:
    """Keys and values of finished rows, least recently used first, bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.entries: list[Past] = []

    def longest(self, ids: Sequence[int]) -> tuple[Past | None, int]:
        """The entry that shares the longest prefix with `ids`, and its length (at most len(ids) - 1)."""
        wanted = np.asarray(ids[:-1], dtype=np.int64)
        best, length = None, 0
        for entry in self.entries:
            if (shared := common(entry.ids, wanted)) > length:
                best, length = entry, shared
        if best is not None:
            self.entries.remove(best)
            self.entries.append(best)
        return best, length

    def add(self, ids: Sequence[int], layers: KeyValues) -> None:
        past = Past(np.asarray(ids, dtype=np.int64), layers)
        # An entry that the new one extends holds nothing that the new one does not.
        self.entries = [e for e in self.entries if common(e.ids, past.ids) < len(e.ids)]
        self.entries.append(past)
        while self.entries and sum(entry.size for entry in self.entries) > self.max_bytes:
            self.entries.pop(0)


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def plain(cache: Cache) -> list[GrowingLayer]:
    """The layers of a cache that this module built."""
    return [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]


def gather(starts: list[tuple[Past | None, int]], number: int, part: int, columns: int) -> torch.Tensor:
    """Keys (part 0) or values (part 1) of one layer for all rows, left-padded: [rows, heads, columns, width]."""
    sample = next(past for past, _ in starts if past is not None).layers[number][part]
    out = sample.new_zeros((len(starts), sample.shape[0], columns, sample.shape[-1]))
    for row, (past, start) in enumerate(starts):
        if past is not None:
            out[row, :, columns - start :] = past.layers[number][part][:, :start]
    return out


def stack(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows of a above rows of b, [..., columns, width], the narrower one padded on the left with zeros."""
    columns = max(a.shape[-2], b.shape[-2])
    out = a.new_zeros((a.shape[0] + b.shape[0], *a.shape[1:-2], columns, a.shape[-1]))
    out[: a.shape[0], ..., columns - a.shape[-2] :, :] = a
    out[a.shape[0] :, ..., columns - b.shape[-2] :, :] = b
    return out
