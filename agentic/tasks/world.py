"""What operations questions are asked about: tables, their dimensions, metrics - and the metrics' values, computed once.

The gold of a program is looked up in dense arrays (one per metric and set of columns), not computed per task; the
expert's code then computes it again, in the sandbox, from the table files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentic.records import TableRef
from agentic.tasks.metrics import Metric, Term, rivals

Level = str | int | float | bool
Filters = tuple[tuple[str, Level], ...]

KEPT_CELLS = 10_000_000
"""Numbers of metrics kept at most (eight bytes each, and as much again for their terms)."""

_COMPARE = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


@dataclass(frozen=True)
class Dimension:
    """A column by which tables are sliced, and how people say it."""

    column: str
    levels: tuple[Level, ...]
    """In order: chronological for a time."""
    is_time: bool
    one_en: str
    many_en: str
    name_zh: str
    where_en: str
    """" for channel {}": stands behind the metric's name."""
    where_zh: str
    """"{} 渠道": stands before it."""


@dataclass(frozen=True)
class Join:
    """A table of facts that looks each row's key up in another table, whose keys are unique."""

    other: str
    on: str


class World:
    """A set of tables with dimensions and metrics."""

    def __init__(
        self,
        name: str,
        refs: list[TableRef],
        frames: dict[str, pd.DataFrame],
        dimensions: Sequence[Dimension],
        metrics: Sequence[Metric],
        variables: dict[str, str],
        joins: dict[str, list[Join]] | None = None,
    ) -> None:
        """`name` begins the canonical programs ("" for the built-in store); `variables`: table -> the code's variable."""
        self.name = name
        self.refs = refs
        self.frames = frames
        self.dimensions = {dimension.column: dimension for dimension in dimensions}
        self.variables = variables
        self.joins = joins or {}
        self._rows: dict[str, pd.DataFrame] = {}
        self._terms: dict[object, np.ndarray] = {}
        self._values: dict[object, np.ndarray] = {}
        self._cells = 0
        self._index = {c: {level: i for i, level in enumerate(d.levels)} for c, d in self.dimensions.items()}
        self.set_metrics(metrics)

    def set_metrics(self, metrics: Sequence[Metric]) -> None:
        self.metrics = list(metrics)
        self.by_id = {metric.id: metric for metric in self.metrics}
        self._rivals = {metric.id: rivals(metric, self.metrics) for metric in self.metrics}
        self._columns = {metric.id: self._shared_columns(metric) for metric in self.metrics}

    # ---------------------------------------------------------------------------------------- structure

    def source(self, table: str) -> str:
        """The rows of a table as code writes them, with the tables it looks up."""
        text = table
        for join in self.joins.get(table, []):
            text += f".merge({join.other}, on={join.on!r}, how='left')"
        return text

    def rows(self, table: str) -> pd.DataFrame:
        if table not in self._rows:
            frame = self.frames[table]
            for join in self.joins.get(table, []):
                frame = frame.merge(self.frames[join.other], on=join.on, how="left")
            self._rows[table] = frame
        return self._rows[table]

    def columns(self, metric: Metric) -> list[str]:
        """Dimensions that all tables of the metric have."""
        return self._columns[metric.id]

    def _shared_columns(self, metric: Metric) -> list[str]:
        frames = [self.rows(table) for table in metric.tables]
        return [column for column in self.dimensions if all(column in frame.columns for frame in frames)]

    def rivals(self, metric: Metric) -> list[Metric]:
        return self._rivals[metric.id]

    # ------------------------------------------------------------------------------------------- values

    def series(self, metric: Metric, by: tuple[str, ...], filters: Filters) -> np.ndarray:
        """Values over the levels of `by` (a single number for ()), NaN where a slice has no rows."""
        columns = (*by, *(column for column, _ in filters))
        key = (metric.expression, metric.conditions, columns)
        if key not in self._values:
            self._make_room(columns, self._values, self._terms)
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = {term: self._term(term, metric, columns) for term in metric.terms}
                self._values[key] = np.asarray(metric.value(terms), dtype=float)
        place: Any = (..., *(self._index[column][level] for column, level in filters))
        return self._values[key][place]

    def _make_room(self, columns: tuple[str, ...], *kept: dict[object, np.ndarray]) -> None:
        """Forget all arrays when they would take too much memory: wide tables have very many sets of columns."""
        self._cells += math.prod(len(self.dimensions[column].levels) for column in columns)
        if self._cells > KEPT_CELLS:
            self._cells = 0
            for arrays in kept:
                arrays.clear()

    def _term(self, term: Term, metric: Metric, columns: tuple[str, ...]) -> np.ndarray:
        conditions = tuple(condition for condition in metric.conditions if condition.table == term.table)
        key = (term, conditions, columns)
        if key not in self._terms:
            rows = self.rows(term.table)
            for condition in conditions:
                rows = rows[getattr(rows[condition.column], _COMPARE[condition.comparison])(condition.value)]
            self._terms[key] = self._aggregate(rows, term, columns)
        return self._terms[key]

    def _aggregate(self, rows: pd.DataFrame, term: Term, columns: tuple[str, ...]) -> np.ndarray:
        dense = np.full([len(self.dimensions[column].levels) for column in columns], np.nan)
        if not len(rows):
            return dense
        if not columns:
            return np.asarray(float(getattr(rows[term.column], term.aggregate)()))
        grouped: Any = rows.groupby(list(columns))[term.column].agg(term.aggregate)
        for labels, value in grouped.items():
            place = (
                tuple(self._index[c].get(label, -1) for c, label in zip(columns, labels, strict=True))
                if (len(columns) > 1)
                else (self._index[columns[0]].get(labels, -1),)
            )
            if min(place) >= 0:
                dense[place] = value
        return dense
