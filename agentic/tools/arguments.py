"""A decoded call against the tools' schemas: names, required arguments and types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from agentic.jsonl import scrub
from agentic.records import Action
from agentic.tools.base import ToolSpec

MAX_DEPTH = 32
"""Nesting of arguments; deeper ones cannot be logged."""


def invalid(flag: str, error: str, raw: str) -> Action:
    """An action that is not run; `flag` is its kind for counting, `error` is said to the model."""
    return Action(kind="invalid", error=error, flags=[flag], raw=raw)


def signatures(tools: Sequence[ToolSpec]) -> str:
    """The tools as the model may call them: "retriever(query, top_k?), calculator(expression)"."""
    return ", ".join(_signature(tool) for tool in tools) or "none"


def call_action(
    value: Any, tools: Sequence[ToolSpec], raw: str, *, repaired: bool, flags: Sequence[str] = ()
) -> Action:
    """The action for one decoded call: kind "tool", or "invalid" with what was expected."""
    notes = list(flags)
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else type(value).__name__
        return invalid(
            "not_an_object", f"a call is an object with name and arguments, not {kind}; {_choice(tools)}", raw
        )
    if not isinstance(value.get("name"), str):
        return invalid("unknown_tool", f"the call has no tool name; {_choice(tools)}", raw)
    tool = _find_tool(value["name"], tools)
    if tool is None:
        return invalid("unknown_tool", f"unknown tool {scrub(value['name'])[:60]!r}; {_choice(tools)}", raw)
    if tool.name != value["name"]:
        notes.append("name_normalised")
    if "arguments" not in value and isinstance(value.get("parameters"), dict):
        value = {"arguments": value["parameters"]}
        notes.append("arguments_renamed_key")
        repaired = True
    arguments = value.get("arguments")
    for _ in range(2):  # replayed histories escape twice
        if isinstance(arguments, str):
            arguments = _loads(arguments)
            notes += [] if "arguments_as_string" in notes else ["arguments_as_string"]
    if arguments is None and "arguments_as_string" not in notes:
        arguments = {}
    if not isinstance(arguments, dict) or _depth(arguments) > MAX_DEPTH:
        return invalid(
            "not_an_object",
            f"arguments must be a JSON object, nested at most {MAX_DEPTH} deep; expected {_signature(tool)}",
            raw,
        )
    arguments = _clean(arguments)
    problem = _fit(arguments, tool, notes)
    if problem:
        return invalid(problem[0], f"{tool.name}: {problem[1]}; expected {_signature(tool)}", raw)
    repaired = repaired or "argument_renamed" in notes or "type_converted" in notes
    return Action(kind="tool", name=tool.name, arguments=arguments, raw=raw, repaired=repaired, flags=notes)


def _fit(arguments: dict[str, Any], tool: ToolSpec, notes: list[str]) -> tuple[str, str] | None:
    """Bring arguments to the schema in place, noting each change; (flag, sentence) when that is impossible."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    missing = [name for name in tool.required if arguments.get(name) is None]
    unknown = [name for name in arguments if name not in properties]
    if (
        len(missing) == len(unknown) == 1
        and isinstance(arguments[unknown[0]], str)
        and properties.get(missing[0], {}).get("type", "string") == "string"
    ):
        arguments[missing[0]] = arguments.pop(unknown[0])
        notes.append("argument_renamed")
        missing, unknown = [], []
    if missing:
        return "missing_arguments", f"missing {', '.join(missing)}" + (
            f" (got {', '.join(unknown)})" if unknown else ""
        )
    if unknown:
        notes.append("unknown_arguments")
    for name, schema in properties.items():
        if name not in arguments:
            continue
        if arguments[name] is None:
            del arguments[name]
            continue
        kind = schema.get("type")
        converted = _convert(arguments[name], kind)
        if converted is None:
            return "wrong_type", f"{name} must be {kind}, not {type(arguments[name]).__name__}"
        if type(converted) is not type(arguments[name]):
            arguments[name] = converted
            notes.append("type_converted")
    return None


def _convert(value: Any, kind: str | None) -> Any:
    """`value` as the JSON type `kind` where nothing is lost, else None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "string":
        return value if isinstance(value, str) else str(value) if number else None
    if kind == "integer":
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value):
            return int(value)
        return int(value) if number and value == int(value) else None
    if kind == "number":
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}(\.[0-9]{1,18})?\s*", value):
            return float(value)
        return value if number else None
    expected = {"boolean": bool, "array": list, "object": dict}.get(kind or "")
    return value if expected is None or isinstance(value, expected) else None


def _find_tool(name: str, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """The tool of that name, written exactly or as "functions.Python_Executor "."""
    for tool in tools:
        if tool.name == name:
            return tool
    wanted = _plain(name)
    matches = [tool for tool in tools if _plain(tool.name) == wanted]
    return matches[0] if len(matches) == 1 else None


def _plain(name: str) -> str:
    name = re.sub(r"^(?:functions?|tools?)[.:/]", "", name.strip().lower())
    return re.sub(r"[\s_-]+", "", name.removesuffix("()"))


def _signature(tool: ToolSpec) -> str:
    names = tool.parameters.get("properties", {})
    return f"{tool.name}({', '.join(name if name in tool.required else name + '?' for name in names)})"


def _choice(tools: Sequence[ToolSpec]) -> str:
    return f"valid tools: {signatures(tools)}"


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _clean(value: Any) -> Any:
    """The same value without what a log or a pipe cannot hold: lone surrogates, NaN, infinities."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): _clean(item) for key, item in value.items()}
    return value


def _depth(value: Any, level: int = 0) -> int:
    """Nesting of lists and objects, counted no further than just past MAX_DEPTH."""
    if not isinstance(value, dict | list) or level > MAX_DEPTH:
        return level
    items = value.values() if isinstance(value, dict) else value
    return max((_depth(item, level + 1) for item in items), default=level + 1)
