"""Read-only SQL inside a session: sqlite files through an authorizer, the task's tables through DuckDB.

The environment's prelude calls `connect`; cells call the helper it returns, the tool calls `run_tool`. What the queries
cannot do is decided here; what a cell can do around them (open the session's own copy and write to it) by the sandbox.
"""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn, Protocol

import pandas as pd

from agentic.tables.database import Blob, column_names, hold_numbers, open_reader, set_deadline, table_names
from agentic.tables.names import close_columns, quoted
from agentic.tools import sqltext

TABLES = "tables"
HELPER_ROWS = 100_000
VALUE_CHARS = 120
LISTED_CHARS = 300
PROBED_ROWS = 200
_PROBE_S = 0.2
_LARGEST_EXACT = 1 << 53
_MIB = 1 << 20
_DUCKDB_SETTINGS = (
    "temp_directory = ''",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "python_enable_replacements = false",
    "enable_external_access = false",
)


class SqlError(Exception):
    """The query is not allowed or does not work; the message says what to do."""


@dataclass
class Answer:
    columns: list[str]
    """Different from each other."""
    rows: list[tuple[Any, ...]]
    more: bool
    """There were more rows than asked for."""
    hints: list[str] = field(default_factory=list)


class Source(Protocol):
    def run(self, query: str, max_rows: int, seconds: float) -> Answer: ...

    def schema(self) -> dict[str, list[str]]:
        """Columns by table."""
        ...


