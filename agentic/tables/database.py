"""sqlite files: opened so that nothing in them or beside them changes, and described for a model within a budget.

Also imported inside the sandbox: nothing but the standard library and agentic.errors at the top.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote as url_quote

from agentic.errors import UserError
from agentic.tables.names import quote, quoted

SIGNATURE = b"SQLite format 3\x00"
SAMPLED_ROWS = 200
_SHOWN_VALUES = 4
_VALUE_CHARS = 28
_TABLE_CHARS = 70
"""With less room than this for each table, the last ones are named only."""
_NAMES_CHARS = 400
"""Kept for those names."""
_DESCRIBE_S = 3.0
_STEP_S = 0.5
_COPY_S = 5.0
# Length and first byte of sqlite's own locks (its file format: "file locking", "WAL-index"): readers share them.
_SHARED = (510, 0x40000002)
_NO_CHECKPOINT = (1, 123)

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_DENIED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}
_KINDS = {int: "number", float: "number", str: "text", bytes: "blob"}
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?(e[-+]?\d+)?%?", re.I)


class Blob(bytes):
    """Bytes that are shown by their number only."""

    def __repr__(self) -> str:
        return f"<blob of {len(self)} bytes>"

    __str__ = __repr__


def is_sqlite(path: str | os.PathLike[str]) -> bool:
    """By content; False also for what cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except (OSError, ValueError):
        return False


def open_reader(path: str, pragmas: Collection[str] = ()) -> sqlite3.Connection:
    """A connection that can only read, whatever is executed on it. `pragmas`: those that may be asked (not set).

    Text that is no UTF-8 comes back with its bytes escaped. Raises sqlite3.Error.
    """
    # A database in WAL mode is opened with files beside it; where there is nothing in a -wal file, they are not needed.
    plain = "" if _size(f"{path}-wal") else "&immutable=1"
    connection = sqlite3.connect(f"file:{url_quote(os.fspath(path))}?mode=ro{plain}", uri=True)
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")

    def allow(action: int, first: str | None, second: str | None, *place: str | None) -> int:
        if action in _READS and not (action == sqlite3.SQLITE_FUNCTION and second in _DENIED_FUNCTIONS):
            return sqlite3.SQLITE_OK
        asked = action == sqlite3.SQLITE_PRAGMA and first in pragmas
        return sqlite3.SQLITE_OK if asked else sqlite3.SQLITE_DENY

    connection.set_authorizer(allow)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 << 20)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def set_deadline(connection: sqlite3.Connection, seconds: float) -> None:
    """Statements still running `seconds` from now end with sqlite3.OperationalError (interrupted)."""
    end = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > end, 1000)


