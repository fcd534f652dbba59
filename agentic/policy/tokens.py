"""Token in, token out: what every policy over token ids has in common, however it samples.

The conversation's stream only ever grows: a prompt is exactly the ids so far and what the renderer puts behind them, and
sampled ids enter the stream as they were sampled. Nothing is decoded and encoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentic.model.chat import Renderer
from agentic.policy.base import Conversation, Reply

if TYPE_CHECKING:
    from agentic.policy.generate import Generation


class TokenPolicy:
    """A Policy whose subclass samples ids in `generate`."""

    name: str
    version: str
    renderer: Renderer
    max_context: int | None
    """Positions of the model; None: unknown."""

    async def generate(self, prompt: list[int], budget: int, key: str) -> Generation:
        """Sample at most `budget` ids behind `prompt`. `key` names the request: same key, same stream of random numbers.

        RuntimeError is a failure of the sampler and becomes Reply.error.
        """
        raise NotImplementedError

    async def act(self, conversation: Conversation, max_new_tokens: int) -> Reply:
        """Sample the next turn; the conversation's token stream grows by what was rendered and what was sampled.

        After an error or a cancellation the stream is as it was before. A context that is full is Reply.error.
        """
        first = not conversation.prompt_ids
        if first:
            rendered = self.renderer.prompt_ids(conversation.messages, conversation.tools)
        else:
            rendered = self._between(conversation)
        prompt = conversation.prompt_ids + conversation.completion_ids + rendered
        limit = self.max_context
        if limit is not None and len(prompt) >= limit:
            return Reply(
                "", "error", error=f"the conversation has {len(prompt)} tokens, the model's context is {limit}"
            )
        key = f"{conversation.task_id}/{conversation.sample}/{len(prompt)}"
        try:
            generation = await self.generate(prompt, max(1, max_new_tokens), key)
        except RuntimeError as error:  # torch's out-of-memory and numeric errors, a server's, or a closed policy
            return Reply("", "error", error=first_line(error))
        if first:
            conversation.prompt_ids = rendered
        else:
            _extend(conversation, rendered, [0.0] * len(rendered), 0)
        _extend(conversation, generation.ids, generation.logprobs, 1)
        # The environment appends what was just written as the next message.
        conversation.rendered = len(conversation.messages) + 1
        return Reply(self.renderer.decode(generation.ids), generation.stop_reason, len(generation.ids))

    async def close(self) -> None:
        """Let go of what the sampler holds."""

    def _between(self, conversation: Conversation) -> list[int]:
        """Ids from the end of the last turn to the next generation prompt."""
        ids = self.renderer.continuation_ids(conversation.messages, conversation.rendered, conversation.tools)
        # A turn that was cut by its budget gets the end token it lacks; it was not sampled, so it is not trained.
        cut = conversation.completion_ids[-1] not in self.renderer.end_ids
        return [self.renderer.end_ids[0], *ids] if cut else ids


def _extend(conversation: Conversation, ids: list[int], logprobs: list[float], mask: int) -> None:
    conversation.completion_ids.extend(ids)
    conversation.mask.extend([mask] * len(ids))
    conversation.logprobs.extend(logprobs)
    lengths = {len(conversation.completion_ids), len(conversation.mask), len(conversation.logprobs)}
    assert len(lengths) == 1, f"token stream out of step: {lengths}"


def first_line(error: Exception) -> str:
    """The first line of what an exception says; its name when it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
