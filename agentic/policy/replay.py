"""A policy that plays scripted texts: gold trajectories, deliberate mistakes, hostile turns. Most tests use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from agentic.policy.base import Conversation, Reply
from agentic.records import Message, Task, ToolFunction
from agentic.tools.parse import render_call

Scripts = Mapping[str, Sequence[str]] | Callable[[Conversation], str]


class ReplayPolicy:
    """Turn n of an episode gets text n of the task's script; after the last one, or without a script, an empty text.

    A callable is asked for every turn instead and sees the whole conversation. The turn is counted from the
    conversation, so one policy serves any number of interleaved episodes and samples.
    """

    version = "0"

    def __init__(self, scripts: Scripts, name: str = "replay") -> None:
        self.name = name
        self._scripts = scripts

    @classmethod
    def oracle(cls, tasks: Iterable[Task]) -> Self:
        """Plays each task's expert trajectory; a task without one is answered at once with its gold answer."""
        scripts = {}
        for task in tasks:
            texts = [assistant_text(message) for message in task.expert_trajectory if message.role == "assistant"]
            scripts[task.id] = texts or [task.answer]
        return cls(scripts, name="oracle")

    @classmethod
    def empty(cls) -> Self:
        """Says nothing, ever: the floor of every metric."""
        return cls({}, name="empty")

    async def act(self, conversation: Conversation, max_new_tokens: int) -> Reply:
        """The scripted text, whole: it was written beforehand, so the token budget does not cut it."""
        if callable(self._scripts):
            return Reply(self._scripts(conversation))
        script = self._scripts.get(conversation.task_id, ())
        turn = sum(message.role == "assistant" for message in conversation.messages)
        return Reply(script[turn] if turn < len(script) else "")

    async def close(self) -> None:
        """Nothing is held."""


def assistant_text(message: Message) -> str:
    """An assistant message as the model writes it: the content, then each call as <tool_call> text on its own line."""
    calls = [call_text(call.function) for call in message.tool_calls or ()]
    return "\n".join([message.content, *calls] if message.content else calls)


def call_text(function: ToolFunction) -> str:
    """<tool_call> text of a call. Arguments that are no JSON object stand in it as they are, for the parser to flag."""
    arguments = json_object(function.arguments)
    if arguments is not None:
        return render_call(function.name, arguments)
    name = json.dumps(function.name, ensure_ascii=False)
    return f'<tool_call>{{"name": {name}, "arguments": {function.arguments}}}</tool_call>'


def json_object(text: str) -> dict[str, Any] | None:
    """The object that strict JSON `text` holds; None for broken JSON, NaN, numbers out of range, or another type."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
