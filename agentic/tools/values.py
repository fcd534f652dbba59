"""Comparisons of a cell with texts that a column does not hold: they raise nothing and count nothing, the quietest of errors."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MOST_VALUES = 2000
"""Columns with more distinct values are not searched for a near one."""

_REWRITES = ("str", "map", "replace", "apply", "astype", "rename", "fillna")
"""Methods after which a column may hold other texts than the table did."""


def unknown_values(code: str, frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """One sentence for each text that the cell compares with a column of `frames` which holds no such value, but nearly.

    Says nothing of cells that cannot be parsed, rewrite texts themselves, or compare with columns of their own.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if any(isinstance(node, ast.Attribute) and node.attr in _REWRITES for node in ast.walk(tree)):
        return []
    found = dict.fromkeys(pair for node in ast.walk(tree) for pair in _compared(node))
    sentences = []
    for column, text in found:
        near = _near(text, [frame[column] for frame in frames.values() if column in frame.columns])
        if near is not None:
            sentences.append(f"{column!r} has no value {text!r}; it has {near!r}")
    return sentences


def _compared(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(column, text) of `x["column"] == "text"`, the same the other way round, and `x["column"].isin(["text", ...])`."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        for one, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            column = _column(one)
            if column and isinstance(other, ast.Constant) and isinstance(other.value, str):
                yield column, other.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "isin" and node.args:
        column, values = _column(node.func.value), node.args[0]
        if column and isinstance(values, ast.List | ast.Tuple | ast.Set):
            for value in values.elts:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield column, value.value


def _column(node: ast.expr) -> str | None:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return node.attr if isinstance(node, ast.Attribute) else None


def _near(text: str, columns: list[pd.Series]) -> str | None:
    """The value that `text` probably means, or None: it is there, or nothing is like it."""
    values: dict[str, str] = {}
    for column in columns:
        distinct = column.dropna().unique()
        if len(distinct) > MOST_VALUES or not all(isinstance(value, str) for value in distinct):
            return None
        values |= {_bare(value): value for value in distinct}
        if text in distinct:
            return None
    if _bare(text) in values:
        return values[_bare(text)]
    close = difflib.get_close_matches(_bare(text), list(values), n=1, cutoff=0.8)
    return values[close[0]] if close else None


def _bare(text: str) -> str:
    return " ".join(text.casefold().split())
