"""Attention over packed rows without a dense mask.

A row holds segments that see only a shared prefix and themselves (train/packing.py). With a dense mask attention
costs the square of the row; here each segment attends to its own keys alone, so long rows cost no more than short ones.
Importing this module registers the implementation `packed` with transformers; outside a `layout` it is plain SDPA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

NAME = "packed"


@dataclass(frozen=True)
class Segment:
    """Tokens [start, end) of a row; they see [prefix_start, prefix_end) and, causally, themselves."""

    prefix_start: int
    prefix_end: int
    start: int
    end: int


Layout = Sequence[Sequence[Segment]]
_layout: Layout | None = None


@contextmanager
def layout(rows: Layout) -> Iterator[None]:
    """Within this context the attention of every layer follows `rows` (one list of segments a row, in order)."""
    global _layout
    before, _layout = _layout, rows
    try:
        yield
    finally:
        _layout = before


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, H, L, D], key and value [B, H_kv, L, D] -> [B, L, H, D]. Padding after the last segment gives zeros."""
    if _layout is None:
        result, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result, None
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    rows = [
        _row(query[b : b + 1], key[b : b + 1], value[b : b + 1], segments, scaling)
        for b, segments in enumerate(_layout)
    ]
    return torch.cat(rows).transpose(1, 2).contiguous(), None


def _row(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Sequence[Segment], scaling: float | None
) -> torch.Tensor:
    pieces = []
    for one in segments:
        q = query[:, :, one.start : one.end]
        k, v = key[:, :, one.start : one.end], value[:, :, one.start : one.end]
        shared = one.prefix_end - one.prefix_start
        if shared == 0:
            pieces.append(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling))
            continue
        k = torch.cat([key[:, :, one.prefix_start : one.prefix_end], k], dim=2)
        v = torch.cat([value[:, :, one.prefix_start : one.prefix_end], v], dim=2)
        own = one.end - one.start
        mask = torch.ones(own, shared + own, dtype=torch.bool, device=q.device).tril(diagonal=shared)
        pieces.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling))
    end = segments[-1].end if segments else 0
    if end < query.shape[2]:
        pieces.append(value.new_zeros(*query.shape[:2], query.shape[2] - end, value.shape[3]))
    return torch.cat(pieces, dim=2)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
