"""Configuration and profiles of SearchLM."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from agentic.errors import UserError

ATTENTIONS = ("mla", "gqa", "mha", "mqa")

PROFILES: dict[str, dict[str, Any]] = {
    "SearchLM-100M": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "attention": "gqa",
        "intermediate_size": 2432,
    },
    "SearchLM-300M": {},
    "SearchLM-500M": {
        "hidden_size": 1280,
        "num_hidden_layers": 28,
        "num_attention_heads": 10,
        "num_key_value_heads": 5,
        "intermediate_size": 4096,
        "kv_lora_rank": 256,
        "q_lora_rank": 512,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 160,
        "kv_lora_rank": 24,
        "q_lora_rank": 32,
        "rope_head_dim": 8,
        "max_position_embeddings": 4096,
    },
}
"""Differences from the defaults below, which are those of SearchLM-300M. `tiny` is for tests."""

TRAINING_LENGTH = {"SearchLM-100M": 1024, "SearchLM-300M": 1536, "SearchLM-500M": 2048, "tiny": 1024}
"""Tokens of a training example, by profile."""


class SearchLMConfig(PreTrainedConfig):
    """Defaults: SearchLM-300M. Sizes are numbers of features; `rope_head_dim` counts for mla only (otherwise rope covers the
    whole head)."""

    model_type = "searchlm"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]

    def __init__(
        self,
        vocab_size: int = 6400,
        hidden_size: int = 1024,
        num_hidden_layers: int = 24,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 4,
        attention: str = "mla",
        intermediate_size: int = 3264,
        kv_lora_rank: int = 192,
        q_lora_rank: int = 384,
        rope_head_dim: int = 64,
        rope_theta: float = 1e6,
        rms_norm_eps: float = 1e-6,
        max_position_embeddings: int = 32768,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        bos_token_id: int = 1,
        eos_token_id: int = 2,
        pad_token_id: int = 0,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        if attention not in ATTENTIONS:
            raise UserError(f"attention {attention!r}: choose one of {', '.join(ATTENTIONS)}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = {"mha": num_attention_heads, "mqa": 1}.get(attention, num_key_value_heads)
        self.attention = attention
        self.intermediate_size = intermediate_size
        self.kv_lora_rank = kv_lora_rank
        self.q_lora_rank = q_lora_rank
        self.rope_head_dim = rope_head_dim
        self.rope_theta = rope_theta
        self.rms_norm_eps = rms_norm_eps
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        super().__init__(
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )

    @property
    def head_dim(self) -> int:
        """Features of one head's content part."""
        return self.hidden_size // self.num_attention_heads

    @property
    def suffix(self) -> str:
        """What the original code base appends to the names of weight files."""
        return "" if self.attention == "gqa" else f"_{self.attention}"


def profile_config(profile: str, **changes: Any) -> SearchLMConfig:
    """The configuration of a profile. Raises UserError for an unknown one."""
    if profile not in PROFILES:
        raise UserError(f"model profile {profile!r}: choose one of {', '.join(PROFILES)}")
    return SearchLMConfig(**{**PROFILES[profile], **changes})


def fitted_config(profile: str, tokens: int, **changes: Any) -> SearchLMConfig:
    """`profile_config` with room for a tokenizer of `tokens` entries; `tiny` has exactly as many."""
    about = profile_config(profile, **changes)
    if tokens > about.vocab_size or profile == "tiny":
        about.vocab_size = tokens
    return about
