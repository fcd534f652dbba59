"""The card: what a model is told about tables, in few tokens.

One line a column: name, kind, range or frequent values, missing count. A card keeps to a character budget whatever the
width of the table; what it leaves out is said, so that the model can look for it with code.
"""

from __future__ import annotations

import builtins
import keyword
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import pandas as pd

from agentic.config import CardConfig
from agentic.errors import UserError
from agentic.records import DatabaseRef, TableRef
from agentic.tables.database import describe
from agentic.tables.read import Table, read_table
from agentic.tables.sqlite_file import is_sqlite

CHARS_PER_TOKEN = 3.5
DEFAULT_CHARS = 1600
_SHOWN_VALUES = 6
_VALUE_CHARS = 28


def _shown(value: object) -> str:
    """One value on one line, cut when long."""
    text = " ".join(str(value).split())
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"


def _line(text: str) -> str:
    """A file's name may hold line breaks; on a card it may not begin a line of its own."""
    return re.sub(r"[\r\n\t\v\f\x85\u2028\u2029]+", " ", text)


def _number(value: float) -> str:
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def _name(name: object) -> str:
    """The column name as code must spell it; repr where a plain print would hide a character."""
    text = str(name)
    return repr(text) if re.search(r"[\n\t\r\\]|^\s|\s$", text) else text


def column_line(name: object, column: pd.Series) -> str:
    missing = int(column.isna().sum())
    present = column.dropna()
    if present.empty:
        return f"{_name(name)} (empty)"
    if pd.api.types.is_bool_dtype(column):
        line = f"{_name(name)} (bool): True, False"
    elif pd.api.types.is_numeric_dtype(column):
        line = f"{_name(name)} (number): {_number(present.min())} to {_number(present.max())}"
    elif pd.api.types.is_datetime64_any_dtype(column):
        line = f"{_name(name)} (date): {present.min():%Y-%m-%d} to {present.max():%Y-%m-%d}"
    else:
        counts = present.astype(str).value_counts()
        # Ties in frequency are broken by the value, so that a card does not depend on the row order.
        order = (
            sorted(counts.index, key=lambda value: (-counts[value], value))[: _SHOWN_VALUES + 2]
            if len(counts) <= 1000
            else None
        )
        values = order if order is not None else [str(value) for value in present.iloc[:2]]
        # All of a short list; a taste of a longer one, where the question will name the value.
        shown = values if len(counts) <= _SHOWN_VALUES + 2 else values[:4] if len(counts) <= 30 else values[:2]
        rest = len(counts) - len(shown)
        line = f"{_name(name)} (text): {', '.join(_shown(v) for v in shown)}" + (f", {rest} more" if rest else "")
    return line + (f"; {missing} missing" if missing else "")


def table_card(
    name: str,
    frame: pd.DataFrame,
    description: str = "",
    max_chars: int = DEFAULT_CHARS,
    seen: dict[str, str] | None = None,
) -> str:
    """Card of one table within `max_chars`; columns that do not fit are counted, never silently dropped.

    `seen` maps lines of earlier tables to their table: a column that looks the same there is named in one line only.
    """
    head = f"Table {name}: {len(frame)} rows" + (f", {_line(description)}" if description else "")
    lines = [head]
    used = len(head)
    same: dict[str, list[str]] = {}
    for position, column in enumerate(frame.columns):
        line = column_line(column, frame[column])
        first = name if seen is None else seen.get(line, name)
        told = line if first == name else _name(column) + "  "  # in the line of the columns that look the same
        new = len(told) + 1 + (len(f": as in {first}") if first != name and first not in same else 0)
        left = len(frame.columns) - position
        if used + new > max_chars - 60 * (left > 1):
            lines.append(f"... {left} more columns; see {name}.columns")
            break
        used += new
        if first != name:
            same.setdefault(first, []).append(_name(column))
            continue
        lines.append(line)
        if seen is not None:
            seen[line] = name
    lines[1:1] = [f"{', '.join(columns)}: as in {table}" for table, columns in same.items()]
    return "\n".join(lines)


