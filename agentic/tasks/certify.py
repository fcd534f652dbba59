"""The gold of a task computed a second time, in SQL, on the rows of the table files: duckdb if installed, else sqlite.

A world whose values come from SQL gives the same gold or the task is dropped. Tables are aggregated before they are put
beside each other, so no join multiplies rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from agentic.tables.names import quote
from agentic.tasks.draw import Unfit
from agentic.tasks.metrics import Condition, Metric, Term, sql_expression
from agentic.tasks.ops import OpsQuestion
from agentic.tasks.ops_gold import NUMBERS, gold_of
from agentic.tasks.world import Filters, World

_FUNCTIONS = {
    "sum": "COALESCE(SUM({}), 0)",
    "mean": "AVG({})",
    "min": "MIN({})",
    "max": "MAX({})",
    "count": "COUNT({})",
    "nunique": "COUNT(DISTINCT {})",
}


class Certifier:
    """Compares golds with those of SQL."""

    def __init__(self, world: World) -> None:
        self._world = _SqlWorld(world)
        self.engine = self._world.engine

    def problem(self, asked: OpsQuestion) -> str | None:
        """Why SQL does not confirm the gold, or None."""
        said = f"not confirmed by {self.engine}"
        try:
            gold = gold_of(self._world, asked.program, asked.arguments)
        except Unfit:
            return f"{said}: a tie or an empty slice there"
        except self._world.errors as error:
            return f"{said}: {type(error).__name__} there"
        if asked.gold.kind in NUMBERS:
            same = math.isclose(gold.value, asked.gold.value, rel_tol=1e-6, abs_tol=1.5e-4)
        else:
            same = gold.value == asked.gold.value
        return None if same and gold.best == asked.gold.best else f"{said}: another value"


class _SqlWorld(World):
    def __init__(self, world: World) -> None:
        dimensions, metrics = list(world.dimensions.values()), world.metrics
        super().__init__(world.name, world.refs, world.frames, dimensions, metrics, world.variables, world.joins)
        self._dense: dict[object, np.ndarray] = {}
        self.errors: type[Exception]
        try:
            import duckdb
        except ImportError:
            import sqlite3

            self.engine, self.errors = "sqlite", sqlite3.Error
            self._connection: Any = sqlite3.connect(":memory:")
            for name, frame in world.frames.items():
                frame.to_sql(name, self._connection, index=False)
        else:
            self.engine, self.errors, self._connection = "duckdb", duckdb.Error, duckdb.connect(config={"threads": 1})
            for name, frame in world.frames.items():
                self._connection.register(name, _nullable(frame))

    def series(self, metric: Metric, by: tuple[str, ...], filters: Filters) -> np.ndarray:
        columns = (*by, *(column for column, _ in filters))
        key = (metric.expression, metric.conditions, columns)
        if key not in self._dense:
            self._make_room(columns, self._dense)
            self._dense[key] = self._compute(metric, columns)
        place: Any = (..., *(self._index[column][level] for column, level in filters))
        return self._dense[key][place]

    def _compute(self, metric: Metric, columns: tuple[str, ...]) -> np.ndarray:
        names = {term: f"v{number}" for number, term in enumerate(metric.terms)}
        keys = [quote(column) for column in columns]
        parts = [self._aggregated(table, metric, names, keys) for table in metric.tables]
        source = f"({parts[0]}) AS p0"
        for number, part in enumerate(parts[1:], start=1):
            how = f"USING ({', '.join(keys)})" if keys else "ON 1 = 1"
            source += f" JOIN ({part}) AS p{number} {how}"
        sql = f"SELECT {', '.join([*keys, sql_expression(metric.expression, names)])} FROM {source}"
        dense = np.full([len(self.dimensions[column].levels) for column in columns], np.nan)
        for *labels, value in self._connection.execute(sql).fetchall():
            place = tuple(self._index[column].get(label, -1) for column, label in zip(columns, labels, strict=True))
            if value is not None and min(place, default=0) >= 0:
                dense[place] = float(value)
        return dense

    def _aggregated(self, table: str, metric: Metric, names: dict[Term, str], keys: list[str]) -> str:
        terms = [term for term in metric.terms if term.table == table]
        columns = [f"{_FUNCTIONS[term.aggregate].format(quote(term.column))} AS {names[term]}" for term in terms]
        conditions = [_condition(condition) for condition in metric.conditions if condition.table == table]
        source = quote(table)
        for join in self.joins.get(table, []):
            source += f" LEFT JOIN {quote(join.other)} USING ({quote(join.on)})"
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        # Without groups an empty selection would still give one row.
        grouped = f" GROUP BY {', '.join(keys)}" if keys else " HAVING COUNT(*) > 0"
        return f"SELECT {', '.join([*keys, *columns])} FROM {source}{where}{grouped}"


def _condition(condition: Condition) -> str:
    value = condition.value
    literal = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
    comparison = {"==": "="}.get(condition.comparison, condition.comparison)
    column = quote(condition.column)
    # pandas keeps rows whose value is missing when it compares with !=.
    return f"({column} {comparison} {literal}" + (f" OR {column} IS NULL)" if comparison == "!=" else ")")


def _nullable(frame: pd.DataFrame) -> pd.DataFrame:
    """Missing numbers as NULL: a plain float column would bring NaN, which SQL's sums keep."""
    converted: dict[str, Any] = {}
    for name in frame.columns:
        column = frame[name]
        is_text = not pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_datetime64_any_dtype(column)
        converted[str(name)] = column.astype(object).where(column.notna(), None) if is_text else column
        if pd.api.types.is_float_dtype(column) and column.isna().any():
            converted[str(name)] = column.astype("Float64")
    return pd.DataFrame(converted)
