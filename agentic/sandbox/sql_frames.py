"""The task's tables in DuckDB."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from agentic.sandbox.sql_source import (
    PROBE_S,
    PROBED_ROWS,
    Answer,
    SqlError,
    answer,
    distinct,
    interrupted_after,
    listed,
    quoting_hint,
    stopped,
)
from agentic.tables.names import quote, quoted
from agentic.tables.sqlite_file import Blob
from agentic.tools import sqltext

_MIB = 1 << 20
_SHOWN_COLUMNS = 5
_SETTINGS = (
    "temp_directory = ''",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "python_enable_replacements = false",
    "enable_external_access = false",
)
_KEPT_KINDS = ("date", "bytes")
"""Objects that DuckDB has a type for, when all values of a column are of that kind."""
_WRITES = {"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"}


class FrameSource:
    """Tables by name; DuckDB is loaded with the first query."""

    dialect: sqltext.Dialect = "duckdb"

    def __init__(self, frames: Mapping[str, pd.DataFrame]) -> None:
        # Shallow copies: with copy-on-write, what cells do to their frames does not reach these.
        self._frames = {name: frame.copy(deep=False) for name, frame in frames.items()}
        for frame in self._frames.values():
            frame.columns = pd.Index(_column_names(frame), dtype=object)
        self._connection: Any = None
        self._memory_mb = 0
        self._notes: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        """Why a table cannot be queried, by its name in lower case."""

    def schema(self) -> dict[str, list[str]]:
        return {name: list(frame.columns) for name, frame in self._frames.items()}

    def run(self, query: str, max_rows: int, seconds: float) -> Answer:
        started = time.monotonic()
        import duckdb

        try:
            connection = self._connected()
        except duckdb.Error as error:
            raise SqlError(f"DuckDB does not start here ({error}); use Python on the tables") from None
        left = max(seconds - (time.monotonic() - started), PROBE_S)  # loading it the first time takes a while
        try:
            self._only_reads(query)
            with interrupted_after(left, connection.interrupt):
                cursor = connection.execute(query)
                rows = cursor.fetchmany(max_rows + 1)
            titles = [column[0] for column in cursor.description]
        except duckdb.InterruptException:
            stopped(seconds)
        except duckdb.OutOfMemoryException:
            raise MemoryError(
                f"the query needed more than {self._memory_mb} MiB; select fewer rows or columns"
            ) from None
        except duckdb.Error as error:
            raise SqlError(self._explain(error, query)) from None
        shown = [tuple(Blob(value) if isinstance(value, bytes) else value for value in row) for row in rows]
        found = answer(titles, shown, max_rows)
        used = {token.name.lower() for token in sqltext.tokens(query, self.dialect) if token.kind == "name"}
        found.hints += [note for table, note in self._notes.items() if table.lower() in used]
        return found

    def probe(self, table: str, column: str) -> Sequence[object]:
        return list(self._frames[table][column].dropna().iloc[:PROBED_ROWS])

    def _explain(self, error: Exception, query: str) -> str:
        import duckdb

        message = " ".join(str(error).partition("\n\nLINE")[0].split())
        missing = re.search(r"Table with name (\S+) does not exist", message)
        if missing and missing[1].lower() in self._refused:
            return self._refused[missing[1].lower()]
        if isinstance(error, duckdb.PermissionException):
            return f"{message}; only the tables can be read"
        near = re.search(r'syntax error at or near "(.*?)"|syntax error at end of input', message, re.S)
        unquoted = quoting_hint(query, self, (near[1] or "") if near else None)
        if unquoted:
            return f"{message}; {unquoted}"
        if isinstance(error, duckdb.CatalogException | duckdb.BinderException):
            return f"{message}; {listed(self.schema())}"
        return message

    def _connected(self) -> Any:
        if self._connection is None:
            import duckdb

            self._memory_mb = _memory_mb()
            # In this order: what comes after the access to files is given up cannot change where temporary ones go.
            connection = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": f"{self._memory_mb}MiB"})
            for setting in _SETTINGS:
                connection.execute(f"SET {setting}")
            connection.execute("SET lock_configuration = true")
            for name, frame in self._frames.items():
                self._register(connection, name, frame)
            self._connection = connection
        return self._connection

    def _register(self, connection: Any, name: str, frame: pd.DataFrame) -> None:
        """A table that DuckDB does not take is no reason to fail for queries on others."""
        same = [other for other in self._frames if other.lower() == name.lower()]
        if len(same) > 1:
            self._refused[name.lower()] = f"SQL cannot tell {' from '.join(same)}; use Python on them"
            return
        try:
            ready, texts = _plain(frame)
            if not _takes(connection, name, ready):
                foreign = [column for column in ready if not _takes(connection, name, ready[[column]])]
                texts |= {column: str(ready[column].dtype) for column in foreign}
                ready = ready.assign(**{column: _as_text(ready[column].astype(object)) for column in foreign})
                connection.register(name, ready)
        except MemoryError:
            raise
        except Exception as error:  # of DuckDB, or of a value that cannot be written
            connection.unregister(name)
            reason = "it has no columns" if not len(frame.columns) else " ".join(str(error).split())
            self._refused[name.lower()] = f"{name} cannot be queried with SQL ({reason}); use Python on {name}"
            return
        if texts:
            shown = [f"{quoted(column)} ({kind})" for column, kind in list(texts.items())[:_SHOWN_COLUMNS]]
            more = f" and {len(texts) - _SHOWN_COLUMNS} more" if len(texts) > _SHOWN_COLUMNS else ""
            self._notes[name] = f"in SQL these columns of {name} are text: {', '.join(shown)}{more}"

    def _only_reads(self, query: str) -> None:
        """DuckDB's own parser decides: WITH may introduce an INSERT, and EXPLAIN ANALYZE runs what it explains."""
        import duckdb

        found = sqltext.tokens(query, self.dialect)
        if found[0].word == "EXPLAIN":
            inner = [token for token in found[1:] if token.word in ("SELECT", "WITH", "VALUES", "FROM")]
            before = {token.word for token in found[1 : found.index(inner[0])]} if inner else set()
            if not inner or not before <= {"ANALYZE", "(", ")", "FORMAT", "JSON", "TEXT", ",", "HTML", "GRAPHVIZ"}:
                raise SqlError("only SELECT can be explained")
            query = query[inner[0].start :]
        kinds = [statement.type for statement in self._connection.extract_statements(query)]
        # To DuckDB, a query over what an INSERT returns is a SELECT.
        words = [token.word for token in found]
        bodies = zip(words, words[1:], words[2:], strict=False)
        writes = any(one in ("AS", "MATERIALIZED") and two == "(" and three in _WRITES for one, two, three in bodies)
        if kinds != [duckdb.StatementType.SELECT] or writes:
            raise SqlError("only one SELECT is allowed, the tables are read-only")


