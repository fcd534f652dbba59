"""SFT data on disk: what an example is, and one reader for every form that agentic/dataset.py writes.

    messages       {"id", "messages": [OpenAI messages], "tools": JSON text}   TRL, LLaMA-Factory, ms-swift
    conversations  {"conversations": [{role, content, reasoning_content, tools, tool_calls}]}, every value a string
    sharegpt       {"conversations": [{from, value}], "system", "tools": JSON text}
    verl           {data_source, prompt, ability, reward_model, extra_info}: prompts for RL, not SFT examples

Arrow pads dicts of a column with null keys until all have the same ones, so whatever differs from row to row
(arguments, schemas) is JSON text on disk, and the reader drops the nulls it meets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentic import jsonl
from agentic.errors import UserError
from agentic.records import Message, ToolCall, ToolFunction
from agentic.tools.base import ToolSpec

Row = dict[str, Any]

_Role = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, _Role | Literal["call"]] = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
    "function_call": "call", "tool_call": "call", "observation": "tool", "tool": "tool", "tool_response": "tool",
    "function_response": "tool", "model": "assistant",
}  # fmt: skip
_MESSAGE_FIELDS = {"role", "content", "reasoning_content", "tool_calls", "tools", "name", "tool_call_id", "weight"}
_CALL_FIELDS = {"type", "id", "function", "index"}
_ROW_FIELDS = {
    "messages": {"id", "messages", "tools"},
    "conversations": {"id", "conversations", "tools"},
    "sharegpt": {"id", "conversations", "system", "tools"},
}
# Reasoning in front of an answer, in Qwen's layout, with everything that follows.
THINK = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One conversation to learn from."""

    id: str
    messages: list[Message]
    tools: list[ToolSpec]


@dataclass(frozen=True)
class Parsed:
    """A row as read, with what was left behind on the way."""

    example: Example
    form: str
    where: str
    """File and line, to open a message about the row."""
    dropped: list[str] = field(default_factory=list)
    """Fields that no form knows, as paths ("messages.score")."""
    nulls: int = 0
    """Null values inside messages, arguments and schemas: the mark of Arrow's padding."""


def iter_examples(path: str | Path) -> Iterator[Parsed]:
    """Every example of an SFT file in any form, with what its row lost.

    Raises UserError with file and line for a row that is none, and for a file without rows.
    """
    empty = True
    for number, row in jsonl.iter_rows(path):
        yield parse_row(row, f"{path}, line {number}")
        empty = False
    if empty:
        raise UserError(f"{path}: holds no rows; write some with: agentic dataset --input FILE ...")


def row_form(row: Row, where: str) -> str:
    """Name of the form of a row. Raises UserError, with the way out, for rows that are no SFT example."""
    if "messages" in row:
        return "messages"
    if "conversations" in row:
        turns = row["conversations"]
        sharegpt = isinstance(turns, list) and bool(turns) and isinstance(turns[0], dict) and "from" in turns[0]
        return "sharegpt" if sharegpt else "conversations"
    if "expert_trajectory" in row or "question" in row:
        raise UserError(f"{where}: a task, not an SFT example; make examples with: agentic dataset --input FILE ...")
    if "data_source" in row and "prompt" in row:
        raise UserError(f"{where}: a verl row holds a prompt without its answer; write --format messages for SFT")
    raise UserError(f"{where}: expected a field 'messages' or 'conversations', found {', '.join(row) or 'nothing'}")


def parse_row(row: Row, where: str) -> Parsed:
    """Read one row of any form; `where` ("file, line n") opens every error."""
    form = row_form(row, where)
    reader = _Reader(where)
    turns = row["messages" if form == "messages" else "conversations"]
    if not isinstance(turns, list) or not turns:
        raise UserError(f"{where}: the list of turns is empty or no list")
    raw_tools = row.get("tools")
    messages: list[Message] = []
    if form == "sharegpt" and row.get("system"):
        messages.append(Message(role="system", content=reader.text(row["system"], "system")))
    for position, turn in enumerate(turns):
        path = f"turn {position + 1}"
        if not isinstance(turn, dict):
            raise UserError(f"{where}: {path} is no object")
        messages.append(reader.sharegpt_turn(turn, path) if form == "sharegpt" else reader.turn(turn, path))
        raw_tools = raw_tools or turn.get("tools")
    if all(message.role != "assistant" for message in messages):
        raise UserError(f"{where}: no assistant turn, so there is nothing to learn")
    if form != "messages":
        _name_results(messages)
    tools = reader.tools(raw_tools)
    dropped = [name for name, value in row.items() if name not in _ROW_FIELDS[form] and value not in (None, "")]
    example = Example(str(row.get("id") or where), messages, tools)
    return Parsed(example, form, where, sorted({*dropped, *reader.dropped}), reader.nulls)


def _name_results(messages: list[Message]) -> None:
    """Tool results of forms without names answer the calls of the turn before them, in order."""
    names: list[str] = []
    for position, message in enumerate(messages):
        if message.role != "tool":
            names = [call.function.name for call in message.tool_calls or []]
        elif names:
            name = names.pop(0)
            if message.name is None:
                messages[position] = message.model_copy(update={"name": name})


