"""A world over a user's own tables: what their metric definitions name, and the dimensions that the data shows.

Every definition is checked against the tables before anything is built; a join that would multiply rows is refused.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sqlite3
import string
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from agentic.errors import MissingExtra, UserError
from agentic.records import TableRef
from agentic.tables.card import load_tables
from agentic.tables.names import close_columns, quote
from agentic.tables.read import read_table
from agentic.tables.sqlite_file import is_sqlite, open_reader, table_names
from agentic.tasks.definitions import Definitions, JoinLine, read_definitions
from agentic.tasks.draw import column_roles, humanised
from agentic.tasks.metrics import Metric
from agentic.tasks.world import Dimension, Join, Level, World

MOST_LEVELS = 60
_TEXT = {".csv", ".tsv", ".txt", ".gz"}
_EXCEL = {".xlsx", ".xls", ".xlsm"}
_TIME_NAME = re.compile(r"(^|_)(year|quarter|month|week|date|day|period|half)(_|$)|年|季度|月|周|日期", re.I)
_TIME_VALUE = re.compile(r"\d{4}([-/ ]?[QHW]?\d{1,2})?([-/]\d{1,2})?")


def own_world(metrics_file: Path, folder: Path, staging: Path) -> World:
    """Reads definitions and tables, writes the tables that are used to staging/tables, and finds their dimensions.

    Raises UserError naming file, line and remedy for a definition that does not fit the tables.
    """
    definitions = read_definitions(metrics_file)
    frames = read_folder(folder)
    used = _used_tables(definitions, frames, metrics_file, folder)
    (staging / "tables").mkdir()
    for name in used:
        frames[name] = _with_months(frames[name])
        frames[name].to_csv(staging / "tables" / f"{name}.csv", index=False)
    refs = [TableRef(name=name, path=f"tables/{name}.csv") for name in used]
    # What the agent will read, not what was read from the user's file.
    read = {name: table.frame for name, table in load_tables(refs, staging).items()}
    joins: dict[str, list[Join]] = {}
    for line in definitions.joins:
        if line.table in used:
            _check_join(line, read, metrics_file)
            joins.setdefault(line.table, []).append(Join(line.other, line.on))
    world = World("", refs, read, [], definitions.metrics, _variables(used), joins)
    for metric in definitions.metrics:
        _check_columns(metric, world, metrics_file)
    dimensions = _dimensions(world)
    if not dimensions:
        raise UserError(
            f"{folder}: no column to slice by; the tables need a column with 2 to {MOST_LEVELS} values that repeat"
        )
    return World("", refs, read, dimensions, definitions.metrics, _variables(used), joins)


# ------------------------------------------------------------------------------------------------------ tables


def read_folder(folder: Path) -> dict[str, pd.DataFrame]:
    """Table name -> frame for every csv, xlsx and sqlite file in a folder (or for the one file given)."""
    if not folder.exists():
        raise UserError(f"{folder}: no such folder; name the folder that holds your tables")
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else [folder]
    frames: dict[str, pd.DataFrame] = {}
    for file in files:
        for name, frame in _read_file(file).items():
            if name in frames:
                raise UserError(f"{file}: a second table is called {name!r}; rename the file or the sheet")
            frames[name] = frame
    if not frames:
        raise UserError(f"{folder}: no csv, xlsx or sqlite file; put your tables there")
    return frames


def _read_file(file: Path) -> dict[str, pd.DataFrame]:
    if is_sqlite(file):
        with closing(open_reader(str(file))) as connection:
            try:
                return {_identifier(name): _read_sql(connection, name) for _, name in table_names(connection)}
            except (sqlite3.Error, pd.errors.DatabaseError) as error:
                raise UserError(f"{file}: cannot be read as a database ({error}); mend it or leave it out") from None
    if file.suffix.lower() in _EXCEL:
        try:
            sheets: dict[str, pd.DataFrame] = pd.read_excel(file, sheet_name=None)
        except ImportError:
            raise MissingExtra(f"{file}: reading Excel", "excel") from None
        except Exception as error:  # the reader's own errors have no common type
            raise UserError(f"{file}: cannot be read as Excel ({error}); save its sheets as csv files") from None
        if len(sheets) == 1:
            return {_identifier(file.stem): next(iter(sheets.values()))}
        return {_identifier(name): frame for name, frame in sheets.items()}
    if file.suffix.lower() in _TEXT:
        return {_identifier(file.name.split(".")[0]): read_table(file).frame}
    return {}


def _read_sql(connection: sqlite3.Connection, table: str) -> pd.DataFrame:
    return pd.read_sql_query(f"SELECT * FROM {quote(table)}", connection)


def _identifier(name: str) -> str:
    clean = re.sub(r"\W+", "_", name).strip("_").lower() or "table"
    taken = keyword.iskeyword(clean) or clean in dir(builtins) or clean in {"pd", "np"}
    return clean if clean.isidentifier() and not taken else f"t_{clean}"


def _with_months(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates get a column with their month: they have too many values to slice by."""
    frame = frame.copy()
    for name in [str(column) for column in frame.columns]:
        column = frame[name]
        month = f"{name}_month"
        if pd.api.types.is_datetime64_any_dtype(column) and month not in frame.columns:
            frame.insert(frame.columns.get_loc(name) + 1, month, column.dt.strftime("%Y-%m"))
    return frame


