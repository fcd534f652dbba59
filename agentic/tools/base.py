"""Tools as the model sees them: a JSON schema derived from a signature and its docstring."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


@dataclass(frozen=True)
class ToolSpec:
    name: str
    description: str
    """One line: it is part of every prompt, so it must be short."""
    parameters: dict[str, Any]
    """JSON schema of the arguments object."""

    def schema(self) -> dict[str, Any]:
        """The OpenAI `tools` entry."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    @property
    def required(self) -> list[str]:
        return list(self.parameters.get("required", []))


def tool_spec(function: Callable[..., Any]) -> ToolSpec:
    """Schema from type hints; the first docstring line describes the tool, lines `name: text` describe arguments."""
    hints = typing.get_type_hints(function)
    doc = inspect.getdoc(function) or ""
    described = dict(re.findall(r"^\s*(\w+): (.+)$", doc, flags=re.MULTILINE))
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        properties[name] = {"type": _JSON_TYPES[hints.get(name, str)]}
        if name in described:
            properties[name]["description"] = described[name]
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(function.__name__, doc.splitlines()[0] if doc else "", parameters)


def python_executor(code: str) -> str:
    """run Python; pandas is pd, each table is a DataFrame under its name; print what you need"""
    raise NotImplementedError


def retriever(query: str, top_k: int = 1) -> str:
    """look up how a metric is defined"""
    raise NotImplementedError


def calculator(expression: str) -> str:
    """evaluate arithmetic"""
    raise NotImplementedError


def sql_executor(query: str, database: str = "") -> str:
    """run one read-only SQL query (SELECT); text in 'single' quotes, odd names in "double" quotes
    database: name of the database, or "tables" for the tables; may be left out when there is only one
    """
    raise NotImplementedError


# The functions above are signatures only; the environment runs the tools (it owns the session and the documents).
TOOLS: dict[str, ToolSpec] = {f.__name__: tool_spec(f) for f in (python_executor, retriever, calculator, sql_executor)}