class SqliteSource:
    def __init__(self, file: str) -> None:
        self._file = os.path.abspath(file)  # cells may change the working folder

    def schema(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with closing(open_reader(self._file)) as connection:
            set_deadline(connection, 1.0)
            for _, table in table_names(connection):
                try:
                    found[table] = column_names(connection, table)
                except sqlite3.Error:  # a view over a table that is gone
                    found[table] = []
        return found

    def run(self, query: str, max_rows: int, seconds: float) -> Answer:
        try:
            # The timer stops at the next row, the progress handler also lets Python see the supervisor's interrupt.
            with closing(open_reader(self._file)) as connection, _interrupted_after(seconds, connection.interrupt):
                set_deadline(connection, seconds)
                cursor = connection.execute(sqltext.without_double_quotes(query))
                rows = cursor.fetchmany(max_rows + 1)
                titles = [sqltext.as_written(column[0], query) for column in cursor.description]
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                _stopped(seconds)
            raise SqlError(self._explain(str(error), query)) from None
        shown = [tuple(Blob(value) if isinstance(value, bytes) else value for value in row) for row in rows]
        return _answer(titles, shown, max_rows)

    def probe(self, table: str, column: str) -> Sequence[object]:
        """Some values of a column."""
        # `quote` and not double quotes: the name comes from the schema, so it is a column.
        name, source = ("`" + part.replace("`", "``") + "`" for part in (column, table))
        try:
            with closing(open_reader(self._file)) as connection:
                set_deadline(connection, _PROBE_S)
                rows = connection.execute(f"SELECT {name} FROM {source} WHERE {name} IS NOT NULL LIMIT {PROBED_ROWS}")
                return [row[0] for row in rows]
        except sqlite3.Error:  # no hint then
            return []

    def _explain(self, message: str, query: str) -> str:
        if "not authorized" in message or "prohibited" in message or "attached databases" in message:
            return f"{message}: only SELECT is allowed, the database is read-only"
        what, _, wanted = message.partition(": ")
        if what == "no such function":
            return f"{message}; this is SQLite {sqlite3.sqlite_version}: dates with strftime('%Y', d), text with || and substr"
        if what in ("no such column", "no such table"):
            return f"{message}; {_nearest(what, wanted, query, self.schema())}"
        return message


class FrameSource:
    """The task's tables in DuckDB, which is loaded with the first query."""

    def __init__(self, frames: Mapping[str, pd.DataFrame]) -> None:
        # Shallow copies: with copy-on-write, what cells do to their frames does not reach these.
        self._frames = {name: frame.copy(deep=False) for name, frame in frames.items()}
        self._connection: Any = None
        self._memory_mb = 0

    def schema(self) -> dict[str, list[str]]:
        return {name: [str(column) for column in frame.columns] for name, frame in self._frames.items()}

    def run(self, query: str, max_rows: int, seconds: float) -> Answer:
        started = time.monotonic()
        import duckdb

        try:
            connection = self._connected()
        except duckdb.Error as error:
            raise SqlError(f"DuckDB does not start here ({error}); use Python on the tables") from None
        left = max(seconds - (time.monotonic() - started), _PROBE_S)  # loading it the first time takes a while
        try:
            self._only_reads(query)
            with _interrupted_after(left, connection.interrupt):
                cursor = connection.execute(query)
                rows = cursor.fetchmany(max_rows + 1)
            titles = [column[0] for column in cursor.description]
        except duckdb.InterruptException:
            _stopped(seconds)
        except duckdb.OutOfMemoryException:
            raise MemoryError(
                f"the query needed more than {self._memory_mb} MiB; select fewer rows or columns"
            ) from None
        except duckdb.Error as error:
            message = " ".join(str(error).partition("\n\nLINE")[0].split())
            if isinstance(error, duckdb.PermissionException):
                message += "; only the tables can be read"
            elif isinstance(error, duckdb.CatalogException | duckdb.BinderException):
                message += f"; {_listed(self.schema())}"
            raise SqlError(message) from None
        shown = [tuple(Blob(value) if isinstance(value, bytes) else value for value in row) for row in rows]
        return _answer(titles, shown, max_rows)

    def probe(self, table: str, column: str) -> Sequence[object]:
        values = self._frames[table][column]
        return list(values.dropna().iloc[:PROBED_ROWS]) if isinstance(values, pd.Series) else []

    def _connected(self) -> Any:
        if self._connection is None:
            import duckdb

            self._memory_mb = _memory_mb()
            # In this order: what comes after the access to files is given up cannot change where temporary ones go.
            connection = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": f"{self._memory_mb}MiB"})
            for setting in _DUCKDB_SETTINGS:
                connection.execute(f"SET {setting}")
            for name, frame in self._frames.items():
                connection.register(name, _plain(frame))
            connection.execute("SET lock_configuration = true")
            self._connection = connection
        return self._connection

    def _only_reads(self, query: str) -> None:
        """DuckDB's own parser decides: WITH may introduce an INSERT, and EXPLAIN ANALYZE runs what it explains."""
        import duckdb

        found = sqltext.tokens(query)
        if found[0].word == "EXPLAIN":
            inner = [token for token in found[1:] if token.word in ("SELECT", "WITH", "VALUES", "FROM")]
            before = {token.word for token in found[1 : found.index(inner[0])]} if inner else set()
            if not inner or not before <= {"ANALYZE", "(", ")", "FORMAT", "JSON", "TEXT", ",", "HTML", "GRAPHVIZ"}:
                raise SqlError("only SELECT can be explained")
            query = query[inner[0].start :]
        kinds = [statement.type for statement in self._connection.extract_statements(query)]
        if kinds != [duckdb.StatementType.SELECT]:
            raise SqlError("only one SELECT is allowed, the tables are read-only")


_sources: dict[str, SqliteSource | FrameSource] = {}
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
        statement = sqltext.one_query(query)
    except sqltext.StatementError as error:
        tables = f"; {_listed(source.schema())}" if sqltext.is_look_around(query) else ""
        raise SqlError(f"{error}{tables}") from None
    except UnicodeEncodeError:
        raise SqlError("the query holds half a character (a lone surrogate)") from None
    try:
        answer = source.run(statement, max_rows, _deadline_s)
    except SqlError as error:
        raise SqlError(f"{error}{_elsewhere(str(error), name)}") from None
    answer.hints += _hints(statement, source)
    return answer


def _choose(database: str | None) -> tuple[str, SqliteSource | FrameSource]:
    """The source called `database`; None: the only database, or the tables when there is none."""
    if not _sources:
        raise SqlError("there is nothing to query")
    if database is None:
        named = [name for name in _sources if name != TABLES] or list(_sources)
        if len(named) > 1:
            raise SqlError(f"say which database: {', '.join(_sources)}")
        return named[0], _sources[named[0]]
    for name in _sources:
        if name.lower() == database.strip().lower():
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


def _hints(query: str, source: SqliteSource | FrameSource) -> list[str]:
    """What a query that works may have got wrong without a word."""
    names = {token.name.lower() for token in sqltext.tokens(query) if token.kind == "name"}
    schema = {table: columns for table, columns in source.schema().items() if table.lower() in names}
    hints = [
        f'{number} is the number {number} here; the column is "{number}", in double quotes'
        for number in sqltext.number_names(query, [column for columns in schema.values() for column in columns])
    ]
    for wanted in sqltext.compared_names(query):
        for table, columns in schema.items():
            column = next((column for column in columns if column.lower() == wanted.lower()), None)
            if column is not None and hold_numbers(source.probe(table, column)):
                shown = quoted(column)
                hints.append(f"{shown} is text that holds numbers ('9' > '10'): use CAST({shown} AS REAL)")
    return list(dict.fromkeys(hints))


def _nearest(what: str, wanted: str, query: str, schema: Mapping[str, list[str]]) -> str:
    """What a name that is not there may have meant."""
    tables = list(schema)
    if what == "no such table":
        close = close_columns(wanted.removeprefix("main."), tables)
        return f"the table is {' or '.join(map(quoted, close))}" if close else _listed(schema)
    bare = wanted if sqltext.is_double_quoted(wanted, query) else wanted.rpartition(".")[2]
    used = {token.name.lower() for token in sqltext.tokens(query) if token.kind == "name"}
    holders = [table for table, columns in schema.items() if bare.lower() in map(str.lower, columns)]
    if holders:
        return f"{quoted(bare)} is a column of {', '.join(map(quoted, holders))}"
    near = {table: columns for table, columns in schema.items() if table.lower() in used} or dict(schema)
    close = close_columns(bare, [column for columns in near.values() for column in columns])
    told = f"the column is {' or '.join(map(quoted, close))}" if close else _listed(near)
    if sqltext.is_double_quoted(wanted, query):
        text = wanted.replace("'", "''")
        return f"in double quotes it is a name; a text is '{text}' in single quotes, {told}"
    return told


def _listed(schema: Mapping[str, list[str]]) -> str:
    """Tables with their columns, cut when long."""
    text = "; ".join(f"{quoted(table)}({', '.join(map(quoted, columns))})" for table, columns in schema.items())
    if len(text) > LISTED_CHARS:
        text = ", ".join(map(quoted, schema)) if len(schema) > 1 else text
    return f"the tables are: {text if len(text) <= LISTED_CHARS else text[:LISTED_CHARS] + '…'}"


def _answer(titles: Sequence[str], rows: list[tuple[Any, ...]], max_rows: int) -> Answer:
    columns: list[str] = []
    for title in titles:
        name, number = title, 2
        while name in columns or (name != title and name in titles):
            name, number = f"{title}_{number}", number + 1
        columns.append(name)
    return Answer(columns, rows[:max_rows], len(rows) > max_rows)


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


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of mixed values as text, truth values with gaps as such: DuckDB guesses from the first values otherwise."""
    changed = {}
    for column, values in frame.items():
        if not pd.api.types.is_object_dtype(values.dtype):
            continue
        if all(isinstance(value, bool) for value in values.dropna()):
            changed[column] = values.astype("boolean")
        else:
            changed[column] = values.map(str, na_action="ignore").astype("str")
    return frame.assign(**changed)


def _memory_mb() -> int:
    """For DuckDB: half of the address space that is left to the session."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return 512
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    return max(min((limit - used) // 2 // _MIB, 512), 32)


@contextmanager
def _interrupted_after(seconds: float, interrupt: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # nothing may be interrupted, or closed, while it is still at it


def _stopped(seconds: float) -> NoReturn:
    raise TimeoutError(
        f"the query was stopped after {seconds:g} s; select less, or put LIMIT into an endless WITH"
    ) from None