def card(
    tables: Mapping[str, pd.DataFrame], descriptions: Mapping[str, str] | None = None, max_chars: int = DEFAULT_CHARS
) -> str:
    """Cards of all tables together within `max_chars`, shared evenly."""
    described = descriptions or {}
    seen: dict[str, str] = {}
    parts: list[str] = []
    left = max_chars
    for position, (name, frame) in enumerate(tables.items()):
        # What one table leaves unused, the next ones may use.
        parts.append(table_card(name, frame, described.get(name, ""), left // (len(tables) - position), seen))
        left -= len(parts[-1])
    return "\n".join(parts)


@lru_cache(maxsize=64)
def _cached(path: str, mtime_ns: int, size: int) -> Table:
    return read_table(path)


def load_tables(refs: list[TableRef], base_dir: Path) -> dict[str, Table]:
    """Read the tables of a task (cached by path, time and size); paths are relative to `base_dir`."""
    tables: dict[str, Table] = {}
    for ref in refs:
        path = base_dir / ref.path
        # os.path and not Path: a name that is too long is a missing file, which read_table says.
        stat = path.stat() if os.path.exists(path) else None
        tables[ref.name] = _cached(str(path), stat.st_mtime_ns, stat.st_size) if stat else read_table(path)
    return tables


# A table of this name would hide something that code needs.
_RESERVED = {*keyword.kwlist, *dir(builtins), "pd", "np"}


def table_refs(files: list[Path] | tuple[Path, ...]) -> list[TableRef]:
    """Names for a user's files: `df` for a single one, otherwise identifiers made from the file names."""
    paths = [_path(file) for file in files]
    names = ["df"] if len(files) == 1 else _distinct([_identifier(file.name.split(".")[0]) for file in files])
    return [
        TableRef(name=name, path=path, description=file.name)
        for name, path, file in zip(names, paths, files, strict=True)
    ]


def split_databases(files: Sequence[Path]) -> tuple[list[Path], list[DatabaseRef]]:
    """The files that are tables, and references to those that are SQLite databases by their content."""
    databases = [file for file in files if is_sqlite(file)]
    stems = [_identifier(file.name.split(".")[0]) for file in databases]
    names = _distinct([f"t_{stem}" if stem == "tables" else stem for stem in stems])  # "tables" means the csv files
    refs = [DatabaseRef(name=name, path=_path(file)) for name, file in zip(names, databases, strict=True)]
    return [file for file in files if file not in databases], refs


def _path(file: Path) -> str:
    path = os.path.realpath(file)  # Path.resolve() raises RuntimeError for a link to itself
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{path!r}: the file's name is not valid Unicode; rename it") from None
    return path


def _distinct(names: list[str]) -> list[str]:
    """Later ones that are taken get a number."""
    taken: list[str] = []
    for stem in names:
        name, number = stem, 2
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        taken.append(name)
    return taken


def _identifier(stem: str) -> str:
    """A Python name like `stem`, in the spelling Python itself gives it (NFKC)."""
    characters = unicodedata.normalize("NFKC", stem)
    name = "".join(c if f"a{c}".isidentifier() else " " for c in characters)
    name = re.sub(r"\s+", "_", name).strip("_").lower() or "table"
    return name if name.isidentifier() and name not in _RESERVED else f"t_{name}"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show(text: str) -> None:
    """Print what a file or a model wrote: as it is, but without control characters, which could act on the terminal."""
    print(_CONTROL.sub("\ufffd", text.replace("\r\n", "\n")))


def run(config: CardConfig) -> int:
    files, databases = split_databases(config.files)
    refs = table_refs(files)
    tables = load_tables(refs, Path())
    left = int(config.max_tokens * CHARS_PER_TOKEN)
    for position, database in enumerate(databases):
        described = describe(database.name, Path(database.path), left // (len(databases) - position + bool(refs)))
        left -= len(described)
        show(described)
    if refs:
        show(
            card({ref.name: tables[ref.name].frame for ref in refs}, {ref.name: ref.description for ref in refs}, left)
        )
    for ref in refs:
        for note in tables[ref.name].notes:
            show(f"note ({ref.description}): {note}")
    return 0
