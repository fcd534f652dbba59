"""sqlite files described for a model within a budget.

Also imported inside the sandbox: nothing but the standard library and agentic's own small modules at the top.
"""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote as url_quote

from agentic.errors import UserError
from agentic.tables.names import quote, quoted
from agentic.tables.sqlite_file import Blob, Reader, open_reader, quiet_file, set_deadline, table_names

SAMPLED_ROWS = 200
_SAMPLED_BYTES = 16 << 20
_LONGEST_MADE = 1 << 20
"""Bytes of a value that a view or generated column makes up: its file need not be large for it."""
_SHOWN_VALUES = 4
_VALUE_CHARS = 28
_TABLE_CHARS = 70
"""With less room than this for each table, the last ones are named only."""
_NAMES_CHARS = 400
"""Kept for those names."""
_DESCRIBE_S = 3.0
_STEP_S = 0.5
_CHILD_S = 20
_CHILD_MB = 1024
_REFUSED = 3
_KINDS = {int: "number", float: "number", str: "text", bytes: "blob"}
_NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?(e[-+]?\d+)?%?", re.I)


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


@lru_cache(maxsize=1024)
def _described(name: str, path: Path, max_chars: int, stamp: object) -> str:
    with tempfile.TemporaryDirectory(prefix="agentic-sql-") as folder:
        file = quiet_file(path, Path(folder))
        try:
            if _only_tables(file):
                return _text(name, path.name, file, max_chars)
        except sqlite3.Error as error:
            raise UserError(f"{path}: cannot be read as an SQLite database ({error})") from None
        return _text_of_child(name, path, file, max_chars)


def _only_tables(file: Path) -> bool:
    with closing(sqlite3.connect(f"file:{url_quote(os.fsencode(file))}?mode=ro", uri=True)) as connection:
        made_up = "SELECT 1 FROM sqlite_master WHERE type = 'view' OR (type = 'table' AND rootpage = 0) LIMIT 1"
        return connection.execute(made_up).fetchone() is None


def _text_of_child(name: str, path: Path, file: Path, max_chars: int) -> str:
    """Views that join views can take sqlite any time and memory only to prepare, with no way to stop it; virtual tables read
    structures of their own. Both happen in a process that can be lost."""
    command = [sys.executable, "-P", "-m", __name__, name, path.name, str(file), str(max_chars)]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_CHILD_S)
    except subprocess.TimeoutExpired:
        ended = None
    if ended is not None and ended.returncode == 0:
        return ended.stdout.decode("utf-8", "surrogateescape")
    if ended is not None and ended.returncode == _REFUSED:
        why = ended.stderr.decode("utf-8", "replace").strip()
        raise UserError(f"{path}: cannot be read as an SQLite database ({why})")
    raise UserError(
        f"{path}: its views and virtual tables take more than {_CHILD_S} s or {_CHILD_MB} MiB to be looked at; "
        "use a copy without them"
    )


def _describe_here(name: str, shown: str, file: str, max_chars: str) -> int:
    """The child's end of _text_of_child."""
    resource.setrlimit(resource.RLIMIT_AS, (_CHILD_MB << 20, _CHILD_MB << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        text = _text(name, shown, Path(file), int(max_chars))
    except sqlite3.Error as error:
        print(error, file=sys.stderr)
        return _REFUSED
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    return 0


def _text(name: str, shown: str, file: Path, max_chars: int) -> str:
    """`shown`: the file's name as the user knows it."""
    with closing(open_reader(str(file), ("table_xinfo", "foreign_key_list"))) as connection:
        return _all_tables(name, shown, connection, max_chars)


def _all_tables(name: str, file: str, connection: Reader, max_chars: int) -> str:
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
        part = _table_text(kind, table, connection, share, min(_STEP_S, max(end - time.monotonic(), _STEP_S / 10)))
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


def _table_text(kind: str, table: str, connection: Reader, budget: int, seconds: float) -> str:
    head = f"{kind.capitalize()} {_line(quoted(table))}: "
    set_deadline(connection, seconds)
    try:
        listed = connection.execute(f"PRAGMA table_xinfo({quote(table)})").fetchall()
        columns = [row[1:3] for row in listed if row[6] != 1]
        made_up = kind == "view" or any(row[6] in (2, 3) for row in listed)
        rows, whole = _sampled(connection, table, made_up)
        links = {row[3].lower(): f"{row[2]}.{row[4]}" for row in _foreign_keys(connection, table)}
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return f"{head}cannot be read ({_line(str(error))})"
    head += _row_count(connection, table, len(rows), whole)
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


def _sampled(connection: Reader, table: str, made_up: bool) -> tuple[list[tuple[object, ...]], bool]:
    """The first rows, and whether that is all of them: not too many, too long or too slow ones."""
    rows: list[tuple[object, ...]] = []
    size = 0
    before = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_MADE if made_up else before)
    try:
        for row in connection.execute(f"SELECT * FROM {quote(table)} LIMIT {SAMPLED_ROWS}"):
            rows.append(row)
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if size > _SAMPLED_BYTES:
                return rows, False
    except sqlite3.Error as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_INTERRUPT):
            raise
        return rows, False
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
    return rows, len(rows) < SAMPLED_ROWS


def _foreign_keys(connection: Reader, table: str) -> list[tuple[str, ...]]:
    return [row for row in connection.execute(f"PRAGMA foreign_key_list({quote(table)})") if row[4]]


def _row_count(connection: Reader, table: str, count: int, whole: bool) -> str:
    if not whole:
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


if __name__ == "__main__":
    sys.exit(_describe_here(*sys.argv[1:]))
