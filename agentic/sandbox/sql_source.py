"""What a query runs on: the interface of a source, and sqlite files through an authorizer."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from agentic.tables.database import hold_numbers
from agentic.tables.names import close_columns, quoted
from agentic.tables.sqlite_file import Blob, column_names, open_reader, set_deadline, table_names
from agentic.tools import sqltext

LISTED_CHARS = 300
PROBED_ROWS = 200
PROBE_S = 0.2
_SCHEMA_S = 1.0
_MOST_ROWS = (1 << 31) - 2
_SHOWN_NAMES = 3


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
    dialect: sqltext.Dialect

    def run(self, query: str, max_rows: int, seconds: float) -> Answer:
        """`query`: one that sqltext.one_query let through. Raises SqlError, TimeoutError, MemoryError."""
        ...

    def schema(self) -> dict[str, list[str]]:
        """Columns by table."""
        ...

    def probe(self, table: str, column: str) -> Sequence[object]:
        """Some values of a column."""
        ...


class SqliteSource:
    dialect: sqltext.Dialect = "sqlite"

    def __init__(self, file: str) -> None:
        self._file = os.path.abspath(file)  # cells may change the working folder

    def schema(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        try:
            with closing(open_reader(self._file)) as connection:
                set_deadline(connection, _SCHEMA_S)
                for _, table in table_names(connection):
                    try:
                        found[table] = column_names(connection, table)
                    except (sqlite3.Error, UnicodeDecodeError):  # a view over a table that is gone
                        found[table] = []
        except sqlite3.Error:  # a cell has spoiled the file: the query says so
            pass
        return found

    def run(self, query: str, max_rows: int, seconds: float) -> Answer:
        try:
            # The timer stops at the next row, the progress handler also lets Python see the supervisor's interrupt.
            with closing(open_reader(self._file)) as connection, interrupted_after(seconds, connection.interrupt):
                set_deadline(connection, seconds)
                cursor = connection.execute(sqltext.without_double_quotes(query))
                rows = cursor.fetchmany(min(max_rows, _MOST_ROWS) + 1)
                titles = [sqltext.as_written(column[0], query) for column in cursor.description]
        except (sqlite3.Error, sqlite3.Warning) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                stopped(seconds)
            raise SqlError(self._explain(str(error), query)) from None
        except UnicodeDecodeError:  # only a cell can have made one: names are spelled anew in the session's copy
            raise SqlError(
                "a name of a table or column in it is not UTF-8; select only the columns you need, by name"
            ) from None
        shown = [tuple(Blob(value) if isinstance(value, bytes) else value for value in row) for row in rows]
        return answer(titles, shown, max_rows)

    def probe(self, table: str, column: str) -> Sequence[object]:
        # `quote` and not double quotes: the name comes from the schema, so it is a column.
        name, source = ("`" + part.replace("`", "``") + "`" for part in (column, table))
        try:
            with closing(open_reader(self._file)) as connection:
                set_deadline(connection, PROBE_S)
                rows = connection.execute(f"SELECT {name} FROM {source} WHERE {name} IS NOT NULL LIMIT {PROBED_ROWS}")
                return [row[0] for row in rows]
        except sqlite3.Error:  # no hint then
            return []

    def _explain(self, message: str, query: str) -> str:
        if "pragma_" in query.lower() and "authoriz" in message:
            return f"PRAGMA cannot be run: only SELECT is allowed; {listed(self.schema())}"
        if "authoriz" in message or "prohibited" in message or "attached databases" in message:
            return f"{message}: only SELECT is allowed, the database is read-only"
        what, _, wanted = message.partition(": ")
        if what == "no such function":
            return f"{message}; this is SQLite {sqlite3.sqlite_version}: dates with strftime('%Y', d), text with || and substr"
        near = re.search(r'near "(.*)": syntax error', message, re.S)
        unquoted = quoting_hint(query, self, near[1] if near else None)
        if unquoted:
            return f"{message}; {unquoted}"
        if what in ("no such column", "no such table"):
            return f"{message}; {_nearest(what, wanted, query, self.schema())}"
        return message


def hints(query: str, source: Source) -> list[str]:
    """What a query that works may have got wrong without a word."""
    found = sqltext.tokens(query, source.dialect)
    compared = sqltext.compared_names(query, source.dialect)
    if not compared and not any(token.kind == "number" for token in found):
        return []
    names = {token.name.lower() for token in found if token.kind == "name"}
    schema = {table: columns for table, columns in source.schema().items() if table.lower() in names}
    told = [
        f'{number} is the number {number} here; the column is "{number}", in double quotes'
        for number in sqltext.number_names(
            query, [column for columns in schema.values() for column in columns], source.dialect
        )
    ]
    for wanted in compared:
        for table, columns in schema.items():
            column = next((column for column in columns if column.lower() == wanted.lower()), None)
            if column is not None and hold_numbers(source.probe(table, column)):
                shown = quoted(column)
                told.append(f"{shown} is text that holds numbers ('9' > '10'): use CAST({shown} AS REAL)")
    return list(dict.fromkeys(told))


def quoting_hint(query: str, source: Source, near: str | None) -> str:
    """How to spell the names of the schema that stand in a failed query without the quotes they need; "" for none.

    `near`: where the engine stopped to understand it, "" for the end; None when it did understand.
    """
    schema = source.schema()
    known = dict.fromkeys([*schema, *(column for columns in schema.values() for column in columns)])
    names = [quoted(name) for name in sqltext.unquoted_names(query, known, near, source.dialect)[:_SHOWN_NAMES]]
    return f"quote the name{'s' if len(names) > 1 else ''}: {', '.join(names)}" if names else ""


def _nearest(what: str, wanted: str, query: str, schema: Mapping[str, list[str]]) -> str:
    """What a name that is not there may have meant."""
    tables = list(schema)
    if what == "no such table":
        close = close_columns(wanted.removeprefix("main."), tables)
        return f"the table is {' or '.join(map(quoted, close))}" if close else listed(schema)
    in_quotes = sqltext.is_double_quoted(wanted, query)
    bare = wanted if in_quotes else wanted.rpartition(".")[2]
    used = {token.name.lower() for token in sqltext.tokens(query) if token.kind == "name"}
    holders = [table for table, columns in schema.items() if bare.lower() in map(str.lower, columns)]
    if holders:
        return f"{quoted(bare)} is a column of {_cut(', '.join(map(quoted, holders)))}"
    near = {table: columns for table, columns in schema.items() if table.lower() in used} or dict(schema)
    close = close_columns(bare, [column for columns in near.values() for column in columns])
    told = f"the column is {' or '.join(map(quoted, close))}" if close else listed(near)
    if in_quotes:
        text = wanted.replace("'", "''")
        return f"in double quotes it is a name; a text is '{text}' in single quotes, {told}"
    return told


def listed(schema: Mapping[str, list[str]]) -> str:
    """Tables with their columns, cut when long."""
    text = "; ".join(f"{quoted(table)}({', '.join(map(quoted, columns))})" for table, columns in schema.items())
    if len(text) > LISTED_CHARS:
        text = ", ".join(map(quoted, schema)) if len(schema) > 1 else text
    return f"the tables are: {_cut(text)}"


def _cut(text: str) -> str:
    return text if len(text) <= LISTED_CHARS else text[:LISTED_CHARS] + "…"


def answer(titles: Sequence[str], rows: list[tuple[Any, ...]], max_rows: int) -> Answer:
    return Answer(distinct(titles), rows[:max_rows], len(rows) > max_rows)


def distinct(titles: Collection[str], key: Callable[[str], str] = str) -> list[str]:
    """Every title once: `id`, `id_2`; a name that is given already is not taken by another. `key`: what must differ.

    >>> distinct(["id", "id", "id_2"]), distinct(["City", "city"], str.lower)
    (['id', 'id_3', 'id_2'], ['City', 'city_2'])
    """
    given, used = {key(title) for title in titles}, set()
    numbers: dict[str, int] = {}
    names = []
    for title in titles:
        name = title
        while key(name) in used or (name != title and key(name) in given):
            number = numbers[key(title)] = numbers.get(key(title), 1) + 1
            name = f"{title}_{number}"
        used.add(key(name))
        names.append(name)
    return names


@contextmanager
def interrupted_after(seconds: float, interrupt: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # nothing may be interrupted, or closed, while it is still at it


def stopped(seconds: float) -> NoReturn:
    raise TimeoutError(
        f"the query was stopped after {seconds:g} s; select less, or put LIMIT into an endless WITH"
    ) from None
