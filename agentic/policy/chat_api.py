"""The chat-completions format: what is sent to an OpenAI-compatible server and what its answers mean. No network here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from agentic.jsonl import dumps, scrub
from agentic.model.chat import tools_text
from agentic.policy.base import Reply
from agentic.policy.replay import assistant_text, call_text, json_object
from agentic.records import Message, ToolFunction
from agentic.tools.base import ToolSpec

ToolMode = Literal["text", "native"]

MESSAGE_CHARS = 400
"""A server's error message is cut here."""


@dataclass(frozen=True)
class Failure:
    """Why there is no Reply."""

    cause: str
    message: str
    retry: bool = True
    retry_after_s: float | None = None
    """What the server asked for, in seconds."""


# ------------------------------------------------------------------------------------ messages to the server


def api_messages(messages: Sequence[Message], tools: Sequence[ToolSpec], tool_mode: ToolMode) -> list[dict[str, Any]]:
    """The conversation as request messages that every server accepts.

    Text mode uses the roles system, user and assistant only: tools stand in the system text, calls in the assistant's,
    results in user messages. Native mode does the same with every call that cannot be told natively (arguments that
    are no JSON object, results that do not match the calls one to one), so one malformed call never spoils the rest.
    """
    sent: list[dict[str, Any]] = []
    if tool_mode == "text" and tools:
        system = messages[0].content if messages and messages[0].role == "system" else ""
        sent.append({"role": "system", "content": "\n".join(filter(None, [system, tools_text(tools)]))})
        messages = messages[1:] if messages and messages[0].role == "system" else messages
    calls = 0
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        if message.role == "assistant" and message.tool_calls:
            results = _results_after(messages, index)
            exchange = _native_exchange(message, results, first=calls) if tool_mode == "native" else None
            calls += len(message.tool_calls)
            if exchange:
                sent += exchange
                index += len(results)
            else:
                sent.append({"role": "assistant", "content": assistant_text(message)})
        elif message.role == "tool":
            _add_user_text(sent, f"<tool_response>\n{message.content}\n</tool_response>")
        elif message.role == "user":
            _add_user_text(sent, message.content)
        else:
            sent.append({"role": message.role, "content": message.content})
    for entry in sent:
        entry["content"] = scrub(entry["content"])  # a lone surrogate could not be sent
    return sent


def _add_user_text(sent: list[dict[str, Any]], text: str) -> None:
    """Neighbouring user texts become one message: many chat templates want the roles to alternate."""
    if sent and sent[-1]["role"] == "user":
        sent[-1]["content"] += "\n" + text
    else:
        sent.append({"role": "user", "content": text})


def _results_after(messages: Sequence[Message], index: int) -> list[Message]:
    results = []
    while index < len(messages) and messages[index].role == "tool":
        results.append(messages[index])
        index += 1
    return results


def _native_exchange(message: Message, results: list[Message], first: int) -> list[dict[str, Any]] | None:
    """The assistant message and its tool messages in native form; None when they cannot be told so.

    Calls without an id are numbered from `first`; results without one belong to the call at the same place.
    """
    calls = message.tool_calls or []
    arguments = [json_object(call.function.arguments) for call in calls]
    ids = [call.id or f"call_{first + place}" for place, call in enumerate(calls)]
    if len(results) != len(calls) or len(set(ids)) != len(ids):
        return None
    answered = [result.tool_call_id or ids[place] for place, result in enumerate(results)]
    if sorted(answered) != sorted(ids) or None in arguments:
        return None
    if not all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call.function.name) for call in calls):
        return None  # servers refuse any other name, even in the history
    entries = [
        # Written anew: strict JSON without lone surrogates, whatever the text in the file looked like.
        {"id": id_, "type": "function", "function": {"name": call.function.name, "arguments": dumps(given)}}
        for id_, call, given in zip(ids, calls, arguments, strict=True)
    ]
    return [
        {"role": "assistant", "content": message.content, "tool_calls": entries},
        *(
            {"role": "tool", "tool_call_id": id_, "content": r.content}
            for id_, r in zip(answered, results, strict=True)
        ),
    ]


# --------------------------------------------------------------------------------- answers from the server


class _Function(BaseModel):
    name: str = ""
    arguments: str | dict[str, Any] | None = None


class _Call(BaseModel):
    function: _Function


class _ChatMessage(BaseModel):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _ChatMessage
    finish_reason: str | None = None


class _Usage(BaseModel):
    completion_tokens: int = 0


class _Completion(BaseModel):
    """What is read of a completion; other fields are the server's business."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


def read_completion(body: str) -> Reply | Failure:
    """The first choice of a successful response's body; anything else than a completion is a failure without retry."""
    try:
        completion = _Completion.model_validate(json.loads(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        return Failure(
            "the server's answer is no chat completion", f"{where}: {first['msg']}; {server_message(body)}", False
        )
    except (ValueError, RecursionError):
        remedy = "; check that the base URL is the API (it often ends in /v1)"
        return Failure("the server's answer is not JSON", server_message(body) + remedy, False)
    choice = completion.choices[0]
    tokens = completion.usage.completion_tokens if completion.usage else 0
    content, calls = choice.message.content, choice.message.tool_calls or []
    if choice.finish_reason == "content_filter":
        return Failure("the server's content filter stopped the answer", content or "no text", False)
    if content is None and not calls and choice.finish_reason != "length":
        return Failure("the server's answer is empty", "neither content nor tool calls", False)
    text = "\n".join(filter(None, [content, *(_reply_call(call.function) for call in calls)]))
    return Reply(text, finish="length" if choice.finish_reason == "length" else "stop", tokens=tokens)


def _reply_call(function: _Function) -> str:
    arguments = function.arguments
    if not isinstance(arguments, str):  # some servers send the object itself, or null for a call without arguments
        arguments = json.dumps(arguments or {})
    return call_text(ToolFunction(name=function.name, arguments=arguments if arguments.strip() else "{}"))


def server_message(body: str) -> str:
    """The one sentence in an error body (JSON of any of the usual shapes, HTML, or text), at most MESSAGE_CHARS."""
    text: Any = body
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        text = re.sub(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>", " ", body)
    else:
        while isinstance(found, dict):
            found = next((found[key] for key in ("error", "message", "detail") if found.get(key)), None)
        text = found if isinstance(found, str) else body
    text = " ".join(text.split())
    return (text[:MESSAGE_CHARS] + " ..." if len(text) > MESSAGE_CHARS else text) or "the server gave no message"
