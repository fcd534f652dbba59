"""Reads metric definitions from YAML: the built-in store's and a user's own have one form (docs/data.md).

Every problem is said with file, line, metric and remedy, before anything is built.
"""

from __future__ import annotations

import ast
import re
import reprlib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from agentic.errors import UserError
from agentic.tasks.metrics import Condition, ExpressionError, Metric, parse

FIELDS = (
    "name",
    "synonyms",
    "expression",
    "dataset",
    "filters",
    "time_field",
    "unit",
    "additivity",
    "description",
    "version",
)
ADDITIVITY = ("additive", "semi_additive", "non_additive")
_LINE = "\0line"
_FILTER = re.compile(r"\s*(?:(\w+)\.)?(\w+)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")


@dataclass(frozen=True)
class JoinLine:
    """`table` looks the key `on` up in `other`."""

    table: str
    other: str
    on: str
    line: int


@dataclass(frozen=True)
class Definitions:
    metrics: list[Metric]
    joins: list[JoinLine]


class _Loader(yaml.SafeLoader):
    """Notes the line of every mapping and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            name = key.value
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} stands twice", key.start_mark)
            seen.add(name)
        return {**super().construct_mapping(node, deep=deep), _LINE: node.start_mark.line + 1}


@cache
def builtin_metrics(name: str = "metrics") -> tuple[Metric, ...]:
    """Definitions that are part of the package: `metrics` for the store that is trained on, `metrics_unseen` beside it."""
    file = resources.files("agentic").joinpath(f"tasks/{name}.yaml")
    return tuple(parse_definitions(file.read_text(encoding="utf-8"), f"{name}.yaml").metrics)


def read_definitions(path: Path) -> Definitions:
    """Metrics and joins of a user's file. Raises UserError that names file, line, metric and remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; name the YAML file that defines the metrics") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a YAML file in UTF-8") from None
    return parse_definitions(text, str(path))


def parse_definitions(text: str, path: str) -> Definitions:
    """Metrics in file order; those that compute the same share `computation`."""
    try:
        content = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}, line {line}: not valid YAML ({error.problem}); correct it there") from None
    except yaml.YAMLError as error:  # a control character, say
        raise UserError(f"{path}: not valid YAML ({str(error).splitlines()[0]}); save it as plain UTF-8 text") from None
    entries = content.get("metrics") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: holds no metrics; begin with 'metrics:' and a list of definitions under it")
    metrics: list[Metric] = []
    for position, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise UserError(f"{path}, entry {position}: expected name, expression and so on, found {_short(entry)}")
        metric = _metric(entry, position, path)
        twin = next((other for other in metrics if other.id == metric.id), None)
        if twin is not None:
            raise UserError(
                f"{path}, line {metric.line}: metric {metric.id!r} is already defined in line {twin.line}; rename one"
                " (rival definitions of one name differ after a dot, as in refund_rate.orders)"
            )
        same = next(
            (m for m in metrics if (m.expression, m.conditions) == (metric.expression, metric.conditions)), None
        )
        metrics.append(replace(metric, computation=same.computation if same else metric.id))
    unknown = [key for key in content if key not in {"metrics", "joins", "version", _LINE}]
    if unknown:
        raise UserError(f"{path}: unknown part {unknown[0]!r}; the parts are version, metrics and joins")
    return Definitions(metrics, _joins(content.get("joins") or [], path))


def _joins(entries: Any, path: str) -> list[JoinLine]:
    remedy = "write joins as a list of {table: orders, with: products, on: product_id}"
    if not isinstance(entries, list):
        raise UserError(f"{path}: 'joins' cannot be used; {remedy}")
    found = []
    for position, entry in enumerate(entries, start=1):
        line = entry.pop(_LINE) if isinstance(entry, dict) else 0
        # YAML 1.1 reads the bare word `on` as true.
        fields = {"on" if key is True else key: value for key, value in entry.items()} if line else {}
        if fields.keys() != {"table", "with", "on"} or not all(isinstance(v, str) for v in fields.values()):
            place = f"line {line}" if line else f"join {position}"
            raise UserError(f"{path}, {place}: the join cannot be used; {remedy}")
        found.append(JoinLine(fields["table"], fields["with"], fields["on"], line))
    return found


def _short(entry: object) -> str:
    """Of what aliases may have blown up only the beginning."""
    return reprlib.repr(entry)


