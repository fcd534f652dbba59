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
    """Kept keys and values: those of `base` for the first `shared` tokens, its own for the others."""

    ids: np.ndarray
    """int64 [tokens]"""
    layers: KeyValues
    """Tensors [heads, tokens - shared, width]."""
    base: Past | None = None
    shared: int = 0

    @property
    def size(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for pair in self.layers for tensor in pair)


@dataclass(frozen=True)
class Start:
    """Where the computation of a prompt starts: `shared` tokens stay in `base`, which many rows read; those up to
    `length` are copied from `past`."""

    base: Past | None = None
    shared: int = 0
    past: Past | None = None
    length: int = 0

    @property
    def copied(self) -> int:
        return self.length - self.shared


class Pasts:
    """Keys and values of finished rows, and of prefixes that rows share, least recently used first, bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.entries: list[Past] = []
        self.bases: list[Past] = []

    def longest(self, ids: Sequence[int]) -> Start:
        """What is kept of the longest prefix of `ids`, of at most len(ids) - 1 tokens."""
        wanted = np.asarray(ids[:-1], dtype=np.int64)
        best = Start()
        for base in self.bases:
            if (n := common(base.ids, wanted)) > best.length:
                best = Start(base, n, None, n)
        for entry in self.entries:
            if (n := common(entry.ids, wanted)) > max(best.length, entry.shared):
                best = Start(entry.base, entry.shared, entry, n)
        for used, held in ((best.past, self.entries), (best.base, self.bases)):
            if used is not None and used in held:
                held.remove(used)
                held.append(used)
        return best

    def add(self, ids: Sequence[int], layers: KeyValues, base: Past | None = None, shared: int = 0) -> None:
        """Keep a row. An entry that it extends goes: it holds nothing that the new one does not."""
        past = Past(np.asarray(ids, dtype=np.int64), layers, base, shared)
        self.entries = [
            e for e in self.entries if (e.base, e.shared) != (base, shared) or common(e.ids, past.ids) < len(e.ids)
        ]
        self.entries.append(past)
        self._evict()

    def add_base(self, ids: Sequence[int], layers: KeyValues) -> Past:
        """Keep a prefix that several rows share."""
        base = Past(np.asarray(ids, dtype=np.int64), layers)
        self.bases.append(base)
        self._evict()
        return base

    def clear(self) -> None:
        self.entries.clear()
        self.bases.clear()

    def _evict(self) -> None:
        held = sum(past.size for past in (*self.entries, *self.bases))
        while held > self.max_bytes:
            held -= (self.entries or self.bases).pop(0).size


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def plain(cache: Cache) -> list[GrowingLayer]:
    """The layers of a cache that this module built."""
    return [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]


def gather(starts: list[Start], number: int, part: int, columns: int) -> torch.Tensor:
    """Keys (part 0) or values (part 1) of one layer that rows copy, left-padded: [rows, heads, columns, width]."""
    sample = next(start.past for start in starts if start.past is not None).layers[number][part]
    out = sample.new_zeros((len(starts), sample.shape[0], columns, sample.shape[-1]))
    for row, start in enumerate(starts):
        if start.past is not None:
            out[row, :, columns - start.copied :] = start.past.layers[number][part][:, : start.copied]
    return out


def stack(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows of a above rows of b, [..., columns, width], the narrower one padded on the left with zeros."""
    columns = max(a.shape[-2], b.shape[-2])
    out = a.new_zeros((a.shape[0] + b.shape[0], *a.shape[1:-2], columns, a.shape[-1]))
    out[: a.shape[0], ..., columns - a.shape[-2] :, :] = a
    out[a.shape[0] :, ..., columns - b.shape[-2] :, :] = b
    return out
