"""sqlite files: opened so that nothing in them or beside them changes, and copied in a consistent state.

Also imported inside the sandbox: nothing but the standard library and agentic's own small modules at the top.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote as url_quote

from agentic.errors import UserError
from agentic.tables.names import quote

SIGNATURE = b"SQLite format 3\x00"
_COPY_S = 5.0
# Length and first byte of sqlite's own locks (its file format: "file locking", "WAL-index"): readers share them.
_SHARED = (510, 0x40000002)
_NO_CHECKPOINT = (1, 123)
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a rollback journal that names another file (sqlite's file format: "super-journal")."""

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_DENIED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}
_VALUE_FUNCTIONS = ("json_each", "json_tree")
_VIRTUAL_TABLES = 200


class Blob(bytes):
    """Bytes that are shown by their number only."""

    def __repr__(self) -> str:
        return f"<blob of {len(self)} bytes>"

    __str__ = __repr__


def is_sqlite(path: str | os.PathLike[str]) -> bool:
    """By content; False also for what cannot be read, or is no plain file (to look into a pipe would empty it)."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except (OSError, ValueError):
        return False


class Reader(sqlite3.Connection):
    """A connection that can only read, whatever is executed on it. See open_reader."""

    shadow: frozenset[str] = frozenset()
    """Tables in which virtual tables keep their data: they are no use to anyone."""


def open_reader(path: str, pragmas: Collection[str] = ()) -> Reader:
    """A connection that can only read, whatever is executed on it. `pragmas`: those that may be asked (not set).

    Virtual tables of the modules that sqlite has built in (full text, R-tree) can be read as well. Text that is no UTF-8
    comes back with its bytes escaped. Raises sqlite3.Error.
    """
    # A database in WAL mode is opened with files beside it; where there is nothing in a -wal file, they are not needed.
    plain = "" if _size(f"{path}-wal") else "&immutable=1"
    name = url_quote(os.fsencode(path))
    connection = sqlite3.connect(f"file:{name}?mode=ro{plain}", uri=True, factory=Reader)
    try:
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 << 20)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        _open_virtual_tables(connection)
        connection.set_authorizer(_authorizer(pragmas))
    except BaseException:
        connection.close()
        raise
    return connection


def _authorizer(pragmas: Collection[str]) -> Callable[..., int]:
    def allow(action: int, first: str | None, second: str | None, *place: str | None) -> int:
        if action in _READS and not (action == sqlite3.SQLITE_FUNCTION and second in _DENIED_FUNCTIONS):
            return sqlite3.SQLITE_OK
        # FTS5 asks for data_version before it reads.
        asked = action == sqlite3.SQLITE_PRAGMA and (first in pragmas or (first, second) == ("data_version", None))
        return sqlite3.SQLITE_OK if asked else sqlite3.SQLITE_DENY

    return allow


def _open_virtual_tables(connection: Reader) -> None:
    """Let the modules look at their own tables while nothing is forbidden yet: they prepare statements that write, and
    declare columns by one that looks like a change of the schema. Later they only read; a write would fail at mode=ro.
    """
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage = 0 AND typeof(name) = 'text'"
    ).fetchmany(_VIRTUAL_TABLES)
    names = [quote(name) for (name,) in found]
    for source in [*names, *(f"{function}('[]')" for function in _VALUE_FUNCTIONS)]:
        with suppress(sqlite3.Error):  # of a module that is not built in, or damaged: the query that uses it says so
            connection.execute(f"SELECT 1 FROM {source} LIMIT 0")
    if names:
        listed = connection.execute("PRAGMA table_list").fetchall()  # nothing before sqlite 3.37
        connection.shadow = frozenset(row[1] for row in listed if row[2] == "shadow")


def set_deadline(connection: sqlite3.Connection, seconds: float) -> None:
    """Statements still running `seconds` from now end with sqlite3.OperationalError (interrupted)."""
    end = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > end, 1000)


def table_names(connection: Reader) -> list[tuple[str, str]]:
    """("table" or "view", name), without sqlite's own and those behind virtual tables."""
    rows = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND typeof(name) = 'text' ORDER BY rowid"
    )
    hidden = connection.shadow
    return [(kind, name) for kind, name in rows if not name.startswith("sqlite_") and name not in hidden]