def _variables(tables: list[str]) -> dict[str, str]:
    """One letter a table, near its name; m and d are the code's own."""
    chosen: dict[str, str] = {}
    for table in tables:
        letters = [letter for letter in table + string.ascii_lowercase if letter in string.ascii_lowercase]
        free = (letter for letter in letters if letter not in {"m", "d", *chosen.values(), *tables})
        chosen[table] = next(free, f"{table}_rows")
    return chosen


# ------------------------------------------------------------------------------------------------------ checks


def _near(name: str, names: list[str]) -> str:
    close = close_columns(name, names)
    return f"did you mean {', '.join(map(repr, close))}?" if close else f"there are: {', '.join(names[:20])}"


def _used_tables(definitions: Definitions, frames: dict[str, pd.DataFrame], file: Path, folder: Path) -> list[str]:
    used: dict[str, None] = {}
    for metric in definitions.metrics:
        for table in metric.tables:
            if table not in frames:
                raise UserError(
                    f"{file}, line {metric.line}, metric {metric.id!r}: no table {table!r} in {folder}; {_near(table, list(frames))}"
                )
            used[table] = None
    for line in definitions.joins:
        for table in (line.table, line.other):
            if table not in frames:
                raise UserError(
                    f"{file}, line {line.line}: no table {table!r} in {folder}; {_near(table, list(frames))}"
                )
        if line.table in used:
            used[line.other] = None
    return list(used)


def _check_join(line: JoinLine, frames: dict[str, pd.DataFrame], file: Path) -> None:
    where = f"{file}, line {line.line}: the join of {line.table!r} with {line.other!r}"
    for table in (line.table, line.other):
        if line.on not in frames[table].columns:
            raise UserError(
                f"{where}: no column {line.on!r} in {table!r}; {_near(line.on, list(frames[table].columns))}"
            )
    keys = frames[line.other][line.on]
    repeated = keys[keys.duplicated()]
    if len(repeated):
        value = repeated.iloc[0]
        raise UserError(
            f"{where} would multiply rows: {line.on!r} is not unique in {line.other!r}"
            f" ({int((keys == value).sum())} rows have {value!r}); keep one row per key there"
        )
    if keys.isna().any():
        raise UserError(f"{where}: {line.on!r} has empty values in {line.other!r}; remove those rows")
    both = sorted((set(frames[line.table].columns) & set(frames[line.other].columns)) - {line.on})
    if both:
        raise UserError(f"{where}: both have a column {both[0]!r}; rename one of them")


