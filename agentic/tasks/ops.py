"""Operations tasks: programs over metric x operation x dimension x filter.

The canonical form of the program is the identity of a task; question and language are only its clothes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from agentic.records import Check, Document
from agentic.tasks.draw import Unfit
from agentic.tasks.metrics import METRICS, VARIABLES, Metric, rivals
from agentic.tasks.phrases import ANSWERS
from agentic.tasks.store import CHANNELS, MONTHS, PROVINCES, QUARTERS

VALUES = {"channel": CHANNELS, "province": PROVINCES, "quarter": QUARTERS, "month": MONTHS}
OPERATIONS = {
    "value": 20,
    "extreme": 16,
    "top_k": 10,
    "change": 12,
    "change_percent": 12,
    "difference": 12,
    "share": 8,
    "count_above": 8,
    "what_if": 10,
}


@dataclass(frozen=True)
class Program:
    metric: Metric
    operation: str
    dimension: str | None
    filters: tuple[tuple[str, str], ...]
    """(column, value) in a fixed order."""
    arguments: tuple[str | int | float | bool, ...] = ()

    @property
    def canonical(self) -> str:
        where = "&".join(f"{column}={value}" for column, value in self.filters)
        return f"{self.operation}({self.metric.id};by={self.dimension};where={where};args={','.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class OpsQuestion:
    program: Program
    question: str
    query: str
    """What the expert asks the retriever."""
    code: str
    calculation: str | None
    """Template of the calculator expression after the cell; {value} is what the cell printed."""
    check: Check
    answer: str
    documents: list[Document]


def dimensions(metric: Metric) -> list[str]:
    """Columns that all tables of the metric have (marketing has no province)."""
    shared = ["channel", "quarter", "month"]
    return shared if "marketing" in metric.tables else [*shared, "province"]


def _filters(rng: random.Random, metric: Metric, taken: set[str]) -> tuple[tuple[str, str], ...]:
    """Zero to two filters on free columns; month and quarter exclude each other."""
    free = [column for column in dimensions(metric) if column not in taken]
    if taken & {"month", "quarter"}:
        free = [column for column in free if column not in {"month", "quarter"}]
    rng.shuffle(free)
    chosen: list[str] = []
    for column in free[: rng.choice([0, 1, 1, 1, 2, 2])]:
        if not (column in {"month", "quarter"} and set(chosen) & {"month", "quarter"}):
            chosen.append(column)
    return tuple(sorted((column, rng.choice(VALUES[column])) for column in chosen))


def draw_program(rng: random.Random) -> Program:
    operation = rng.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
    metric = rng.choice([m for m in METRICS if m.additive] if operation == "share" else METRICS)
    if operation in {"value", "what_if"}:
        filters = _filters(rng, metric, set())
        while not filters:
            filters = _filters(rng, metric, set())
        rise = (rng.choice([-1, 1]) * rng.choice([2, 5, 8, 10, 12, 15, 20, 25, 30]),) if operation == "what_if" else ()
        return Program(metric, operation, None, filters, rise)
    if operation in {"change", "change_percent"}:
        dimension = rng.choice(["quarter", "month"])
        first, second = sorted(rng.sample(VALUES[dimension], 2))
        return Program(metric, operation, dimension, _filters(rng, metric, {dimension}), (first, second))
    places = [column for column in dimensions(metric) if column in {"channel", "province"}]
    dimension = rng.choice([*places, *places, "quarter"]) if operation == "extreme" else rng.choice(places)
    filters = _filters(rng, metric, {dimension})
    if operation == "extreme":
        return Program(metric, operation, dimension, filters, (rng.random() < 0.65,))
    if operation == "top_k":
        return Program(metric, operation, dimension, filters, (rng.choice([2, 3, 4]),))
    if operation == "difference":
        return Program(metric, operation, dimension, filters, tuple(rng.sample(VALUES[dimension], 2)))
    if operation == "share":
        return Program(metric, operation, dimension, filters, (rng.choice(VALUES[dimension]),))
    # count_above: a quantile, made a number below
    return Program(metric, operation, dimension, filters, (rng.random(),))


def _selection(program: Program) -> str:
    """Lines that bind each table's one-letter variable to its filtered (and grouped) rows."""
    lines = []
    for table in program.metric.tables:
        conditions = [f"{table}[{column!r}] == {value!r}" for column, value in program.filters]
        rows = table
        if len(conditions) == 1:
            rows = f"{table}[{conditions[0]}]"
        elif conditions:
            rows = f"{table}[{' & '.join(f'({condition})' for condition in conditions)}]"
        grouped = f".groupby({program.dimension!r})" if program.dimension else ""
        lines.append(f"{VARIABLES[table]} = {rows}{grouped}")
    return "\n".join(lines)