def table_names(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """("table" or "view", name), without sqlite's own."""
    rows = connection.execute("SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid")
    return [(kind, name) for kind, name in rows if not name.startswith("sqlite_")]


def column_names(connection: sqlite3.Connection, table: str) -> list[str]:
    """Of a table or view. Raises sqlite3.Error for a view that is broken."""
    return [column[0] for column in connection.execute(f"SELECT * FROM {quote(table)} LIMIT 0").description]


def hold_numbers(values: Iterable[object]) -> bool:
    """Whether these are texts that all say numbers, so that they compare and sort otherwise than one expects.

    >>> hold_numbers(["9", "1,000", None]), hold_numbers(["007"]), hold_numbers([9]), hold_numbers(["1-2"])
    (True, False, False, False)
    """
    present = [value for value in values if value is not None and value != ""]
    return bool(present) and all(isinstance(value, str) and _is_number(value.strip()) for value in present)


def _is_number(text: str) -> bool:
    code = len(text) > 1 and text[0] == "0" and text[1].isdigit()  # an article number, a postcode
    return not code and bool(_NUMBER.fullmatch(text)) and any(character.isdigit() for character in text)


# ----------------------------------------------------------------------------------------- a live source


def quiet_file(source: Path, folder: Path) -> Path:
    """A copy in `folder` of everything that is committed in `source`, its write-ahead log worked in.

    A file that nobody uses is copied as well: someone may begin to while a session is being started. Nothing is written
    beside the source. Raises UserError.
    """
    _check(source)
    copy = folder / source.name
    end = time.monotonic() + _COPY_S
    try:
        while not _copied(source, copy):
            if time.monotonic() > end:
                raise UserError(
                    f"{source}: another program writes to it without a pause; try again later, or use a copy"
                )
            time.sleep(0.002)
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    except (OSError, sqlite3.Error) as error:
        raise UserError(
            f"{source}: cannot be copied ({error}); close the program that uses it, or use a copy"
        ) from None
    return copy


def _copied(source: Path, copy: Path) -> bool:
    """One attempt; False when another program is in the way.

    Both locks are those of a reader. The first keeps a rollback journal's writers from the file. The second, for a file in
    WAL mode, keeps pages from being moved out of the log: the file then stays as it is, and whatever the log is when it is
    copied, its complete transactions belong on top (if it was begun anew, the file holds all that was in it before).
    """
    index = Path(f"{source}-shm")
    for end in ("-journal", "-wal"):  # of the attempt before
        Path(f"{copy}{end}").unlink(missing_ok=True)
    with ExitStack() as opened:
        file = opened.enter_context(source.open("rb"))
        if not _locked(file, _SHARED):
            return False
        indexed = index.exists()  # it stays now: only who is alone with the file removes it
        if indexed and not _locked(opened.enter_context(index.open("rb")), _NO_CHECKPOINT):
            return False
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{source}-journal", f"{copy}-journal")
        with copy.open("wb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{source}-wal", f"{copy}-wal")
        return index.exists() == indexed


def _locked(file: BinaryIO, place: tuple[int, int]) -> bool:
    """Whether the lock could be taken; it lasts until the file is closed."""
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, *place)
    except (BlockingIOError, PermissionError):  # what it is depends on the system
        return False
    return True


