"""Attention of rows whose first tokens are held once for many rows: the G samples of a prompt, prompts over one table.

Each row attends to its own keys and to its shared prefix separately, and the two results are joined by their softmax
normalisers (Juravsky et al. 2024, "Hydragen", section 3.1). The prefix is so read once a step and not once a row, which
is most of the time of decoding long prompts on a CPU. Importing this module registers the implementation with
transformers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

NAME = "shared_prefix"
# Plain causal attention with grouped heads; anything else (softcaps, sinks, windows) would be left out silently.
_MODELS = frozenset(("llama", "qwen2", "qwen3", "mistral"))
_REPLACEABLE = frozenset(("sdpa", "packed", NAME))


@dataclass(frozen=True)
class Shared:
    """One prefix of some rows of the batch."""

    rows: torch.Tensor
    """int64 [n]"""
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """(keys, values) of every layer, [kv heads, tokens, width]"""


class _State(threading.local):
    """Of the pass that a thread is in: every policy decodes in a thread of its own."""

    shared: Sequence[Shared] = ()
    mask: torch.Tensor | None = None
    additive: torch.Tensor | None = None


_state = _State()


def supports(model: torch.nn.Module) -> bool:
    """Whether prefixes can be shared in this model's attention. On a CPU only, where it was measured."""
    config: Any = model.config
    on_cpu = next(model.parameters()).device.type == "cpu"
    known = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    plain = config.model_type in _MODELS and config._attn_implementation in _REPLACEABLE
    return on_cpu and known and plain


@contextmanager
def sharing(model: torch.nn.Module, shared: Sequence[Shared]) -> Iterator[None]:
    """Within this context the rows of the model's forward pass see their prefix, too. For one thread a model."""
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    _state.shared = shared
    try:
        yield
    finally:
        config._attn_implementation = before
        _state.shared, _state.mask, _state.additive = (), None, None


def shared_prefix_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, H, L, D], key and value [B, H_kv, T, D] of the rows' own tokens -> [B, L, H, D]."""
    rows, heads, length, width = query.shape
    groups = heads // key.shape[1]
    # Heads that share keys stand as further queries beside one another: no key is copied.
    packed = query.reshape(rows, key.shape[1], groups * length, width)
    out, normaliser = _attend(packed, key, value, _additive(attention_mask, groups, query, key), scaling)
    for one in _state.shared:
        keys, values = one.layers[module.layer_idx]  # type: ignore[index]
        count = len(one.rows)
        asked = packed[one.rows].transpose(0, 1).reshape(1, key.shape[1], count * groups * length, width)
        there, weight = _attend(asked, keys[None], values[None], None, scaling)
        there = there.view(key.shape[1], count, groups * length, width).transpose(0, 1)
        weight = weight.view(key.shape[1], count, groups * length).transpose(0, 1)
        here, own = out[one.rows], normaliser[one.rows]
        share = torch.sigmoid(own - weight)[..., None]  # exp(own) / (exp(own) + exp(weight))
        out[one.rows] = (share * here + (1 - share) * there).to(out.dtype)
    return out.view(rows, heads, length, width).transpose(1, 2).contiguous(), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and, float32 [B, H, L], the logarithm of the softmax's sum (PyTorch's public function keeps it to itself)."""
    out, normaliser = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=mask, scale=scaling
    )
    return out, normaliser


def _additive(mask: torch.Tensor | None, groups: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """The pass's mask as 0 and -inf, [B, 1, groups x L, T]; the same for every layer, so made once."""
    length, columns = query.shape[2], key.shape[2]
    if mask is None:
        if length == 1:
            return None
        mask = torch.ones(1, 1, length, columns, dtype=torch.bool).tril(columns - length)
    elif mask is _state.mask:
        return _state.additive
    if not mask.is_floating_point():
        mask, given = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -torch.inf), mask
    else:
        given = mask
    mask = mask.expand(query.shape[0], 1, length, columns)
    _state.mask, _state.additive = given, mask.repeat(1, 1, groups, 1)
    return _state.additive


AttentionInterface.register(NAME, shared_prefix_attention)
AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