def metric_series(program: Program, tables: dict[str, pd.DataFrame]) -> pd.Series | float:
    """The metric over the program's slice: a number, or a series by its dimension. This is the gold's only source."""
    scope: dict[str, object] = dict(tables)
    exec(_selection(program), scope)
    return eval(program.metric.expression(), scope)  # type: ignore[no-any-return]


def _clear(values: list[float]) -> bool:
    """Neighbouring values differ by more than rounding, so a tie never decides."""
    return all(abs(a - b) > 1e-6 * max(1.0, abs(a)) for a, b in pairwise(values))


def realise(program: Program, tables: dict[str, pd.DataFrame], rng: random.Random, language: str) -> OpsQuestion:
    """Question, code and gold of a program; raises Unfit where the answer would be a tie or not finite."""
    metric, operation, args = program.metric, program.operation, program.arguments
    result = metric_series(program, tables)
    code = f"{_selection(program)}\n"
    expression = metric.expression()
    calculation = None
    gold: Any
    said: dict[str, str] = {}
    unit = metric.unit
    if operation in {"value", "what_if"}:
        value = float(result)  # type: ignore[arg-type]
        code += f"print(round({expression}, 4))"
        if operation == "what_if":
            factor = round(1 + float(args[0]) / 100, 2)
            calculation = f"{{value}} * {factor}"
            value = round(value, 4) * factor
            rises, falls = ("上升", "下降") if language == "zh" else ("rises", "falls")
            said = {"p": str(abs(int(args[0]))), "rise": rises if float(args[0]) > 0 else falls}
        kind, gold = "number", value
    else:
        series: pd.Series = result  # type: ignore[assignment]
        code += f"m = {expression}\n"
        if operation == "extreme":
            ordered = series.sort_values(ascending=not args[0])
            if not _clear(ordered.tolist()[:2]):
                raise Unfit
            code += f"print(m.{'idxmax' if args[0] else 'idxmin'}())"
            kind, gold = "value", ordered.index[0]
            said = {
                "top": rng.choice((["highest"], ["最高"])[language == "zh"])
                if args[0]
                else (["lowest"], ["最低"])[language == "zh"][0]
            }
        elif operation == "top_k":
            ordered = series.sort_values(ascending=False)
            if not _clear(ordered.tolist()[: int(args[0]) + 1]):
                raise Unfit
            code += f"print(m.nlargest({args[0]}).index.tolist())"
            kind, gold = "values", ordered.index[: int(args[0])].tolist()
            said = {"k": str(args[0])}
        elif operation in {"change", "difference"}:
            first, second = args
            plus, minus = (second, first) if operation == "change" else (first, second)
            code += f"print(round(m[{plus!r}] - m[{minus!r}], 4))"
            kind, gold = "number", float(series[plus] - series[minus])
            said = {"a": str(first), "b": str(second)}
            unit = None
        elif operation == "change_percent":
            first, second = args
            code += f"print(round((m[{second!r}] / m[{first!r}] - 1) * 100, 4))"
            kind, gold = "percent", float(series[second] / series[first] - 1) * 100
            said = {"a": str(first), "b": str(second)}
        elif operation == "share":
            code += f"print(round(m[{args[0]!r}] / m.sum() * 100, 4))"
            kind, gold = "percent", float(series[args[0]] / series.sum()) * 100
            said = {"a": str(args[0])}
        else:
            limit = _round_limit(float(series.quantile(0.15 + 0.7 * float(args[0]))))
            code += f"print((m > {limit}).sum())"
            kind, gold = "count", int((series > limit).sum())
            said = {"t": str(limit)}
            program = Program(metric, operation, program.dimension, program.filters, (limit,))
    if kind in {"number", "percent"}:
        gold = round(float(gold), 4)
        if gold != gold or abs(gold) == float("inf") or gold == 0:
            raise Unfit
        is_percent = kind == "percent" or unit == "%"
        check = Check(kind="number", value=gold, unit="%" if is_percent else None)
        answer = ANSWERS[language]["percent_value" if is_percent else "number"](_plain(gold))
    elif kind == "count":
        check, answer = Check(kind="number", value=gold), ANSWERS[language]["count"](str(gold))
    elif kind == "value":
        check, answer = Check(kind="text", value=str(gold)), ANSWERS[language]["value"](str(gold))
    else:
        check = Check(kind="ordered_list", value=[str(v) for v in gold])
        answer = ANSWERS[language]["values"](", ".join(map(str, gold)))
    name = rng.choice(metric.name_zh if language == "zh" else metric.name_en)
    question = _question(program, said, name, rng, language)
    return OpsQuestion(program, question, name, code, calculation, check, answer, _documents(metric, rng, language))


def _plain(value: float) -> str:
    return repr(value)