def _metric(entry: dict[str, Any], position: int, path: str) -> Metric:
    line = entry.pop(_LINE)
    name = entry.get("name")
    where = f"{path}, line {line}, " + (f"metric {name!r}" if isinstance(name, str) else f"entry {position}")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.]*", name):
        raise UserError(f"{where}: 'name' must be letters, digits, _ and dots, found {name!r}")
    unknown = [str(key) for key in entry if key not in FIELDS]
    if unknown:
        raise UserError(f"{where}: unknown field {unknown[0]!r}; the fields are {', '.join(FIELDS)}")

    def text(key: str, default: str | None = None) -> str | None:
        value = entry.get(key, default)
        if value is not None and not isinstance(value, str):
            raise UserError(f"{where}: {key!r} must be a text, found {value!r}")
        return value

    dataset = entry.get("dataset")
    datasets = [dataset] if isinstance(dataset, str) else dataset or []
    if not isinstance(datasets, list) or not all(isinstance(one, str) for one in datasets):
        raise UserError(f"{where}: 'dataset' must be a table's name or a list of names, found {dataset!r}")
    expression = _expression(entry.get("expression"), datasets, where)
    additivity = text("additivity", "non_additive")
    if additivity not in ADDITIVITY:
        raise UserError(f"{where}: 'additivity' must be one of {', '.join(ADDITIVITY)}, found {additivity!r}")
    version = entry.get("version", 1)
    if type(version) is not int:
        raise UserError(f"{where}: 'version' must be a whole number, found {version!r}")
    names = _both(entry.get("synonyms"), "synonyms", where, [name.split(".")[0].replace("_", " ")])
    described = _both(entry.get("description"), "description", where, [""])
    return Metric(
        id=name,
        name_en=names[0],
        name_zh=names[1],
        expression=expression,
        conditions=_conditions(entry.get("filters"), datasets, expression, where),
        unit=text("unit"),
        additivity=additivity,
        time_field=text("time_field"),
        description_en=described[0][0],
        description_zh=described[1][0],
        version=version,
        line=line,
    )


def _both(value: Any, key: str, where: str, default: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(English, Chinese) texts; one given language serves for both."""
    if value is None:
        value = default
    if isinstance(value, str):
        value = [value]
    given = value if isinstance(value, dict) else {"en": value}
    given = {k: [v] if isinstance(v, str) else v for k, v in given.items() if k != _LINE}
    known = given.keys() <= {"en", "zh"} and given
    if not known or not all(isinstance(v, list) and v and all(isinstance(t, str) for t in v) for v in given.values()):
        raise UserError(
            f"{where}: {key!r} must be a text, a list of texts, or such under 'en' and 'zh'; found {value!r}"
        )
    english, chinese = given.get("en") or given["zh"], given.get("zh") or given["en"]
    return tuple(english), tuple(chinese)


def _expression(value: Any, datasets: list[str], where: str) -> str:
    """The expression in one spelling, every column with its table."""
    if not isinstance(value, str):
        raise UserError(f"{where}: 'expression' is missing; write for example expression: sum(table.column)")
    try:
        tree = parse(value)
    except ExpressionError as error:
        raise UserError(f"{where}: the expression {value!r} cannot be used: {error}") from None

    class Qualify(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            column = node.args[0]
            if isinstance(column, ast.Name):
                if len(datasets) != 1:
                    raise UserError(
                        f"{where}: column {column.id!r} of the expression needs its table, as in"
                        f" {ast.unparse(node.func)}(table.{column.id}), or give one 'dataset'"
                    )
                node.args[0] = ast.Attribute(ast.Name(datasets[0]), column.id)
            elif datasets and isinstance(column, ast.Attribute) and ast.unparse(column.value) not in datasets:
                raise UserError(
                    f"{where}: table {ast.unparse(column.value)!r} of the expression is not in its 'dataset'"
                )
            return node

    copied = ast.parse(ast.unparse(tree), mode="eval").body
    return ast.unparse(Qualify().visit(copied))


def _conditions(value: Any, datasets: list[str], expression: str, where: str) -> tuple[Condition, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    remedy = "write filters as a list of comparisons, as in - orders.status == 'paid'"
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise UserError(f"{where}: 'filters' {value!r} cannot be used; {remedy}")
    used = Metric("", (), (), expression).tables
    found = []
    for one in texts:
        match = _FILTER.fullmatch(one)
        try:
            literal = ast.literal_eval(match[4]) if match else None
        except (ValueError, SyntaxError):
            literal = None
        if match is None or isinstance(literal, bool) or not isinstance(literal, str | int | float):
            raise UserError(f"{where}: the filter {one!r} cannot be used; {remedy}")
        table = match[1] or (used[0] if len(used) == 1 else None)
        if table is None:
            raise UserError(f"{where}: the filter {one!r} needs its table, as in {used[0]}.{match[2]}")
        if table not in used:
            raise UserError(f"{where}: the filter {one!r} is on table {table!r}, which the expression does not use")
        found.append(Condition(table, match[2], match[3], literal))
    return tuple(sorted(found, key=str))