def _size(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


# ------------------------------------------------------------------------------------------ description


def describe(name: str, path: Path, max_chars: int) -> str:
    """What a model is told about a database: tables and views with their rows, columns with type and some values, names as
    SQL must spell them. Raises UserError for a file that is no readable database."""
    stamp = tuple(_stamp(f"{path}{end}") for end in ("", "-wal", "-journal"))
    return _described(name, path, max_chars, stamp)


def _stamp(path: str) -> tuple[int, int]:
    with suppress(OSError):
        stat = os.stat(path)
        return stat.st_mtime_ns, stat.st_size
    return 0, 0


@lru_cache(maxsize=64)
def _check(path: Path) -> None:
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if not is_sqlite(path):
        raise UserError(f"{path}: is no SQLite database; give it as a table, or name a database")


def _described(name: str, path: Path, max_chars: int, stamp: object) -> str:
    _check(path)
    with tempfile.TemporaryDirectory(prefix="agentic-sql-") as folder:
        file = quiet_file(path, Path(folder))
        try:
            with closing(open_reader(str(file), ("table_xinfo", "foreign_key_list"))) as connection:
                return _text(name, path.name, connection, max_chars)
        except sqlite3.Error as error:
            raise UserError(f"{path}: cannot be read as an SQLite database ({error})") from None


def _text(name: str, file: str, connection: sqlite3.Connection, max_chars: int) -> str:
    tables = table_names(connection)
    head = f"Database {name}: SQLite, {len(tables)} tables and views, {_line(file)}"
    parts, left = [head], max_chars - len(head) - 1
    end = time.monotonic() + _DESCRIBE_S
    for position, (kind, table) in enumerate(tables):
        share = left // (len(tables) - position)
        if share < _TABLE_CHARS:
            if left < _NAMES_CHARS:
                parts.append(_rest([_line(quoted(other)) for _, other in tables[position:]], left))
                break
            share = 2 * _TABLE_CHARS
        set_deadline(connection, min(_STEP_S, max(end - time.monotonic(), _STEP_S / 10)))
        part = _table_text(kind, table, connection, share)
        parts.append(part)
        left -= len(part) + 1
    return "\n".join(parts)


def _rest(names: list[str], left: int) -> str:
    hint = "... {} more; see SELECT name FROM sqlite_master"
    line = "Also: " + ", ".join(names)
    if len(line) <= left:
        return line
    shown = 0
    line = "Also: "
    while shown < len(names) and len(line) + len(names[shown]) + len(hint) + 6 <= left:
        line += names[shown] + ", "
        shown += 1
    return (line if shown else "") + hint.format(len(names) - shown)


def _table_text(kind: str, table: str, connection: sqlite3.Connection, budget: int) -> str:
    head = f"{kind.capitalize()} {_line(quoted(table))}: "
    try:
        columns = [row[1:3] for row in connection.execute(f"PRAGMA table_xinfo({quote(table)})") if row[6] != 1]
        rows = connection.execute(f"SELECT * FROM {quote(table)} LIMIT {SAMPLED_ROWS}").fetchall()
        links = {row[3].lower(): f"{row[2]}.{row[4]}" for row in _foreign_keys(connection, table)}
    except sqlite3.Error as error:
        return f"{head}cannot be read ({_line(str(error))})"
    head += _row_count(connection, table, rows)
    lines = []
    for position, (column, declared) in enumerate(columns):
        values = [row[position] for row in rows if position < len(row)]
        link = links.get(column.lower())
        lines.append(_column_line(column, declared, values) + (f"; is {_line(link)}" if link else ""))
    full = "\n".join([head, *lines])
    if len(full) <= budget:
        return full
    line = "columns:"
    for position, (column, _) in enumerate(columns):
        word = f" {_line(quoted(column))},"
        rest = f" ... {len(columns) - position} more; see SELECT * FROM {_line(quoted(table))} LIMIT 1"
        if len(head) + 1 + len(line) + len(word) + (len(rest) if position < len(columns) - 1 else 0) > budget:
            return f"{head}\n{line}{rest}"
        line += word
    return f"{head}\n{line.rstrip(',')}"


def _foreign_keys(connection: sqlite3.Connection, table: str) -> list[tuple[str, ...]]:
    return [row for row in connection.execute(f"PRAGMA foreign_key_list({quote(table)})") if row[4]]


def _row_count(connection: sqlite3.Connection, table: str, rows: Sequence[object]) -> str:
    count = len(rows)
    if count == SAMPLED_ROWS:
        set_deadline(connection, _STEP_S)
        try:
            count = connection.execute(f"SELECT count(*) FROM {quote(table)}").fetchone()[0]
        except sqlite3.Error:  # out of time
            return f"more than {count} rows"
    return f"{count} row{'s' if count != 1 else ''}"


def _column_line(name: str, declared: str, values: list[object]) -> str:
    """`name (type): values`; a type that is not what the values are is said."""
    kind = declared.lower() or next((_KINDS[type(value)] for value in values if value is not None), "any type")
    if hold_numbers(values):
        kind += ", numbers as text: CAST before comparing"
    line = f"{_line(quoted(name))} ({_line(kind)})"
    shown = list(dict.fromkeys(_value(value) for value in values if value is not None))[:_SHOWN_VALUES]
    return f"{line}: {', '.join(shown)}" if shown else line


def _value(value: object) -> str:
    text = repr(Blob(value)) if isinstance(value, bytes) else " ".join(str(value).split()) or "''"
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"


def _line(text: str) -> str:
    """A name may hold line breaks; here it may not begin a line of its own."""
    return re.sub(r"[\r\n\t\v\f\x85\u2028\u2029]+", " ", text)