def _round_limit(value: float) -> int | float:
    """A threshold with about three digits, as a person would say it."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return int(round(value, -digits))
    return round(value) if abs(value) >= 50 else round(value, 2)


def _documents(metric: Metric, rng: random.Random, language: str) -> list[Document]:
    """The right definition among four distractors; rival definitions of the same name never appear together."""
    others = [other for other in METRICS if other.id not in rivals(metric)]
    rng.shuffle(others)
    chosen: list[Metric] = [metric]
    for other in others:
        if len(chosen) < 5 and other.id not in set().union(*(rivals(m) for m in chosen)):
            chosen.append(other)
    chosen.sort(key=lambda m: m.id)
    documents = []
    for one in chosen:
        title, text = one.document(language)
        names = one.name_zh if language == "zh" else one.name_en
        title = " / ".join(names)
        documents.append(Document(id=one.id, title=title, text=text))
    return documents


_WHERE_EN = {"channel": " for channel {}", "province": " in {}", "quarter": " in {}", "month": " in {}"}
_WHERE_ZH = {"channel": "{} 渠道", "province": "{} 省", "quarter": "{} ", "month": "{} "}
_DIM_ZH = {"channel": "渠道", "province": "省份", "quarter": "季度", "month": "月份"}
_TEMPLATES_EN = {
    "value": ["what was the {m}{w}?", "what is the {m}{w}?", "{m}{w}?", "compute the {m}{w}.", "give the {m}{w}."],
    "what_if": [
        "if the {m}{w} {rise} by {p}%, what would it be?",
        "suppose the {m}{w} {rise} by {p}%: what is the new value?",
    ],
    "extreme": [
        "which {d} had the {top} {m}{w}?",
        "what {d} has the {top} {m}{w}?",
        "name the {d} with the {top} {m}{w}.",
    ],
    "top_k": [
        "which {k} {d}s had the highest {m}{w}, in order?",
        "top {k} {d}s by {m}{w}?",
        "list the {k} {d}s with the highest {m}{w}, highest first.",
    ],
    "change": ["by how much did the {m}{w} change from {a} to {b}?", "what is the change in {m}{w} from {a} to {b}?"],
    "change_percent": [
        "by what percent did the {m}{w} change from {a} to {b}?",
        "what is the percent change in {m}{w} from {a} to {b}?",
    ],
    "difference": [
        "what is the difference in {m} between {a} and {b}{w}?",
        "how much higher is the {m} of {a} than of {b}{w}?",
    ],
    "share": ["what percent of the {m}{w} came from {a}?", "what is the share of {a} in the {m}{w}, in percent?"],
    "count_above": ["how many {d}s had a {m} above {t}{w}?", "in how many {d}s was the {m} above {t}{w}?"],
}
_TEMPLATES_ZH = {
    "value": ["{w}的{m}是多少？", "求{w}的{m}。", "{w}{m}是多少？"],
    "what_if": ["如果{w}的{m}{rise}{p}%，会是多少？", "假设{w}的{m}{rise}{p}%，新的值是多少？"],
    "extreme": ["{w}哪个{d}的{m}{top}？", "{w}{m}{top}的{d}是哪个？"],
    "top_k": ["{w}{m}最高的{k}个{d}依次是哪些？", "{w}按{m}排名前{k}的{d}有哪些？"],
    "change": ["{w}的{m}从{a}到{b}变化了多少？", "从{a}到{b}，{w}{m}的变化是多少？"],
    "change_percent": ["{w}的{m}从{a}到{b}变化了百分之多少？", "从{a}到{b}，{w}{m}的变化率是多少？"],
    "difference": ["{w}{a}和{b}的{m}相差多少？", "{w}{a}的{m}比{b}高多少？"],
    "share": ["{w}{a}占{m}的百分比是多少？", "{w}的{m}中{a}占百分之多少？"],
    "count_above": ["{w}有多少个{d}的{m}超过{t}？", "{w}{m}高于{t}的{d}有几个？"],
}


def _question(program: Program, said: dict[str, str], name: str, rng: random.Random, language: str) -> str:
    order = sorted(program.filters, key=lambda item: ["quarter", "month", "province", "channel"].index(item[0]))
    if language == "zh":
        where = "".join(_WHERE_ZH[column].format(value) for column, value in order).strip()
        where += " " if where and where[-1].isascii() else ""
        where = where or ("所有数据" if program.operation in {"what_if", "change", "change_percent", "share"} else "")
        template = rng.choice(_TEMPLATES_ZH[program.operation])
        return template.format(m=name, w=where, d=_DIM_ZH.get(program.dimension or "", ""), **said)
    where = "".join(_WHERE_EN[column].format(value) for column, value in reversed(order))
    template = rng.choice(_TEMPLATES_EN[program.operation])
    text = template.format(m=name, w=where, d=program.dimension or "", **said)
    return text[0].upper() + text[1:]
