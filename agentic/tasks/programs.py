"""Programs of operations tasks: metric x operation x dimension x filters x arguments. Enumerated, and drawn.

The canonical form of a program is the identity of a task; question and language are only its clothes. Programs are not
kept anywhere to tell them apart: every program has a number within its shape (operation, metric, columns), and a drawing
walks through each shape's numbers in a shuffled order. So a million distinct programs take no memory, and every part of
one drawing is disjoint from every other.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from agentic.tasks.metrics import Metric
from agentic.tasks.world import Filters, Level, World

Arguments = tuple[Level, ...]

OPERATIONS: dict[str, float] = {
    "value": 20,
    "extreme": 16,
    "top_k": 10,
    "change": 12,
    "change_percent": 12,
    "difference": 12,
    "share": 8,
    "count_above": 8,
    "what_if": 10,
    "bottom_k": 6,
    "rank": 7,
    "contribution": 7,
    "ratio": 8,
    "list_above": 7,
    "scenario": 6,
    "chain_change": 8,
    "chain_metric": 10,
}
"""Operation -> weight in a drawing."""
CLASSIC = ("value", "extreme", "top_k", "change", "change_percent", "difference", "share", "count_above", "what_if")
"""The operations of the first release: the shipped adapter was trained on these."""
CLASSIC_METRICS = (
    *(
        "gmv",
        "refund_amount",
        "net_revenue",
        "refund_rate.amount",
        "refund_rate.orders",
        "orders",
        "aov.gross",
        "aov.net",
    ),
    *("spend", "impressions", "clicks", "ctr", "cpc", "cpm", "roas.gross", "roas.net", "new_users", "active_users"),
    *("new_user_share", "cac", "gmv_per_user", "orders_per_user"),
)
"""Its metrics."""
UNSEEN: dict[str, float] = {"spread": 1, "top_share": 1, "drill": 1}
"""Task families that only test_unseen.jsonl has."""

RISES = tuple(sign * percent for percent in (2, 5, 8, 10, 12, 15, 20, 25, 30) for sign in (1, -1))
QUANTILES = tuple(0.15 + 0.05 * step for step in range(15))
_ADDITIVE = {"share", "contribution", "top_share"}
_OVER_TIME = {"change", "change_percent"}
_ALONG_TIME = {"contribution", "chain_change"}
_WITHOUT_DIMENSION = {"value", "what_if", "scenario"}
_LIMITS = {"count_above", "list_above"}
_CHAINED = {"chain_metric"}
_FILTER_COUNTS = {0: 1, 1: 3, 2: 2}


@dataclass(frozen=True)
class Program:
    metric: Metric
    operation: str
    dimension: str | None
    filters: Filters
    """(column, value) in the order of the columns' names."""
    arguments: Arguments = ()
    along: str | None = None
    """A second dimension: the periods of a contribution, the finer column of a drill."""
    second: Metric | None = None
    """The metric of a chain's second step."""

    @property
    def canonical(self) -> str:
        where = "&".join(f"{column}={value}" for column, value in self.filters)
        by = f"{self.dimension},{self.along}" if self.along else self.dimension
        said = ",".join(map(str, self.arguments))
        return f"{self.operation}({self.metric.computation};by={by};where={where};args={said})"


@dataclass(frozen=True)
class Shape:
    """Programs that differ only in filter values and arguments."""

    operation: str
    metric: Metric
    dimension: str | None
    along: str | None
    columns: tuple[str, ...]
    """Filtered columns, sorted."""


def round_limit(value: float) -> int | float:
    """A threshold with about three digits, as a person would say it."""
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return int(round(value, -digits))
    return round(value) if abs(value) >= 50 else round(value, 2)


