"""The gold of a program, looked up in a world's arrays; and the golds of programs that are mistaken for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from agentic.tasks.draw import Unfit
from agentic.tasks.programs import Arguments, Program
from agentic.tasks.world import Filters, Level, World

SMALLEST = 0.005
"""Golds nearer to zero would keep too few of their four decimals."""
NUMBERS = {"number", "percent"}


@dataclass(frozen=True)
class Gold:
    kind: str
    """number, percent, count, rank, value (one level), values (in order) or items (in any order)."""
    value: Any
    best: Level | None = None
    """What an earlier step of a chain found."""
    parts: tuple[float, ...] = ()
    """The numbers that the calculator gets."""


def clear(values: list[float]) -> bool:
    """Neighbouring values differ by more than rounding, so a tie never decides."""
    return all(abs(a - b) > 1e-6 * max(1.0, abs(a)) for a, b in pairwise(values))


def _number(value: float) -> float:
    rounded = round(float(value), 4)
    if not math.isfinite(rounded) or abs(rounded) < SMALLEST:
        raise Unfit
    return rounded


class _Series:
    """A metric by one dimension, the levels without rows left out. Raises Unfit for zero denominators and single levels."""

    def __init__(self, world: World, program: Program, dimension: str, filters: Filters) -> None:
        values = world.series(program.metric, (dimension,), filters)
        levels = world.dimensions[dimension].levels
        self.values = {
            level: value for level, value in zip(levels, values.tolist(), strict=True) if not math.isnan(value)
        }
        if len(self.values) < 2 or not all(map(math.isfinite, self.values.values())):
            raise Unfit

    def __getitem__(self, level: Level) -> float:
        if level not in self.values:
            raise Unfit
        return self.values[level]

    def order(self, count: int, top: bool = True) -> list[Level]:
        """The first `count` levels. Raises Unfit where a tie would decide."""
        ordered = sorted(self.values.items(), key=lambda item: item[1], reverse=top)
        if len(ordered) < count or not clear([value for _, value in ordered[: count + 1]]):
            raise Unfit
        return [level for level, _ in ordered[:count]]

    def total(self) -> float:
        total = sum(self.values.values())
        if total <= 0 or min(self.values.values()) < 0:
            raise Unfit  # a share of a sum with negative parts says nothing
        return total


def with_filter(filters: Filters, column: str, level: Level) -> Filters:
    return tuple(sorted([*filters, (column, level)], key=lambda item: item[0]))


def gold_of(world: World, program: Program, asked: Arguments) -> Gold:
    """The answer. `asked` are the arguments in the question's order. Raises Unfit for ties, empty slices, zero denominators."""
    operation, metric, filters = program.operation, program.metric, program.filters
    if operation in {"value", "what_if"}:
        value = float(world.series(metric, (), filters))
        if operation == "value":
            return Gold("number", _number(value))
        first = _number(value)
        return Gold("number", _number(first * rise_factor(asked[0])), parts=(first,))
    if operation == "scenario":
        return _scenario(world, program, asked)
    assert program.dimension is not None
    if operation == "contribution":
        return _contribution(world, program, asked)
    if operation in {"chain_change", "chain_metric", "drill"}:
        return _chain(world, program, asked)
    series = _Series(world, program, program.dimension, filters)
    if operation == "extreme":
        return Gold("value", series.order(1, bool(asked[0]))[0])
    if operation in {"top_k", "bottom_k"}:
        return Gold("values", series.order(int(asked[0]), operation == "top_k"))
    if operation == "rank":
        return Gold("rank", series.order(len(series.values)).index(_present(series, asked[0])) + 1)
    if operation == "change":
        return Gold("number", _number(series[asked[1]] - series[asked[0]]))
    if operation == "difference":
        return Gold("number", _number(series[asked[0]] - series[asked[1]]))
    if operation == "change_percent":
        return Gold("percent", _number(_percent_change(series[asked[0]], series[asked[1]])))
    if operation == "ratio":
        if min(series[asked[0]], series[asked[1]]) <= 0:
            raise Unfit
        return Gold("number", _number(series[asked[0]] / series[asked[1]]))
    if operation == "share":
        return Gold("percent", _number(series[asked[0]] / series.total() * 100))
    if operation == "top_share":
        best = series.order(1)[0]
        return Gold("percent", _number(series[best] / series.total() * 100), best)
    if operation == "spread":
        best, worst = series.order(1)[0], series.order(1, top=False)[0]
        return Gold("number", _number(series[best] - series[worst]))
    limit = float(asked[0])  # count_above, list_above
    if any(abs(value - limit) <= 1e-6 * max(1.0, abs(limit)) for value in series.values.values()):
        raise Unfit
    above = [level for level, value in series.values.items() if value > limit]
    if operation == "count_above":
        return Gold("count", len(above))
    if not 1 <= len(above) < len(series.values):
        raise Unfit
    return Gold("items", sorted(above))  # as a grouped series is ordered: levels of one column have one type