def _check_columns(metric: Metric, world: World, file: Path) -> None:
    where = f"{file}, line {metric.line}, metric {metric.id!r}"
    for term in metric.terms:
        rows = world.rows(term.table)
        if term.column not in rows.columns:
            raise UserError(
                f"{where}: no column {term.column!r} in table {term.table!r}; {_near(term.column, [str(c) for c in rows.columns])}"
            )
        numeric = pd.api.types.is_numeric_dtype(rows[term.column]) and not pd.api.types.is_bool_dtype(rows[term.column])
        if term.aggregate not in {"count", "nunique"} and not numeric:
            raise UserError(
                f"{where}: {term.aggregate} needs numbers, and {term.table}.{term.column} holds none; use count or nunique,"
                " or mend the column"
            )
    for condition in metric.conditions:
        rows = world.rows(condition.table)
        if condition.column not in rows.columns:
            raise UserError(
                f"{where}: the filter '{condition}' names no column; {_near(condition.column, [str(c) for c in rows.columns])}"
            )
        if pd.api.types.is_numeric_dtype(rows[condition.column]) == isinstance(condition.value, str):
            raise UserError(
                f"{where}: the filter '{condition}' compares a column of {rows[condition.column].dtype} with {condition.value!r}"
            )
    if metric.time_field is not None and all(metric.time_field not in world.rows(t).columns for t in metric.tables):
        raise UserError(
            f"{where}: no column {metric.time_field!r} (time_field) in {', '.join(metric.tables)};"
            f" {_near(metric.time_field, [str(c) for t in metric.tables for c in world.rows(t).columns])}"
        )


# -------------------------------------------------------------------------------------------------- dimensions


def _dimensions(world: World) -> list[Dimension]:
    """Columns with few values that repeat. A time among them is found by the definitions, its name, or its values."""
    measured = {term.column for metric in world.metrics for term in metric.terms}
    times = {metric.time_field for metric in world.metrics} | {f"{metric.time_field}_month" for metric in world.metrics}
    found: dict[str, list[Level] | None] = {}
    for table in dict.fromkeys(table for metric in world.metrics for table in metric.tables):
        rows = world.rows(table)
        groups = {*column_roles(rows).groups, *(c for c in times if c in rows.columns)}
        for column in (str(name) for name in rows.columns if name in groups and name not in measured):
            levels = _levels(rows[column])
            known = found.get(column, [])
            if levels is None or known is None or len({type(level) for level in (*levels, *known)}) > 1:
                found[column] = None  # too many values, or text in one table and numbers in another
            else:
                found[column] = sorted({*known, *levels})
    dimensions = []
    for column, values in found.items():
        if values is not None and 2 <= len(values) <= MOST_LEVELS:
            dimensions.append(_dimension(column, tuple(values), column in times))
    return dimensions


def _levels(column: pd.Series) -> list[Level] | None:
    present = column.dropna()
    if not 1 <= present.nunique() <= MOST_LEVELS:
        return None
    if pd.api.types.is_float_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return None  # years with gaps read as 2023.0, which code cannot spell as the table shows it
    values: list[Any] = [value.item() if isinstance(value, np.generic) else value for value in present.unique()]
    if not all(isinstance(value, str | int) for value in values):
        return None
    if any(isinstance(value, str) and (len(value) > 60 or re.search(r"[\n{}]", value)) for value in values):
        return None
    return values


def _dimension(column: str, levels: tuple[Level, ...], declared: bool) -> Dimension:
    spoken = humanised(column).replace("{", "").replace("}", "") or "column"
    written = column.replace("{", "{{").replace("}", "}}")
    is_time = declared or (
        bool(_TIME_NAME.search(column)) and all(_TIME_VALUE.fullmatch(str(level)) for level in levels)
    )
    return Dimension(
        column=column,
        levels=levels,
        is_time=is_time,
        one_en=spoken,
        many_en=f"{spoken} values" if not is_time else f"{spoken}s",
        name_zh=column,
        where_en=" in {}" if is_time else f" with {spoken} {{}}",
        where_zh="{} " if is_time else f"{written}为{{}} ",
    )