class Space:
    """All programs over a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.computed: dict[str, list[Metric]] = {}
        """Computation -> definitions that compute it, the first one standing for all."""
        for metric in world.metrics:
            self.computed.setdefault(metric.computation, []).append(metric)
        self._arguments: dict[object, tuple[Arguments, ...]] = {}

    def shapes(self, operation: str) -> Iterator[tuple[Shape, float]]:
        """Every shape of an operation with its weight. Filters are on none to two columns, at most one of them a time."""
        metrics = [definitions[0] for definitions in self.computed.values()]
        metrics = [m for m in metrics if m.additive or operation not in _ADDITIVE]
        for metric in metrics:
            for (dimension, along), weight in self._dimensions(operation, metric).items():
                taken = {name for name in (dimension, along) if name}
                for columns, chance in self._filtered(operation, metric, taken).items():
                    shape = Shape(operation, metric, dimension, along, columns)
                    if self.arguments(shape):
                        yield shape, weight * chance / len(metrics)

    def _dimensions(self, operation: str, metric: Metric) -> dict[tuple[str | None, str | None], float]:
        dimensions = self.world.dimensions
        columns = self.world.columns(metric)
        places = [c for c in columns if not dimensions[c].is_time]
        times = [c for c in columns if dimensions[c].is_time]
        if operation in _WITHOUT_DIMENSION:
            return {(None, None): 1.0}
        if operation in _OVER_TIME:
            return {(time, None): 1 / len(times) for time in times}
        if operation in _ALONG_TIME:
            return {(place, time): 1.0 for place in places for time in times}
        if operation == "drill":
            return {(one, other): 1.0 for one in places for other in places if one != other}
        found: dict[tuple[str | None, str | None], float] = {(place, None): 2.0 for place in places}
        if operation == "extreme" and times:
            found[(min(times, key=lambda c: len(dimensions[c].levels)), None)] = 1.0
        if operation == "chain_metric":
            found |= {(time, None): 1.0 for time in times}
        total = sum(found.values())
        return {key: weight / total for key, weight in found.items()}

    def _filtered(self, operation: str, metric: Metric, taken: set[str]) -> dict[tuple[str, ...], float]:
        dimensions = self.world.dimensions
        timed = any(dimensions[column].is_time for column in taken)
        free = [c for c in self.world.columns(metric) if c not in taken and not (timed and dimensions[c].is_time)]
        sets: dict[int, list[tuple[str, ...]]] = {}
        for size in _FILTER_COUNTS:
            if size == 0 and operation in {"value", "what_if", "scenario"}:
                continue
            chosen = [tuple(sorted(columns)) for columns in itertools.combinations(free, size)]
            sets[size] = [columns for columns in chosen if sum(dimensions[c].is_time for c in columns) <= 1]
        total = sum(_FILTER_COUNTS[size] for size, columns in sets.items() if columns)
        return {c: _FILTER_COUNTS[size] / total / len(columns) for size, columns in sets.items() for c in columns}

    def arguments(self, shape: Shape) -> tuple[Arguments, ...]:
        """All argument tuples of a shape. Unordered pairs stand once: which of the two is named first is no new program."""
        key = (
            shape.operation,
            shape.dimension,
            shape.along,
            shape.metric.id,
            shape.operation in _CHAINED and shape.columns,
        )
        if key not in self._arguments:
            self._arguments[key] = tuple(self._list_arguments(shape))
        return self._arguments[key]

    def _list_arguments(self, shape: Shape) -> Iterator[Arguments]:
        operation, dimensions = shape.operation, self.world.dimensions
        levels = dimensions[shape.dimension].levels if shape.dimension else ()
        along = dimensions[shape.along].levels if shape.along else ()
        if operation in {"change", "change_percent", "difference", "ratio"}:
            yield from itertools.combinations(levels, 2)  # periods in their order
        elif operation in {"extreme", "drill"}:
            yield from ((True,), (False,))
        elif operation in {"top_k", "bottom_k"}:
            yield from ((k,) for k in (2, 3, 4) if k < len(levels))
        elif operation in {"share", "rank"}:
            yield from ((level,) for level in levels)
        elif operation in _LIMITS:
            yield from ((step,) for step in range(len(QUANTILES)))
        elif operation == "contribution":
            yield from ((level, *pair) for level in levels for pair in itertools.combinations(along, 2))
        elif operation == "chain_change":
            yield from ((top, *pair) for top in (True, False) for pair in itertools.combinations(along, 2))
        elif operation == "chain_metric":
            others = [m[0].computation for m in self.computed.values() if self._follows(shape, m[0])]
            yield from ((top, other) for other in others for top in (True, False))
        elif operation == "what_if":
            yield from ((rise,) for rise in RISES)
        elif operation == "scenario":
            if self.scenario_parts(shape.metric) is not None:
                yield from itertools.product(RISES, RISES)
        else:
            yield ()

    def _follows(self, shape: Shape, other: Metric) -> bool:
        sliced = {shape.dimension, *shape.columns}
        return sliced.issubset(self.world.columns(other)) and bool(self._variants(shape.metric, other))

    def _variants(self, metric: Metric, other: Metric) -> list[tuple[Metric, Metric]]:
        """Definitions of two computations that can stand in one question: under two different names."""
        if metric.computation == other.computation:
            return []
        pairs = itertools.product(self.computed[metric.computation], self.computed[other.computation])
        return [(one, two) for one, two in pairs if one.id.split(".")[0] != two.id.split(".")[0]]

    def scenario_parts(self, metric: Metric) -> tuple[Metric, Metric] | None:
        """The metrics that a quotient's numerator and denominator are, where both have a name."""
        parts = metric.parts()
        if parts is None or metric.conditions:
            return None
        found = [next((m for m in self.world.metrics if m.expression == part), None) for part in parts[:2]]
        return (
            (found[0], found[1]) if found[0] and found[1] and not (found[0].conditions + found[1].conditions) else None
        )

    def capacity(self, shape: Shape) -> int:
        levels = [len(self.world.dimensions[column].levels) for column in shape.columns]
        return math.prod(levels) * len(self.arguments(shape))

    def program(self, shape: Shape, number: int) -> Program | None:
        """Program number 0 to capacity - 1 of a shape; None where its threshold is said as another program's is."""
        arguments = self.arguments(shape)
        number, position = divmod(number, len(arguments))
        filters = []
        for column in shape.columns:
            levels = self.world.dimensions[column].levels
            number, place = divmod(number, len(levels))
            filters.append((column, levels[place]))
        program = Program(
            shape.metric, shape.operation, shape.dimension, tuple(filters), arguments[position], shape.along
        )
        return self._with_limit(program) if shape.operation in _LIMITS else program

    def _with_limit(self, program: Program) -> Program | None:
        assert program.dimension is not None
        values = self.world.series(program.metric, (program.dimension,), program.filters)
        values = values[~np.isnan(values)]
        if len(values) < 3 or not np.isfinite(values).all():
            return None
        limits = [round_limit(float(limit)) for limit in np.quantile(values, QUANTILES)]
        step = int(program.arguments[0])
        if limits[step] in limits[:step]:
            return None
        return Program(program.metric, program.operation, program.dimension, program.filters, (limits[step],))

    def dressed(self, program: Program, rng: random.Random) -> Program:
        """The program under one of the definitions that compute it (GMV without refunds is net revenue)."""
        definitions = self.computed[program.metric.computation]
        if program.operation == "chain_metric":
            one, two = rng.choice(self._variants(program.metric, self.world.by_id[str(program.arguments[1])]))
            return _replaced(program, one, two)
        if program.operation == "scenario":
            definitions = [m for m in definitions if self.scenario_parts(m) is not None]
        return _replaced(program, rng.choice(definitions), None)


