"""General question programs over one table: column, filter, group, top-k, count, correlation, ratio.

A program is a kind with arguments; it yields the question (English or Chinese), one short pandas cell and, by running
that cell, the gold. The same programs make training questions over generated tables and test questions over real files.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from agentic.records import Check
from agentic.tasks.draw import Draw, Unfit
from agentic.tasks.phrases import ANSWERS, QUESTIONS


@dataclass(frozen=True)
class GeneralQuestion:
    kind: str
    program: str
    """Canonical text of kind and arguments: the identity of the question on its table."""
    question: str
    code: str
    check: Check
    answer: str
    columns: tuple[str, ...]
    """Columns that the code names; used to make realistic mistakes."""


AGGREGATES = ["mean", "sum", "median", "max", "min", "std"]


def _key(name: str) -> str:
    return f"df[{name!r}]"


@dataclass(frozen=True)
class Plan:
    """What a kind drew: code, how the answer is checked, and what the phrases mention."""

    code: str
    answer: str
    """number, count, percent, value, values"""
    said: dict[str, str]
    columns: tuple[str, ...]
    arguments: tuple[object, ...]
    unique: str | None = None
    """Expression whose two extreme values must differ, so that a tie never becomes a question."""
    k: int = 1


def _condition(group: str, value: object) -> str:
    return f"{_key(group)} == {value!r}"


def _aggregate(d: Draw) -> Plan:
    name, how = d.number(), d.rng.choice(AGGREGATES)
    return Plan(
        f"print(round({_key(name)}.{how}(), 4))", "number", {"agg": how, "x": d.say(name)}, (name,), (how, name)
    )


def _filtered(d: Draw) -> Plan:
    name, how, group = d.number(), d.rng.choice(AGGREGATES[:5]), d.group()
    value = d.value(group)
    code = f"print(round(df[{_condition(group, value)}][{name!r}].{how}(), 4))"
    said = {"agg": how, "x": d.say(name), "g": d.say(group), "v": d.say_value(value)}
    return Plan(code, "number", said, (name, group), (how, name, group, value))


def _filtered_twice(d: Draw) -> Plan:
    name, how, first = d.number(), d.rng.choice(AGGREGATES[:5]), d.group()
    second = d.group(first)
    rows = d.frame.dropna(subset=[first, second])
    if rows.empty:
        raise Unfit
    row = rows.iloc[d.rng.randrange(len(rows))]
    v, w = (row[c].item() if isinstance(row[c], np.generic) else row[c] for c in (first, second))
    code = f"print(round(df[({_condition(first, v)}) & ({_condition(second, w)})][{name!r}].{how}(), 4))"
    said = {
        "agg": how,
        "x": d.say(name),
        "g": d.say(first),
        "v": d.say_value(v),
        "h": d.say(second),
        "w": d.say_value(w),
    }
    return Plan(code, "number", said, (name, first, second), (how, name, first, v, second, w))


def _filtered_above(d: Draw) -> Plan:
    name, how = d.number(), d.rng.choice(AGGREGATES[:3])
    other = d.number(name)
    limit, more = d.threshold(other), d.rng.random() < 0.5
    code = f"print(round(df[{_key(other)} {'>' if more else '<'} {limit}][{name!r}].{how}(), 4))"
    said = {"agg": how, "x": d.say(name), "y": d.say(other), "t": str(limit), "more": "more" if more else "less"}
    return Plan(code, "number", said, (name, other), (how, name, other, more, limit))


def _extreme_group(d: Draw) -> Plan:
    name, group, how = d.number(), d.group(), d.rng.choice(["mean", "mean", "sum", "sum", "median", "max", "min"])
    top = d.rng.random() < 0.65
    series = f"df.groupby({group!r})[{name!r}].{how}()"
    said = {"agg": how, "x": d.say(name), "g": d.say(group), "top": "top" if top else "bottom"}
    return Plan(
        f"print({series}.{'idxmax' if top else 'idxmin'}())",
        "value",
        said,
        (group, name),
        (how, name, group, top),
        series if top else f"-{series}",
    )


def _top_groups(d: Draw) -> Plan:
    name, group, how, k = d.number(), d.group(), d.rng.choice(["mean", "sum"]), d.rng.choice([2, 3, 3, 5])
    if d.frame[group].nunique() <= k:
        raise Unfit
    top = d.rng.random() < 0.75
    series = f"df.groupby({group!r})[{name!r}].{how}()"
    code = f"print({series}.{'nlargest' if top else 'nsmallest'}({k}).index.tolist())"
    said = {"agg": how, "x": d.say(name), "g": d.say(group), "k": str(k), "top": "top" if top else "bottom"}
    return Plan(code, "values", said, (group, name), (how, name, group, k, top), series if top else f"-{series}", k)


def _extreme_row(d: Draw) -> Plan:
    name, label = d.number(), d.label()
    top = d.rng.random() < 0.65
    code = f"print(df.loc[{_key(name)}.{'idxmax' if top else 'idxmin'}(), {label!r}])"
    said = {"x": d.say(name), "g": d.say(label), "top": "top" if top else "bottom"}
    return Plan(code, "value", said, (name, label), (name, label, top), f"{'' if top else '-'}{_key(name)}")


def _top_rows(d: Draw) -> Plan:
    name, label, k = d.number(), d.label(), d.rng.choice([2, 3, 3, 5])
    top = d.rng.random() < 0.75
    code = f"print(df.{'nlargest' if top else 'nsmallest'}({k}, {name!r})[{label!r}].tolist())"
    said = {"x": d.say(name), "g": d.say(label), "k": str(k), "top": "top" if top else "bottom"}
    return Plan(code, "values", said, (name, label), (name, label, k, top), f"{'' if top else '-'}{_key(name)}", k)


def _rows(d: Draw) -> Plan:
    return Plan("print(len(df))", "count", {}, (), ())


def _count_equal(d: Draw) -> Plan:
    group = d.group()
    value = d.value(group)
    said = {"g": d.say(group), "v": d.say_value(value)}
    return Plan(f"print(({_condition(group, value)}).sum())", "count", said, (group,), (group, value))


def _count_both(d: Draw) -> Plan:
    group, other = d.group(), d.number()
    value, limit, more = d.value(group), d.threshold(other), d.rng.random() < 0.6
    code = f"print((({_condition(group, value)}) & ({_key(other)} {'>' if more else '<'} {limit})).sum())"
    said = {
        "g": d.say(group),
        "v": d.say_value(value),
        "y": d.say(other),
        "t": str(limit),
        "more": "more" if more else "less",
    }
    return Plan(code, "count", said, (group, other), (group, value, other, more, limit))


def _count_above(d: Draw) -> Plan:
    name = d.number()
    limit, more = d.threshold(name), d.rng.random() < 0.6
    said = {"y": d.say(name), "t": str(limit), "more": "more" if more else "less"}
    return Plan(
        f"print(({_key(name)} {'>' if more else '<'} {limit}).sum())", "count", said, (name,), (name, more, limit)
    )


def _distinct(d: Draw) -> Plan:
    group = d.group()
    return Plan(f"print({_key(group)}.nunique())", "count", {"g": d.say(group)}, (group,), (group,))


def _most_common(d: Draw) -> Plan:
    group, top = d.group(), d.rng.random() < 0.75
    said = {"g": d.say(group), "top": "top" if top else "bottom"}
    series = f"{_key(group)}.value_counts()"
    return Plan(
        f"print({series}.{'idxmax' if top else 'idxmin'}())",
        "value",
        said,
        (group,),
        (group, top),
        series if top else f"-{series}",
    )


def _missing(d: Draw) -> Plan:
    with_gaps = [name for name in d.names if d.frame[name].isna().any()]
    name = d.pick(with_gaps or d.roles.numbers)
    return Plan(f"print({_key(name)}.isna().sum())", "count", {"x": d.say(name)}, (name,), (name,))


def _correlation(d: Draw) -> Plan:
    name = d.number()
    other = d.number(name)
    said = {"x": d.say(name), "y": d.say(other)}
    return Plan(
        f"print(round({_key(name)}.corr({_key(other)}), 4))",
        "number",
        said,
        (name, other),
        tuple(sorted((name, other))),
    )


def _share_of_rows(d: Draw) -> Plan:
    group = d.group()
    value = d.value(group)
    said = {"g": d.say(group), "v": d.say_value(value)}
    return Plan(
        f"print(round(({_condition(group, value)}).mean() * 100, 4))", "percent", said, (group,), (group, value)
    )


def _share_of_sum(d: Draw) -> Plan:
    name, group = d.number(), d.group()
    value = d.value(group)
    if (d.frame[name].dropna() < 0).any():
        raise Unfit
    code = f"print(round(df[{_condition(group, value)}][{name!r}].sum() / {_key(name)}.sum() * 100, 4))"
    said = {"x": d.say(name), "g": d.say(group), "v": d.say_value(value)}
    return Plan(code, "percent", said, (name, group), (name, group, value))


def _ratio(d: Draw) -> Plan:
    name = d.number()
    other = d.number(name)
    how = d.rng.choice(["sum", "mean"])
    code = f"print(round({_key(name)}.{how}() / {_key(other)}.{how}(), 4))"
    return Plan(code, "number", {"agg": how, "x": d.say(name), "y": d.say(other)}, (name, other), (how, name, other))


def _difference(d: Draw) -> Plan:
    name, group = d.number(), d.group()
    first = d.value(group)
    second = d.value(group)
    if first == second:
        raise Unfit
    how = d.rng.choice(["mean", "mean", "sum", "median"])
    code = f"m = df.groupby({group!r})[{name!r}].{how}()\nprint(round(m[{first!r}] - m[{second!r}], 4))"
    said = {"agg": how, "x": d.say(name), "g": d.say(group), "v": d.say_value(first), "w": d.say_value(second)}
    return Plan(code, "number", said, (group, name), (how, name, group, first, second))


KINDS: dict[str, tuple[Callable[[Draw], Plan], float]] = {
    "aggregate": (_aggregate, 12),
    "filtered_aggregate": (_filtered, 14),
    "filtered_twice": (_filtered_twice, 5),
    "aggregate_above": (_filtered_above, 4),
    "extreme_group": (_extreme_group, 12),
    "top_groups": (_top_groups, 7),
    "extreme_row": (_extreme_row, 8),
    "top_rows": (_top_rows, 5),
    "rows": (_rows, 2),
    "count_equal": (_count_equal, 7),
    "count_above": (_count_above, 6),
    "count_both": (_count_both, 5),
    "distinct": (_distinct, 5),
    "most_common": (_most_common, 5),
    "missing": (_missing, 3),
    "correlation": (_correlation, 6),
    "share_of_rows": (_share_of_rows, 5),
    "share_of_sum": (_share_of_sum, 5),
    "ratio": (_ratio, 5),
    "difference": (_difference, 6),
}


def execute(code: str, frame: pd.DataFrame) -> str:
    """Printed output of one of this module's own cells (trusted code; models' code runs in the sandbox)."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {"df": frame, "pd": pd, "np": np})
    return out.getvalue().strip()


