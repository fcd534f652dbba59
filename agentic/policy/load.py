"""Which policy a command's options ask for."""

from __future__ import annotations

from agentic.policy.base import Policy


def load_policy(
    *,
    model: str | None,
    endpoint: str | None,
    endpoint_model: str = "default",
    tool_mode: str = "text",
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int = 16,
) -> Policy:
    """The endpoint when one is named, otherwise a local model; without either the embedded base with the shipped adapter."""
    if endpoint is not None:
        from agentic.policy.endpoint import EndpointPolicy

        return EndpointPolicy(
            endpoint,
            model=endpoint_model,
            tool_mode="native" if tool_mode == "native" else "text",
            temperature=temperature,
            seed=seed,
            max_concurrency=batch_size,
        )
    from agentic.policy.hf import HFPolicy

    return HFPolicy(model or "default", temperature=temperature, seed=seed, batch_size=batch_size)