def _replaced(program: Program, metric: Metric, second: Metric | None) -> Program:
    return Program(
        metric, program.operation, program.dimension, program.filters, program.arguments, program.along, second
    )


def count_programs(world: World, operations: Mapping[str, float]) -> dict[str, int]:
    """Operation -> number of programs, those included that turn out to be ties or empty."""
    space = Space(world)
    return {name: sum(space.capacity(shape) for shape, _ in space.shapes(name)) for name in operations}


def all_programs(world: World, operations: Mapping[str, float]) -> Iterator[Program]:
    """Every program, one after the other; none is kept."""
    space = Space(world)
    for name in operations:
        for shape, _ in space.shapes(name):
            for number in range(space.capacity(shape)):
                program = space.program(shape, number)
                if program is not None:
                    yield program


class _Walk:
    """The numbers 0 to size - 1 in a shuffled order: i -> (a * i + b) mod size with a coprime to size."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self.size, self.left = size, size
        self.start = rng.randrange(size)
        self.step = next(a for a in iter(lambda: rng.randrange(1, size + 1), None) if math.gcd(a, size) == 1)

    def __next__(self) -> int:
        self.left -= 1
        return (self.start + self.left * self.step) % self.size


def draw_programs(world: World, operations: Mapping[str, float], seed: str) -> Iterator[Program]:
    """Distinct programs without end (until there are no more), drawn by the operations' weights. Memory does not grow."""
    space, rng = Space(world), random.Random(seed)
    weights = {name: weight for name, weight in operations.items() if weight > 0}
    shapes: dict[str, list[Shape]] = {}
    sums: dict[str, list[float]] = {}
    walks: dict[Shape, _Walk] = {}
    while weights:
        operation = rng.choices(list(weights), list(weights.values()))[0]
        if operation not in shapes:
            found = list(space.shapes(operation))
            shapes[operation] = [shape for shape, _ in found]
            sums[operation] = list(accumulate(weight for _, weight in found))
        many = shapes[operation]
        # Behind an exhausted shape the next one that has programs left serves.
        first = rng.choices(range(len(many)), cum_weights=sums[operation])[0] if many else 0
        for place in (*range(first, len(many)), *range(first)):
            shape = many[place]
            if shape not in walks:
                walks[shape] = _Walk(space.capacity(shape), rng)
            if walks[shape].left:
                program = space.program(shape, next(walks[shape]))
                if program is not None:
                    yield space.dressed(program, rng)
                break
        else:
            del weights[operation]
