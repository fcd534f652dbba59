"""The seam between whatever writes turns and the environment that runs them.

A policy gets a Conversation and returns a Reply. Token policies (hf) keep the exact ids they saw and sampled in the
Conversation, so that training sees the same tokens (token in, token out); text policies leave the id lists empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentic.records import Message
from agentic.tools.base import ToolSpec


@dataclass
class Conversation:
    """One episode's messages and, for token policies, its token stream so far."""

    messages: list[Message]
    """System, user, then assistant and tool messages in order. Assistant messages whose call parsed strictly hold it in
    `tool_calls`; any other assistant text stands in `content` exactly as written."""
    tools: list[ToolSpec]
    task_id: str = ""
    sample: int = 0
    prompt_ids: list[int] = field(default_factory=list)
    """Ids of the first prompt (up to and including the generation prompt of the first assistant turn)."""
    completion_ids: list[int] = field(default_factory=list)
    """Everything after prompt_ids: sampled turns and the rendered text between them."""
    mask: list[int] = field(default_factory=list)
    """1 where the policy sampled the token; same length as completion_ids."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each sampled token (0.0 where mask is 0); same length as completion_ids."""
    rendered: int = 0
    """How many of `messages` are already in the token stream."""


@dataclass
class Reply:
    """One assistant message as written."""

    text: str
    """The text with end-of-turn markers removed. Calls of native-tool servers are rendered as <tool_call> text."""
    finish: Literal["stop", "length", "error"] = "stop"
    """length: cut by the token budget, must not be completed or run. error: see `error`."""
    tokens: int = 0
    """Generated tokens."""
    error: str | None = None
    """finish="error": the cause after all retries, with status code where there was one."""


class Policy(Protocol):
    """Anything that writes assistant turns."""

    name: str
    """Shown in results: model folder, endpoint model, "replay"."""
    version: str
    """Changes whenever the weights change."""

    async def act(self, conversation: Conversation, max_new_tokens: int) -> Reply:
        """Write the next assistant turn. Never raises for what a model or server does: that is Reply.error."""
        ...

    async def close(self) -> None: ...
