"""SearchLM: the specified 300M decoder with multi-head latent attention, as an ordinary transformers model.

Names are loaded on first use: the package imports torch and transformers only when a model is needed.
"""

from __future__ import annotations


def register() -> None:
    """Make AutoConfig and AutoModelForCausalLM know model_type "searchlm". Needs the extra train; may be called again."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from agentic.model.searchlm.configuration import SearchLMConfig
    from agentic.model.searchlm.modeling import SearchLMForCausalLM

    AutoConfig.register(SearchLMConfig.model_type, SearchLMConfig, exist_ok=True)
    AutoModelForCausalLM.register(SearchLMConfig, SearchLMForCausalLM, exist_ok=True)