def rise_factor(percent: Level) -> float:
    return round(1 + float(percent) / 100, 2)


def _present(series: _Series, level: Level) -> Level:
    series[level]
    return level


def _percent_change(before: float, after: float) -> float:
    if before <= 0:
        raise Unfit
    return (after / before - 1) * 100


def _scenario(world: World, program: Program, asked: Arguments) -> Gold:
    parts = program.metric.parts()
    assert parts is not None
    upper, lower = (
        _number(float(world.series(replace(program.metric, expression=part), (), program.filters)))
        for part in parts[:2]
    )
    if lower <= 0:
        raise Unfit
    factor = float(parts[2].removeprefix(" * ") or 1)
    value = upper * rise_factor(asked[0]) / (lower * rise_factor(asked[1])) * factor
    return Gold("number", _number(value), parts=(upper, lower))


def _contribution(world: World, program: Program, asked: Arguments) -> Gold:
    assert program.dimension is not None and program.along is not None
    level, first, second = asked
    before = _Series(world, program, program.dimension, with_filter(program.filters, program.along, first))
    after = _Series(world, program, program.dimension, with_filter(program.filters, program.along, second))
    if before.values.keys() != after.values.keys():
        raise Unfit  # the code's subtraction would leave gaps
    change = sum(after.values.values()) - sum(before.values.values())
    if abs(change) < 0.01 * before.total():
        raise Unfit  # almost no change: every contribution to it is huge
    return Gold("percent", _number((after[level] - before[level]) / change * 100))


def _chain(world: World, program: Program, asked: Arguments) -> Gold:
    dimension, top = program.dimension, bool(asked[0])
    assert dimension is not None
    if program.operation == "chain_change":
        assert program.along is not None
        first = _Series(world, program, dimension, with_filter(program.filters, program.along, asked[1]))
        best = first.order(1, top)[0]
        later = _Series(world, program, program.along, with_filter(program.filters, dimension, best))
        return Gold("percent", _number(_percent_change(later[asked[1]], later[asked[2]])), best)
    best = _Series(world, program, dimension, program.filters).order(1, top)[0]
    inner = with_filter(program.filters, dimension, best)
    if program.operation == "drill":
        assert program.along is not None
        return Gold("value", _Series(world, program, program.along, inner).order(1, top)[0], best)
    assert program.second is not None
    return Gold("number", _number(float(world.series(program.second, (), inner))), best)


# ------------------------------------------------------------------------------------------ near mistakes


def mistaken(world: World, program: Program, asked: Arguments, gold: Gold) -> Iterator[tuple[str, Gold]]:
    """(what was mistaken, the gold it gives), where that is clearly another answer."""
    candidates: list[tuple[str, Program, Arguments]] = []
    sliced = {column for column, _ in program.filters} | {program.dimension, program.along} - {None}
    for rival in world.rivals(program.metric):
        if sliced.issubset(world.columns(rival)) and (program.operation != "scenario" or rival.parts()):
            candidates.append(("rival", replace(program, metric=rival), asked))
    for rival in world.rivals(program.second) if program.second is not None else ():
        if sliced.issubset({*world.columns(rival), program.along}):
            candidates.append(("rival", replace(program, second=rival), asked))
    if program.filters:
        candidates.append(("unfiltered", replace(program, filters=()), asked))
        column, level = program.filters[0]
        levels = world.dimensions[column].levels
        following = levels[(levels.index(level) + 1) % len(levels)]
        shifted = replace(program, filters=((column, following), *program.filters[1:]))
        candidates.append(("neighbour", shifted, asked))
    if program.operation in {"difference", "ratio", "change"}:
        candidates.append(("swapped", program, asked[::-1]))
    if program.operation in {"share", "rank", "contribution"} and program.dimension:
        levels = world.dimensions[program.dimension].levels
        following = levels[(levels.index(asked[0]) + 1) % len(levels)]
        candidates.append(("neighbour", program, (following, *asked[1:])))
    found: set[str] = set()
    for what, other, arguments in candidates:
        if what in found:
            continue
        try:
            wrong = gold_of(world, other, arguments)
        except Unfit:
            continue
        if _differs(gold, wrong):
            found.add(what)
            yield what, wrong


def _differs(gold: Gold, wrong: Gold) -> bool:
    if gold.kind in NUMBERS:
        return abs(wrong.value - gold.value) > max(0.02 * abs(gold.value), 0.001)
    if gold.kind == "items":
        return set(wrong.value) != set(gold.value)
    return bool(wrong.value != gold.value)