def column_names(connection: sqlite3.Connection, table: str) -> list[str]:
    """Of a table or view. Raises sqlite3.Error for a view that is broken."""
    return [column[0] for column in connection.execute(f"SELECT * FROM {quote(table)} LIMIT 0").description]


# ----------------------------------------------------------------------------------------- a live source


def quiet_file(source: Path, folder: Path) -> Path:
    """A copy in `folder` of everything that is committed in `source`, its write-ahead log worked in.

    A file that nobody uses is copied as well: someone may begin to while a session is being started. Nothing is written
    beside the source. Names of tables and columns that are no UTF-8, which no query could spell, are spelled anew in the
    copy (`caf_xe9`). Raises UserError.
    """
    check_sqlite(source)
    size, free = _size(str(source)) + _size(f"{source}-wal"), shutil.disk_usage(folder).free
    if size > free:
        raise UserError(
            f"{source}: a copy of it takes {size >> 20} MiB, but {folder} has {free >> 20} left; "
            "free some, or set TMPDIR to a larger disk"
        )
    copy = folder / source.name
    end = time.monotonic() + _COPY_S
    try:
        while not _copied(source, copy):
            if time.monotonic() > end:
                raise UserError(
                    f"{source}: another program writes to it without a pause; try again later, or use a copy"
                )
            time.sleep(0.002)
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            _spell_names(connection)
    except (OSError, sqlite3.Error) as error:
        raise UserError(
            f"{source}: cannot be copied ({error}); close the program that uses it, or use a copy"
        ) from None
    return copy


def check_sqlite(source: Path) -> None:
    """Raises UserError for what is no SQLite database."""
    if not source.is_file():
        raise UserError(f"{source}: no such file")
    if not os.access(source, os.R_OK):
        raise UserError(f"{source}: is not readable; give yourself the right to read it")
    if not is_sqlite(source):
        raise UserError(f"{source}: is no SQLite database; give it as a table, or name a database")


def _spell_names(connection: sqlite3.Connection) -> None:
    """In the schema, every byte that is no UTF-8 as `_x` and two digits: a part of a name in quotes and out of them."""
    connection.text_factory = bytes
    rows = connection.execute("SELECT name, tbl_name, sql, rowid FROM sqlite_master").fetchall()
    wrong = [row for row in rows if any(isinstance(part, bytes) and _spelled(part) != part for part in row)]
    if not wrong:
        return
    connection.execute("PRAGMA writable_schema=ON")
    for *parts, place in wrong:
        told = [_spelled(part).decode() if isinstance(part, bytes) else part for part in parts]
        connection.execute("UPDATE sqlite_master SET name = ?, tbl_name = ?, sql = ? WHERE rowid = ?", (*told, place))
    connection.execute("PRAGMA writable_schema=RESET")
    connection.execute("SELECT 1 FROM sqlite_master")  # fails when two names have become one


def _spelled(name: bytes) -> bytes:
    decoded = name.decode("utf-8", "surrogateescape")
    return "".join(
        f"_x{ord(character) - 0xDC00:02x}" if "\udc80" <= character <= "\udcff" else character for character in decoded
    ).encode()


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
            _refuse_other_files(source, Path(f"{copy}-journal"))
        with copy.open("wb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{source}-wal", f"{copy}-wal")
        return index.exists() == indexed


def _refuse_other_files(source: Path, journal: Path) -> None:
    """A journal may name a file beside all databases of its transaction, which sqlite deletes after rolling back: any
    file, if the journal comes from someone else."""
    with journal.open("rb") as file:
        if file.read(1) in (b"", b"\0"):  # of a transaction that ended (journal_mode=PERSIST)
            return
        file.seek(max(journal.stat().st_size - len(_JOURNAL_MAGIC), 0))
        if file.read() == _JOURNAL_MAGIC:
            raise UserError(
                f"{source}-journal: belongs to an unfinished transaction over several databases; open {source.name} once "
                "with the program that wrote it, or remove the journal if you do not trust it"
            )


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
