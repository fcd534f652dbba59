"""Which policy a command's options ask for."""

from __future__ import annotations

from agentic.errors import UserError
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
    """The endpoint when one is named, otherwise a local model; without either the embedded base with the shipped adapter.

    Raises UserError for both at once, a URL that cannot be used, or a model that cannot be loaded.
    """
    if endpoint is not None and model is not None:
        raise UserError("choose one of --model and --endpoint (the name sent to an endpoint is --endpoint_model)")
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
