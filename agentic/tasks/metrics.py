"""Metric definitions: one place for the name, the document, the code, the SQL and (through the code) the gold.

A definition is data (tasks/definitions.py reads it from YAML). Several metrics have rival definitions under one name
(refund rate by amount or by orders): which one holds is said only in the task's document, so the retriever matters.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

AGGREGATES = ("sum", "mean", "min", "max", "count", "nunique")
"""Functions of one column; they are also the names of pandas methods of a frame's and of a group's column."""

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SQL = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True)
class Term:
    """One aggregate of one column."""

    aggregate: str
    table: str
    column: str


@dataclass(frozen=True)
class Condition:
    """A row filter that belongs to a definition ("only paid channels")."""

    table: str
    column: str
    comparison: str
    """==, !=, <, <=, > or >=."""
    value: str | int | float

    def __str__(self) -> str:
        return f"{self.table}.{self.column} {self.comparison} {self.value!r}"


@dataclass(frozen=True)
class Metric:
    id: str
    """Ids that differ only after a dot are rival definitions of one name."""
    name_en: tuple[str, ...]
    """Name first, then synonyms."""
    name_zh: tuple[str, ...]
    expression: str
    """Arithmetic over aggregates of `table.column`: sum(orders.gmv) / sum(marketing.spend) * 100."""
    conditions: tuple[Condition, ...] = ()
    unit: str | None = None
    additivity: str = "non_additive"
    """additive; semi_additive (over everything but time); non_additive."""
    time_field: str | None = None
    description_en: str = ""
    description_zh: str = ""
    version: int = 1
    computation: str = ""
    """Id of the first definition that computes the same: programs over it are the same programs."""
    line: int = field(default=0, compare=False)
    """Where the definition begins in its file."""

    @property
    def terms(self) -> tuple[Term, ...]:
        return _terms(self.expression)

    @property
    def tables(self) -> list[str]:
        return list(dict.fromkeys(term.table for term in self.terms))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(term.column for term in self.terms))

    @property
    def additive(self) -> bool:
        """Parts over places add up to the whole."""
        return self.additivity != "non_additive"

    def parts(self) -> tuple[str, str, str] | None:
        """(numerator, denominator, factor as text or "") of a definition that is a plain quotient, else None."""
        return _quotient(self.expression)

    def value(self, values: Mapping[Term, Any]) -> Any:
        """The metric from the values (numbers or arrays) of its terms."""
        return _evaluate(parse(self.expression), values)

    def pandas(self, variables: Mapping[str, str]) -> str:
        """The expression over one-letter variables; they hold a frame (a number results) or a groupby (a series)."""
        return _pandas(self.expression, tuple(sorted(variables.items())))

    def formula(self) -> str:
        """Formula of the document: aggregates over the rows in question."""
        return self.expression + "".join(
            f"{', ' if i else ' where '}{condition}" for i, condition in enumerate(self.conditions)
        )

    def document(self, language: str) -> tuple[str, str]:
        """(title, text) in one language."""
        if language == "zh":
            unit = f"，单位 {self.unit}" if self.unit else ""
            said = f"。{self.description_zh}" if self.description_zh else ""
            return self.name_zh[0], f"{self.name_zh[0]} = {self.formula()}{unit}{said}"
        unit = f", in {self.unit}" if self.unit else ""
        said = f". {self.description_en}" if self.description_en else ""
        return self.name_en[0], f"{self.name_en[0]} = {self.formula()}{unit}{said}"


class ExpressionError(ValueError):
    """The text is no metric expression; the message says why."""


@lru_cache(maxsize=1024)
def parse(expression: str) -> ast.expr:
    """Tree of an expression that holds only + - * /, numbers, and aggregates of table.column. Raises ExpressionError."""
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError("it is not an arithmetic expression") from None
    if not _check(tree):
        raise ExpressionError("it aggregates no column; write for example sum(table.column)")
    return tree


def _check(node: ast.expr) -> bool:
    """Whether an aggregate stands in the tree; raises ExpressionError for anything that may not."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _check(node.left), _check(node.right)
        return left or right
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in AGGREGATES:
            raise ExpressionError(f"unknown function {node.func.id}; use {', '.join(AGGREGATES)}")
        if len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Name | ast.Attribute):
            argument = node.args[0]
            if isinstance(argument, ast.Name) or isinstance(argument.value, ast.Name):
                return True
        raise ExpressionError(f"{node.func.id} takes one column, as in {node.func.id}(table.column)")
    raise ExpressionError(
        f"'{ast.unparse(node)}' may not stand here; use + - * /, numbers and {', '.join(AGGREGATES)} of table.column"
    )


def _term(node: ast.Call) -> Term:
    argument, function = node.args[0], node.func
    assert isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name)
    assert isinstance(function, ast.Name)
    return Term(function.id, argument.value.id, argument.attr)


@lru_cache(maxsize=1024)
def _terms(expression: str) -> tuple[Term, ...]:
    calls = [node for node in ast.walk(parse(expression)) if isinstance(node, ast.Call)]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(map(_term, calls)))


def _evaluate(node: ast.expr, values: Mapping[Term, Any]) -> Any:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluate(node.left, values), _evaluate(node.right, values))
    if isinstance(node, ast.Constant):
        return node.value
    assert isinstance(node, ast.Call)
    return values[_term(node)]


@lru_cache(maxsize=4096)
def _pandas(expression: str, variables: tuple[tuple[str, str], ...]) -> str:
    named = dict(variables)

    class Columns(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            term = _term(node)
            return ast.parse(f"{named[term.table]}[{term.column!r}].{term.aggregate}()", mode="eval").body

    return ast.unparse(Columns().visit(ast.parse(expression, mode="eval").body))


def sql_expression(expression: str, columns: Mapping[Term, str]) -> str:
    """The same arithmetic in SQL, with each term under the name that `columns` gives it; quotients are not whole numbers."""

    def write(node: ast.expr) -> str:
        if isinstance(node, ast.BinOp):
            left = write(node.left)
            left = f"CAST({left} AS DOUBLE)" if isinstance(node.op, ast.Div) else left
            return f"({left} {_SQL[type(node.op)]} {write(node.right)})"
        if isinstance(node, ast.Constant):
            return repr(node.value)
        assert isinstance(node, ast.Call)
        return columns[_term(node)]

    return write(parse(expression))


@lru_cache(maxsize=1024)
def _quotient(expression: str) -> tuple[str, str, str] | None:
    node: ast.expr = parse(expression)
    factor = ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        factor, node = f" * {node.right.value!r}", node.left
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Call):
        return ast.unparse(node.left), ast.unparse(node.right), factor
    return None


def rivals(metric: Metric, metrics: list[Metric]) -> list[Metric]:
    """Definitions that share the name: never shown together, or the question would have two answers."""
    root = metric.id.split(".")[0]
    return [other for other in metrics if other.id.split(".")[0] == root and other.id != metric.id]
