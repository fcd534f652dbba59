"""The SearchLM decoder (design page searchlm.md): pre-norm blocks, multi-head latent attention, SiLU-gated MLP, tied head.

Latent attention follows DeepSeek-V2 (arXiv 2405.04434, section 2.1) with three differences: queries are normed per head after
their up-projection, the rope part of the queries comes from the query latent, and content keys are made per key-value head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.deprecation import deprecate_kwarg

from agentic.model.searchlm.configuration import SearchLMConfig


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).type_as(x)


Rope = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, [B, T, R] each."""


def rope_tables(positions: torch.Tensor, size: int, theta: float, like: torch.Tensor) -> Rope:
    """cos and sin of the angles position / theta^(2i / size), the `size` / 2 frequencies twice; positions [B, T]."""
    exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    angles = positions[..., None].float() * (1.0 / theta**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().type_as(like), angles.sin().type_as(like)


def rotate(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotary embedding of the rotate-half kind; x [B, heads, T, R]."""
    cos, sin = (table[:, None] for table in rope)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LatentAttention(nn.Module):
    """MLA. The cache holds the key-value latent and the shared rope key: kv_lora_rank + rope_head_dim numbers a token."""

    def __init__(self, config: SearchLMConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.rope_dim = config.head_dim, config.rope_head_dim
        self.num_key_value_groups = self.heads // self.kv_heads
        self.scaling = (self.head_dim + self.rope_dim) ** -0.5
        self.is_causal = True
        hidden, content = config.hidden_size, self.heads * self.head_dim
        self.q_compress = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_up = nn.Linear(config.q_lora_rank, content, bias=False)
        self.q_rope_proj = nn.Linear(config.q_lora_rank, self.heads * self.rope_dim, bias=False)
        self.kv_compress = nn.Linear(hidden, config.kv_lora_rank, bias=False)
        self.kv_up_k = nn.Linear(config.kv_lora_rank, self.kv_heads * self.head_dim, bias=False)
        self.kv_up_v = nn.Linear(config.kv_lora_rank, self.kv_heads * self.head_dim, bias=False)
        self.k_rope_proj = nn.Linear(hidden, self.rope_dim, bias=False)
        self.o_proj = nn.Linear(content, hidden, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.kv_norm = RMSNorm(config.kv_lora_rank, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, rope: Rope, mask: torch.Tensor | None, cache: Cache | None, **kwargs: Any
    ) -> torch.Tensor:
        """x [B, T, H] -> [B, T, H]."""
        batch, length, _ = x.shape
        latent_q = self.q_compress(x)
        content = self.q_norm(self.q_up(latent_q).view(batch, length, self.heads, self.head_dim)).transpose(1, 2)
        turned = rotate(self.q_rope_proj(latent_q).view(batch, length, self.heads, self.rope_dim).transpose(1, 2), rope)
        latent = self.kv_norm(self.kv_compress(x))[:, None]  # [B, 1, T, kv_lora]
        rope_key = rotate(self.k_rope_proj(x)[:, None], rope)  # [B, 1, T, R]
        if cache is not None:
            latent, rope_key = cache.update(latent, rope_key, self.layer_idx)
        if length == 1 and latent.shape[2] > 1:
            out = self._attend_to_latents(content, turned, latent, rope_key, mask)
        else:
            out = self._attend(content, turned, latent, rope_key, mask, **kwargs)
        return self.o_proj(out.reshape(batch, length, -1))

    def _attend(
        self,
        content: torch.Tensor,
        turned: torch.Tensor,
        latent: torch.Tensor,
        rope_key: torch.Tensor,
        mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Keys and values written out; through transformers' interface, so every attention implementation serves."""
        batch, _, keys, _ = latent.shape
        shape = (batch, keys, self.kv_heads, self.head_dim)
        key = self.kv_up_k(latent[:, 0]).view(shape).transpose(1, 2)
        value = self.kv_up_v(latent[:, 0]).view(shape).transpose(1, 2)
        key = torch.cat((key, rope_key.expand(-1, self.kv_heads, -1, -1)), dim=-1)
        query = torch.cat((content, turned), dim=-1)
        implementation = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        return implementation(self, query, key, value, mask, dropout=0.0, scaling=self.scaling, **kwargs)[0]

    def _attend_to_latents(
        self,
        content: torch.Tensor,
        turned: torch.Tensor,
        latent: torch.Tensor,
        rope_key: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """One query a row: kv_up_k is applied to it and kv_up_v to the result, so no past key or value is written out.

        The same sums in another order: q . (W c) = (W^T q) . c (arXiv 2405.04434, appendix on absorbed projections).
        """
        batch = content.shape[0]
        grouped = (batch, self.kv_heads, self.num_key_value_groups, self.head_dim)
        up_k = self.kv_up_k.weight.view(self.kv_heads, self.head_dim, -1)
        up_v = self.kv_up_v.weight.view(self.kv_heads, self.head_dim, -1)
        query = torch.einsum("bkgd,kdc->bkgc", content[:, :, 0].reshape(grouped), up_k).flatten(
            1, 2
        )  # [B, heads, kv_lora]
        scores = query @ latent[:, 0].transpose(1, 2) + turned[:, :, 0] @ rope_key[:, 0].transpose(1, 2)
        scores = scores.float() * self.scaling  # [B, heads, T]
        if mask is not None:
            seen = mask[:, 0, -1:, : scores.shape[-1]]
            # Finite, so that a padded query, which sees nothing, leaves numbers in the cache: 0 x nan would reach its row.
            low = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(~seen, low) if seen.dtype == torch.bool else (scores + seen).clamp(min=low)
        weights = torch.softmax(scores, dim=-1).type_as(latent)
        mixed = (weights @ latent[:, 0]).view(batch, self.kv_heads, self.num_key_value_groups, -1)
        return torch.einsum("bkgc,kdc->bkgd", mixed, up_v).reshape(batch, 1, -1)


class GroupedAttention(nn.Module):
    """Grouped-query attention with normed queries and keys and rope over the whole head (profiles gqa, mha, mqa)."""

    def __init__(self, config: SearchLMConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.num_key_value_groups = self.heads // self.kv_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, rope: Rope, mask: torch.Tensor | None, cache: Cache | None, **kwargs: Any
    ) -> torch.Tensor:
        """x [B, T, H] -> [B, T, H]."""
        batch, length, _ = x.shape
        query = self.q_norm(self.q_proj(x).view(batch, length, self.heads, -1)).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(batch, length, self.kv_heads, -1)).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        query, key = rotate(query, rope), rotate(key, rope)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        implementation = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        out = implementation(self, query, key, value, mask, dropout=0.0, scaling=self.scaling, **kwargs)[0]
        return self.o_proj(out.reshape(batch, length, -1))


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Written out, softmax in float32: query [B, heads, T, D], key and value [B, kv_heads, S, .] -> [B, T, heads, D_v]."""
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = (query @ key.transpose(2, 3)).float() * scaling
    if mask is not None:
        scores = scores + mask[..., : key.shape[2]]
    weights = torch.softmax(scores, dim=-1).type_as(value)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class GatedMLP(nn.Module):
    def __init__(self, config: SearchLMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config: SearchLMConfig, layer_idx: int) -> None:
        super().__init__()
        attention = LatentAttention if config.attention == "mla" else GroupedAttention
        self.self_attn = attention(config, layer_idx)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, rope: Rope, mask: torch.Tensor | None, cache: Cache | None, **kwargs: Any
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, cache, **kwargs)
        return x + self.mlp(self.post_attention_layernorm(x))


class SearchLMPreTrainedModel(PreTrainedModel):
    config_class = SearchLMConfig
    config: SearchLMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("DecoderLayer",)
    _supports_sdpa = True
    _supports_attention_backend = True


class SearchLMModel(SearchLMPreTrainedModel):
    """Embedding, layers, final norm."""

    def __init__(self, config: SearchLMConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """input_ids [B, T]; attention_mask [B, cached + T], 1 for real tokens (or a 4D mask) -> last_hidden_state [B, T, H].

        Positions count a row's real tokens, so a left-padded row equals the row alone.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            position_ids = self._positions(hidden, attention_mask, cache)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
        )
        size = self.config.rope_head_dim if self.config.attention == "mla" else self.config.head_dim
        rope = rope_tables(position_ids, size, self.config.rope_theta, hidden)
        for layer in self.layers:
            hidden = layer(hidden, rope, mask, cache, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), cache=cache)

    def _positions(
        self, hidden: torch.Tensor, attention_mask: torch.Tensor | None, cache: Cache | None
    ) -> torch.Tensor:
        length = hidden.shape[1]
        if attention_mask is not None and attention_mask.dim() == 2:
            return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
        past = cache.get_seq_length() if cache is not None else 0
        return torch.arange(past, past + length, device=hidden.device)[None]


class SearchLMForCausalLM(SearchLMPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - transformers' own protocol

    def __init__(self, config: SearchLMConfig) -> None:
        super().__init__(config)
        self.model = SearchLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As SearchLMModel.forward, with logits [B, T or logits_to_keep, V]; labels [B, T] are not shifted, -100 ignored."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        hidden = outputs.last_hidden_state[:, logits_to_keep if isinstance(logits_to_keep, torch.Tensor) else kept]
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=outputs.cache)