def _is_clear(frame: pd.DataFrame, plan: Plan) -> bool:
    """No tie at the cut: the k-th and the next value differ by more than rounding."""
    if plan.unique is None:
        return True
    series = eval(plan.unique, {"df": frame, "pd": pd}).dropna().sort_values(ascending=False)
    values = series.to_numpy(dtype=float)[: plan.k + 1]
    if not np.isfinite(values).all() or len(values) < 2:
        return False
    gaps = -np.diff(values)
    return bool((gaps > 1e-6 * np.maximum(1.0, np.abs(values[:-1]))).all())


def _gold(plan: Plan, printed: str) -> tuple[Check, str]:
    if plan.answer in {"number", "percent"}:
        value = float(printed)
        if not math.isfinite(value):
            raise Unfit
        return Check(kind="number", value=value, unit="%" if plan.answer == "percent" else None), printed
    if plan.answer == "count":
        return Check(kind="number", value=int(printed)), printed
    if plan.answer == "value":
        return Check(kind="text", value=printed), printed
    values = [str(v) for v in eval(printed, {"__builtins__": {}})]
    return Check(kind="ordered_list", value=values), ", ".join(values)


def draw_question(
    frame: pd.DataFrame, rng: random.Random, language: str = "en", kind: str | None = None
) -> GeneralQuestion | None:
    """One question over `frame` (the DataFrame `df` of the agent), or None where the drawn kind does not fit."""
    kind = kind or rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    try:
        plan = KINDS[kind][0](Draw(frame, rng, language))
        if not _is_clear(frame, plan):
            return None
        printed = execute(plan.code, frame)
        if not printed or printed == "nan" or len(printed) > 200:
            return None
        check, stated = _gold(plan, printed)
    except (Unfit, ValueError, SyntaxError, NameError):
        return None
    phrase = rng.choice(QUESTIONS[language][kind])
    question = phrase(plan.said, rng)
    answer = ANSWERS[language][plan.answer](stated)
    program = repr((kind, *plan.arguments))
    return GeneralQuestion(kind, program, question, plan.code, check, answer, plan.columns)
