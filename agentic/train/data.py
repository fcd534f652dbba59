"""Read SFT files: `messages` + `tools`, the specified `conversations` form, and sharegpt's from/value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentic.errors import UserError
from agentic.jsonl import iter_rows
from agentic.records import Message, ToolCall, ToolFunction
from agentic.tools.base import ToolSpec

_KNOWN = {"id", "messages", "conversations", "tools", "system"}
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}


@dataclass(frozen=True)
class Example:
    """One conversation to train on."""

    messages: list[Message]
    tools: list[ToolSpec]
    id: str
    path: Path
    line: int
    dropped: list[str] = field(default_factory=list)
    """Fields of the row (`name`) or of its messages (`messages.name`) that training does not use."""
    nulls: int = 0
    """Keys whose value is null, as Arrow pads them; treated as absent."""

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


def read_conversations(path: str | Path) -> Iterator[Example]:
    """Yield the examples of one JSONL file; the form is told from each row.

    Raises UserError that names file and line for a row in no known form, and at the end for a file without rows.
    """
    path = Path(path)
    count = 0
    for line, row in iter_rows(path):
        count += 1
        try:
            yield _example(path, line, row)
        except UserError as error:
            raise UserError(f"{path}, line {line}: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UserError(f"{path}, line {line}: field {where}: {first['msg']}") from None
    if not count:
        raise UserError(f"{path}: no examples; write them with `agentic dataset`")


def _example(path: Path, line: int, row: dict[str, Any]) -> Example:
    row, nulls = _without_nulls(row)
    dropped = sorted(set(row) - _KNOWN)
    if "messages" in row:
        messages, ignored = _from_messages(_list(row["messages"], "messages"))
        tools = _tools(row.get("tools"))
    elif "conversations" in row:
        turns = _list(row["conversations"], "conversations")
        if turns and isinstance(turns[0], dict) and "from" in turns[0]:
            messages, tools, ignored = _from_sharegpt(turns, row)
        else:
            messages, tools, ignored = _from_conversations(turns)
    else:
        raise UserError("neither `messages` nor `conversations`; see `agentic dataset --help` for the forms")
    if not any(message.role == "assistant" for message in messages):
        raise UserError("no assistant message, so nothing to train on; remove the row")
    for number, message in enumerate(messages):
        for call in message.tool_calls or []:
            _check_arguments(call, number)
    return Example(
        messages, tools, str(row.get("id", f"{path.stem}-{line}")), path, line, dropped + sorted(ignored), nulls
    )


def _from_messages(rows: list[Any]) -> tuple[list[Message], set[str]]:
    messages: list[Message] = []
    ignored: set[str] = set()
    for number, value in enumerate(rows):
        row = _object(value, f"messages[{number}]")
        known, unknown = _split(row, set(Message.model_fields))
        ignored |= {f"messages.{name}" for name in unknown}
        if isinstance(known.get("tool_calls"), list):
            known["tool_calls"] = [_call(call) for call in known["tool_calls"]] or None
        messages.append(Message.model_validate(known))
    return messages, ignored


def _from_conversations(rows: list[Any]) -> tuple[list[Message], list[ToolSpec], set[str]]:
    """The specified form: every field a string; tools JSON on the system message, tool_calls JSON on assistant ones."""
    messages: list[Message] = []
    tools: list[ToolSpec] = []
    ignored: set[str] = set()
    for number, value in enumerate(rows):
        row = _object(value, f"conversations[{number}]")
        known, unknown = _split(row, {"role", "content", "reasoning_content", "tools", "tool_calls", "weight"})
        ignored |= {f"conversations.{name}" for name in unknown}
        if known.get("tools"):
            tools = _tools(known["tools"])
        content = str(known.get("content", ""))
        if known.get("reasoning_content"):
            content = f"<think>\n{known['reasoning_content']}\n</think>\n\n{content}"
        calls = [_call(call) for call in _json_list(known.get("tool_calls"), f"conversations[{number}].tool_calls")]
        messages.append(
            Message.model_validate(
                {
                    "role": known.get("role"),
                    "content": content,
                    "tool_calls": calls or None,
                    "weight": known.get("weight"),
                }
            )
        )
    return messages, tools, ignored


def _from_sharegpt(rows: list[Any], parent: dict[str, Any]) -> tuple[list[Message], list[ToolSpec], set[str]]:
    messages = [Message(role="system", content=str(parent["system"]))] if parent.get("system") else []
    ignored: set[str] = set()
    for number, value in enumerate(rows):
        row = _object(value, f"conversations[{number}]")
        known, unknown = _split(row, {"from", "value", "weight"})
        ignored |= {f"conversations.{name}" for name in unknown}
        role = _SHAREGPT_ROLES.get(str(known.get("from")))
        if role is None:
            raise UserError(
                f"conversations[{number}].from: {known.get('from')!r} is none of {', '.join(_SHAREGPT_ROLES)}"
            )
        text = str(known.get("value", ""))
        fields: dict[str, Any] = {"role": role, "content": text, "weight": known.get("weight")}
        if known["from"] == "function_call":
            fields |= {
                "content": "",
                "tool_calls": [_call(call) for call in _json_list(text, f"conversations[{number}].value")],
            }
        messages.append(Message.model_validate(fields))
    return messages, _tools(parent.get("tools")), ignored


def _call(value: Any) -> dict[str, Any]:
    """A call in OpenAI form, from that form or from {name, arguments}; arguments become JSON text."""
    row = _object(value, "tool call")
    function = _object(row.get("function", row), "tool call function")
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    call = ToolCall(
        id=row.get("id"), function=ToolFunction.model_validate({"name": function.get("name"), "arguments": arguments})
    )
    return call.model_dump()


def _check_arguments(call: ToolCall, number: int) -> None:
    where = f"message {number}, call of {call.function.name}: arguments"
    try:
        value = json.loads(call.function.arguments)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} are broken JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a JSON object, found {type(value).__name__}")


def _tools(value: Any) -> list[ToolSpec]:
    """Tool specs from OpenAI schemas (a list, or its JSON text)."""
    specs: list[ToolSpec] = []
    for item in _json_list(value, "tools"):
        row = _object(item, "tools entry")
        function = _object(row.get("function", row), "tools entry")
        if not function.get("name"):
            raise UserError("a tools entry has no name")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        specs.append(ToolSpec(str(function["name"]), str(function.get("description", "")), parameters))
    return specs


def _json_list(value: Any, name: str) -> list[Any]:
    """A list, from itself, from JSON text, or from one object; nothing gives an empty list."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise UserError(f"{name}: broken JSON text ({error.msg})") from None
    if isinstance(value, dict):
        return [value]
    return _list(value if value is not None else [], name)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{name}: expected a list, found {type(value).__name__}")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{name}: expected an object, found {type(value).__name__}")
    return value


def _split(row: dict[str, Any], names: Iterable[str]) -> tuple[dict[str, Any], set[str]]:
    names = set(names)
    return {name: value for name, value in row.items() if name in names}, set(row) - names


def _without_nulls(value: Any) -> tuple[Any, int]:
    """`value` without null entries of objects, and how many there were."""
    count = 0
    if isinstance(value, dict):
        kept = {}
        for key, item in value.items():
            if item is None:
                count += 1
            else:
                kept[key], inner = _without_nulls(item)
                count += inner
        return kept, count
    if isinstance(value, list):
        pairs = [_without_nulls(item) for item in value]
        return [item for item, _ in pairs], sum(inner for _, inner in pairs)
    return value, 0
