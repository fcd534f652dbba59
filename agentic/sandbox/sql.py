"""Read-only SQL inside a session: sqlite files through an authorizer, the task's tables through DuckDB.

The environment's prelude calls `connect`; cells call the helper it returns, the tool calls `run_tool`. What the queries
cannot do is decided here; what a cell can do around them (open the session's own copy and write to it) by the sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

import pandas as pd

from agentic.sandbox.sql_frames import FrameSource
from agentic.sandbox.sql_source import Answer, Source, SqlError, SqliteSource, hints, listed
from agentic.tools import sqltext

TABLES = "tables"
HELPER_ROWS = 100_000
VALUE_CHARS = 120
_LARGEST_EXACT = 1 << 53

_sources: dict[str, Source] = {}
_deadline_s = 9.0


def connect(
    databases: Mapping[str, str], tables: Mapping[str, pd.DataFrame], deadline_s: float
) -> Callable[..., pd.DataFrame]:
    """Make the sources known; returns the helper `sql`. `databases`: file by name; a query may take `deadline_s` seconds."""
    global _deadline_s
    _sources.clear()
    _sources.update({name: SqliteSource(file) for name, file in databases.items()})
    if tables:
        _sources[TABLES] = FrameSource(tables)
    _deadline_s = deadline_s
    return sql


def sql(query: str, database: str | None = None, max_rows: int = HELPER_ROWS) -> pd.DataFrame:
    """Run one read-only query (SELECT, WITH, VALUES, EXPLAIN) and return its first `max_rows` rows; prints when there are more.

    `database`: name of a database, or "tables" for the task's tables; may be left out when there is only one database.
    Raises SqlError (not allowed, or it does not work), TimeoutError, MemoryError.
    """
    answer = _run(query, database, max_rows)
    if answer.more:
        print(f"(first {max_rows} rows of more)")
    for hint in answer.hints:  # not a warning: those are shown once only
        print(f"Hint: {hint}")
    return _frame(answer)


def run_tool(query: str, database: str, max_rows: int) -> None:
    """Print what `sql_executor` answers: a row a line, then how many rows, then hints. Raises as `sql` does."""
    answer = _run(query, database or None, max_rows)
    lines = [" | ".join(_value(name) for name in answer.columns)] if answer.rows else []
    lines += [" | ".join(map(_value, row)) for row in answer.rows]
    count = len(answer.rows)
    lines.append(f"(first {count} rows of more)" if answer.more else f"({count} row{'s' if count != 1 else ''})")
    print("\n".join([*lines, *(f"Hint: {hint}" for hint in answer.hints)]))


def _run(query: str, database: str | None, max_rows: int) -> Answer:
    name, source = _choose(database)
    if not isinstance(query, str):
        raise SqlError(f"the query must be a text, found {type(query).__name__}")
    if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
        raise SqlError(f"max_rows must be a number from 1 on, found {max_rows!r}")
    try:
        query.encode()
        statement = sqltext.one_query(query, source.dialect)
    except sqltext.StatementError as error:
        tables = f"; {listed(source.schema())}" if sqltext.is_look_around(query) else ""
        raise SqlError(f"{error}{tables}") from None
    except UnicodeEncodeError:
        raise SqlError("the query holds half a character (a lone surrogate)") from None
    try:
        answer = source.run(statement, max_rows, _deadline_s)
    except SqlError as error:
        raise SqlError(f"{error}{_elsewhere(str(error), name)}") from None
    answer.hints += hints(statement, source)
    return answer


def _choose(database: str | None) -> tuple[str, Source]:
    """The source called `database`; None: the only database, or the tables when there is none."""
    if not _sources:
        raise SqlError("there is nothing to query")
    if database is None:
        named = [name for name in _sources if name != TABLES] or list(_sources)
        if len(named) > 1:
            raise SqlError(f"say which database: {', '.join(_sources)}")
        return named[0], _sources[named[0]]
    for name in _sources:
        if isinstance(database, str) and name.lower() == database.strip().lower():
            return name, _sources[name]
    raise SqlError(f"unknown database {database!r}; there are: {', '.join(_sources)}")


def _elsewhere(message: str, name: str) -> str:
    """Where a table is that was looked for in the wrong place."""
    missing = re.search(r"no such table: (?:main\.)?([^;]+)|Table with name (\S+) does not exist", message)
    wanted = (missing[1] or missing[2]).strip().lower() if missing else ""
    for other, source in _sources.items():
        if wanted and other != name and wanted in map(str.lower, source.schema()):
            return f"; {wanted} is in database={other!r}"
    return ""


def _frame(answer: Answer) -> pd.DataFrame:
    """Nothing beside large integers turns them into floats that round them; decimals become floats."""
    series = {}
    for position, name in enumerate(answer.columns):
        values = [float(row[position]) if isinstance(row[position], Decimal) else row[position] for row in answer.rows]
        large = any(type(value) is int and abs(value) > _LARGEST_EXACT for value in values)
        exact = large and not all(type(value) is int for value in values)
        series[name] = pd.Series(values, dtype=object if exact else None)
    return pd.DataFrame(series, columns=answer.columns)


def _value(value: object) -> str:
    """One value on one line."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.15g}"
    text = str(value).replace("\r", "\\r").replace("\n", "\\n")
    return text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]}… ({len(text)} characters)"
