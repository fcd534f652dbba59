"""Decode JSON strictly, then a little loosely, then by repair. Callers flag everything but the first."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

import json_repair

MAX_REPAIR = 50_000
"""Characters of a body that is worth a repair; longer ones are refused."""

_FENCED = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.S)
# One string argument whose quotes or backslashes are not escaped: the commonest slip with code.
_ONE_STRING = re.compile(
    r'\s*(\{\s*"name"\s*:\s*"[^"\\]+"\s*,\s*"arguments"\s*:\s*\{\s*"(\w+)"\s*:\s*)"(.*)"\s*\}[\s}]*', re.S
)
_ANOTHER_KEY = re.compile(r'",\s*"\w+"\s*:')
_BAD_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|(\\)')


@dataclass(frozen=True)
class Decoded:
    value: Any
    end: int
    """Position after the value."""
    strict: bool


def decode_at(text: str, position: int) -> Decoded | None:
    """The JSON value that begins at `position`; raw control characters in strings are read but not strict."""
    for strict in (True, False):
        try:
            value, end = json.JSONDecoder(strict=strict).raw_decode(text, position)
        except (ValueError, RecursionError):  # JSONDecodeError is a ValueError, and so is an integer of 5000 digits
            continue
        return Decoded(value, end, strict)
    return None


def repair_objects(body: str, closed: bool) -> list[Any] | None:
    """Values of a body that is not JSON, or None when it cannot be repaired without inventing its end.

    `closed` says that the closing tag was written; without it the body must end outside strings with brackets closed.
    """
    if len(body) > MAX_REPAIR or not body or not (closed or balanced(body)):
        return None
    if fenced := _FENCED.fullmatch(body):
        body = fenced[1]
    for candidate in (body, _drop_escapes_outside_strings(body), _escape_one_string(body)):
        if candidate and (values := _decode_all(candidate)):
            return values
    if not body.startswith(("{", "[")):
        return None
    literal = _python_literal(body)
    if isinstance(literal, dict | list):
        return [literal]
    try:
        value = json_repair.loads(_drop_escapes_outside_strings(body), skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    return [value] if isinstance(value, dict | list) else None


def _decode_all(text: str) -> list[Any] | None:
    """The values of a text that is nothing but JSON values, else None."""
    values: list[Any] = []
    position = 0
    while position < len(text):
        decoded = decode_at(text, position)
        if decoded is None:
            return None
        values.append(decoded.value)
        position = decoded.end + len(text[decoded.end :]) - len(text[decoded.end :].lstrip(" \t\r\n,"))
    return values


def _escape_one_string(body: str) -> str | None:
    found = _ONE_STRING.fullmatch(body)
    # Code often holds dicts, whose keys look like further arguments; in other strings they are further arguments.
    if found is None or (found[2] != "code" and _ANOTHER_KEY.search(found[3])):
        return None
    text = _BAD_ESCAPE.sub(lambda escape: "\\\\" if escape[1] else escape[0], found[3])
    text = re.sub(r'(\\.)|"', lambda quote: quote[1] or '\\"', text, flags=re.S)
    return f'{found[1]}"{text}"}}}}'


def _drop_escapes_outside_strings(body: str) -> str:
    """Turn a backslash-n between tokens into the space it stands for."""
    strings = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\\[nrt]"""
    return re.sub(strings, lambda found: found[1] or " ", body, flags=re.S)


def _python_literal(body: str) -> Any:
    """The value of a Python literal (single quotes, True, None, trailing commas), else None."""
    try:
        return ast.literal_eval(body)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def balanced(body: str) -> bool:
    """Whether every string and bracket of a JSON-like text (either quote) is closed at its end."""
    depth, quote, escaped = 0, "", False
    for character in body:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "{[") - (character in "}]")
    return depth == 0 and not quote