def _column_names(frame: pd.DataFrame) -> list[str]:
    """Names as SQL can spell them; to SQL, City and city are the same."""
    written = [
        str(column).replace("\0", r"\0").encode("utf-8", "backslashreplace").decode() or f"column{position}"
        for position, column in enumerate(frame.columns, 1)
    ]
    return distinct(written, str.lower)


def _takes(connection: Any, name: str, frame: pd.DataFrame) -> bool:
    try:
        connection.register(name, frame)
        connection.execute(f"SELECT * FROM {quote(name)} LIMIT 0")
    except MemoryError:
        raise
    except Exception:  # std::bad_cast among others
        return False
    return True


def _plain(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Columns of mixed values as text, truth values with gaps as such: DuckDB guesses from the first values otherwise.

    Also returns which columns are text now that were not, and what they were.
    """
    changed, texts = {}, {}
    for column, values in frame.items():
        if not pd.api.types.is_object_dtype(values.dtype):
            continue
        kind = pd.api.types.infer_dtype(values, skipna=True)
        if kind in _KEPT_KINDS:
            continue
        if all(isinstance(value, bool) for value in values.dropna()):
            changed[column] = values.astype("boolean")
            continue
        changed[column] = _as_text(values)
        if kind not in ("string", "empty"):
            texts[str(column)] = "mixed values" if kind.startswith("mixed") else kind
    return frame.assign(**changed), texts


def _as_text(values: pd.Series) -> pd.Series:
    def written(value: object) -> str:
        return str(value).encode("utf-8", "backslashreplace").decode()

    return values.map(written, na_action="ignore").astype("str")


def _memory_mb() -> int:
    """For DuckDB: half of the address space that is left to the session."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return 512
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    return max(min((limit - used) // 2 // _MIB, 512), 32)