@dataclass
class _Reader:
    """Reads the parts of one row, counting what it leaves behind."""

    where: str
    dropped: set[str] = field(default_factory=set)
    nulls: int = 0

    def fail(self, path: str, problem: str) -> UserError:
        return UserError(f"{self.where}: {path}: {problem}")

    def turn(self, turn: Row, path: str) -> Message:
        role = _ROLES.get(str(turn.get("role")))
        if role is None or role == "call":
            raise self.fail(path, f"role {turn.get('role')!r} is none of system, user, assistant, tool")
        self.note(turn, _MESSAGE_FIELDS, "messages")
        content = self.text(turn.get("content"), path)
        thought = turn.get("reasoning_content")
        if thought:
            content = f"<think>\n{self.text(thought, path)}\n</think>\n\n{content}"
        calls = self.calls(turn.get("tool_calls"), path)
        if calls and role != "assistant":
            raise self.fail(path, f"tool_calls on a {role} message")
        return Message(
            role=role,
            content=content,
            tool_calls=calls or None,
            name=self.text(turn.get("name"), path) or None,
            tool_call_id=self.text(turn.get("tool_call_id"), path) or None,
            weight=self.weight(turn, path),
        )

    def sharegpt_turn(self, turn: Row, path: str) -> Message:
        role = _ROLES.get(str(turn.get("from")))
        if role is None:
            known = "human, gpt, function_call, observation, system"
            raise self.fail(path, f"'from' is {turn.get('from')!r}, expected one of {known}")
        self.note(turn, {"from", "value", "weight"}, "conversations")
        value, weight = self.text(turn.get("value"), path), self.weight(turn, path)
        if role != "call":
            return Message(role=role, content=value, weight=weight)
        match = THINK.match(value)
        thought = match[0] if match else ""
        calls = self.calls(value[len(thought) :], path)
        if not calls:
            raise self.fail(path, "function_call without a call")
        return Message(role="assistant", content=thought, tool_calls=calls, weight=weight)

    def note(self, turn: Row, known: set[str], prefix: str) -> None:
        self.nulls += sum(value is None for value in turn.values())
        self.dropped |= {f"{prefix}.{name}" for name, value in turn.items() if name not in known and value is not None}

    def weight(self, turn: Row, path: str) -> int | None:
        weight = turn.get("weight")
        if weight not in (None, 0, 1):
            raise self.fail(path, f"weight {weight!r}; 0 keeps a turn out of the loss, 1 or nothing trains it")
        return None if weight is None else int(weight)

    def text(self, value: Any, path: str) -> str:
        """Content as a string; null is empty, and lists of text parts are joined."""
        if value is None:
            return ""
        if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in value):
            return "".join(str(part.get("text") or "") for part in value)
        if not isinstance(value, str):
            raise self.fail(path, f"text expected, found {type(value).__name__}")
        return value

    def decoded(self, value: Any, path: str, what: str) -> Any:
        """Undo JSON text, also where a writer encoded it twice."""
        for _ in range(2):
            if not isinstance(value, str):
                break
            try:
                value = json.loads(value)
            except ValueError as error:
                raise self.fail(path, f"{what}: broken JSON ({error})") from None
        return value

    def calls(self, value: Any, path: str) -> list[ToolCall]:
        if not value:
            return []
        found = self.decoded(value, path, "tool_calls")
        # Only objects on disk can have been padded; a null inside JSON text was written on purpose.
        padded = not isinstance(value, str)
        return [self.call(item, path, padded) for item in (found if isinstance(found, list) else [found])]

    def call(self, item: Any, path: str, padded: bool) -> ToolCall:
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise self.fail(path, f"a tool call needs a name, found {json.dumps(item, ensure_ascii=False)[:80]}")
        if function is not item:
            self.note(item, _CALL_FIELDS, "tool_calls")
        raw = function.get("arguments")
        arguments = {} if raw in (None, "") else self.decoded(raw, path, f"arguments of {function['name']}")
        if not isinstance(arguments, dict):
            raise self.fail(path, f"arguments of {function['name']} are no JSON object")
        if padded and isinstance(raw, dict):
            arguments = self.without_nulls(arguments)
        text = json.dumps(arguments, ensure_ascii=False)
        identity = self.text(item.get("id"), path) or None if function is not item else None
        return ToolCall(id=identity, function=ToolFunction(name=function["name"], arguments=text))

    def tools(self, value: Any) -> list[ToolSpec]:
        """Tool schemas, wrapped as OpenAI does or bare, as a list or as JSON text."""
        found = self.decoded(value, "tools", "tools") if value else []
        if not isinstance(found, list):
            raise self.fail("tools", "a list of tool schemas is expected")
        specs = []
        for item in found:
            function = item.get("function", item) if isinstance(item, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise self.fail("tools", "every tool needs a name")
            function = function if isinstance(value, str) else self.without_nulls(function)
            parameters = function.get("parameters") or {"type": "object", "properties": {}}
            specs.append(ToolSpec(function["name"], str(function.get("description") or ""), parameters))
        return specs

    def without_nulls(self, value: Any) -> Any:
        if isinstance(value, dict):
            self.nulls += sum(item is None for item in value.values())
            return {key: self.without_nulls(item) for key, item in value.items() if item is not None}
        if isinstance(value, list):
            return [self.without_nulls(item) for item in value]
        return value
