"""A delimited text file as a DataFrame, with a note for everything that was assumed or left out.

Content decides, not the extension. The order of work: bytes (gzip, binary formats refused), text (encoding), cells
(separator, header, total rows and footnotes), columns (see columns.py). Also imported inside the sandbox: nothing but
the standard library, numpy, pandas and agentic.errors.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from agentic.errors import UserError
from agentic.tables.cells import TEXT, count, quote
from agentic.tables.columns import convert
from agentic.tables.extra_rows import leave_out
from agentic.tables.text import decode, load

MAX_BYTES = 512 * 1024**2
_SAMPLE_CHARS = 1 << 16
_SAMPLE_ROWS = 200
# In the order in which they are preferred when they fit equally well.
_SEPARATORS = {"\t": "tab", ";": "semicolon", "|": "pipe", ",": "comma"}
_NO_SEPARATOR = "\x1f"

_NUMBER = re.compile(r"[+-]?[¥$€£]?\d[\d.,]*%?")
_MOMENT = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}")


@dataclass
class Table:
    """A table and what its reader assumed.

    Columns are int64, float64, bool, datetime64[us] or `str`; booleans with gaps are object. Names are unique even when
    case is ignored.
    """

    frame: pd.DataFrame
    notes: list[str]


@dataclass
class _Layout:
    """How the text is cut into cells."""

    separator: str
    names: list[str]
    start: int
    """Character offset of the first data row."""
    widest: int
    """Most fields in any sampled row."""


def read_table(path: str | Path, max_bytes: int = MAX_BYTES) -> Table:
    """Read csv, tsv or other delimited text, plain or gzip.

    Raises UserError (one sentence with the remedy) when the file is missing, a folder, unreadable, larger than
    `max_bytes` (also unpacked), empty, blank, or is in truth another format.
    """
    path = Path(path)
    notes: list[str] = []
    text = decode(load(path, max_bytes, notes), path, notes)
    head = re.match(r"sep=(.)\r?\n", text)
    if head is not None:
        text = text[head.end() :]
    if not text.strip():
        raise UserError(f"{path}: holds only blank lines; give a file with a header row and data")
    if not text.strip(' \t\r\n,;|"'):
        raise UserError(f"{path}: has no column names and no values; give a file with a header row and data")
    layout = _layout(text, head[1] if head else None, path, notes)
    cells, names, short = _cut(text, layout, path, notes)
    cells = leave_out(cells, text, notes)
    rows = np.flatnonzero(cells.index.isin(short)) + 1
    if len(rows):
        notes.append(
            f"{count(len(rows), 'row')} with fewer cells than the header, the rest is missing (first: row {rows[0]})"
        )
    unique = _unique_names(names, notes)
    columns = [cells[i].to_numpy() for i in range(len(unique))]
    if not len(cells):
        notes.append("no data rows")
        return Table(pd.DataFrame({name: pd.array([], dtype=TEXT) for name in unique}), notes)
    data, column_notes = convert(unique, columns, layout.separator)
    return Table(pd.DataFrame(data), notes + column_notes)


# ------------------------------------------------------------------------------------------ rows and header


def _sample(text: str, separator: str) -> list[tuple[list[str], int]]:
    """The first rows as (fields, number of lines read up to the row's end)."""
    part = text[:_SAMPLE_CHARS]
    reader = csv.reader(io.StringIO(part, newline=""), delimiter=separator, skipinitialspace=True)
    rows = [
        ([cell.strip() for cell in row], reader.line_num) for row, _ in zip(reader, range(_SAMPLE_ROWS), strict=False)
    ]
    # The last row of a cut text may be half a row.
    return rows[:-1] if len(part) < len(text) and len(rows) > 1 else rows


def _padded(text: str, separator: str) -> bool:
    """Whether cells in most of the first rows begin with a space."""
    part = text[:_SAMPLE_CHARS]
    if separator + " " not in part:
        return False
    reader = csv.reader(io.StringIO(part, newline=""), delimiter=separator)
    rows = [row for row, _ in zip(reader, range(50), strict=False)]
    return sum(any(cell[:1] == " " for cell in row[1:]) for row in rows) * 2 > len(rows)


def _layout(text: str, separator: str | None, path: Path, notes: list[str]) -> _Layout:
    if separator is None:
        separator = _separator(text)
    rows = _sample(text, separator)
    if separator not in (",", _NO_SEPARATOR):
        notes.append(f"separator {_SEPARATORS.get(separator, repr(separator))}")
    if separator != _NO_SEPARATOR and _padded(text, separator):
        notes.append("spaces after separators ignored")
    top, width = _header_row([row for row, _ in rows])
    if top is None:
        raise UserError(f"{path}: has no column names and no values; give a file with a header row and data")
    skipped = [" ".join(field for field in row if field) for row, _ in rows[:top] if any(row)]
    if skipped:
        notes.append(f"{count(len(skipped), 'line')} above the header left out: {quote(skipped)}")
    header, end = rows[top]
    below = [row for row, _ in rows[top + 1 :] if any(row)]
    names = [_clean(name) for name in header]
    if below and len(names) < width:
        if width == len(names) + 1 and not all(len(row) == width and not row[-1] for row in below if len(row) == width):
            names.insert(0, "")
            notes.append("the header has one name less than the rows have cells: the first column has no name")
        names += [""] * (width - len(names))
    if _is_data(header, below):
        notes.append("no header row: columns are named by position")
        names, end = [""] * len(names), rows[top - 1][1] if top else 0
    return _Layout(separator, names, _line_start(text, end), max(len(names), *(len(row) for row, _ in rows)))


def _header_row(rows: list[list[str]]) -> tuple[int | None, int]:
    """Index of the header among the rows (None: no row has a value) and the usual number of fields in a row."""
    wide = [len(row) for row in rows if len(row) > 1]
    # Of two widths that are equally common the larger one is the table, the smaller one notes around it.
    width = max(set(wide), key=lambda size: (wide.count(size), size)) if wide else 1
    needed = max(2, (width + 1) // 2) if width > 1 else 1
    fits = [len(row) >= width - 1 and sum(map(bool, row)) >= needed for row in rows]
    tops = [i for i, fit in enumerate(fits) if fit] or [i for i, row in enumerate(rows) if any(row)]
    if not tops:
        return None, width
    top = tops[0]
    # A title line may have as many fields as the table ("Sales, draft 3"): then a gap follows it, and behind the gap
    # stands a row that is more surely a header.
    if len(fits) > top + 1 and not fits[top + 1]:
        after = next((i for i in tops if i > top), None)
        if after is not None and any(not _is_value(head) for head in _valued_heads(rows[after], rows[after + 1 :])):
            top = after
    return top, width


def _separator(text: str) -> str:
    """The separator with which most rows have the same number of fields."""
    found: dict[str, tuple[float, int]] = {}
    for separator in _SEPARATORS:
        if separator not in text[:_SAMPLE_CHARS]:
            continue
        rows = [row for row, _ in _sample(text, separator)]
        if _is_doubtful(rows):
            continue
        widths = [len(row) for row in rows if any(row)]
        counts = np.bincount(widths, minlength=3) if widths else np.zeros(3, dtype=int)
        width = 2 + int(np.argmax(counts[2:]))
        if counts[width]:
            found[separator] = (counts[width] / len(widths), widths.index(width))
    # Prose in a single column has commas too, but always before a space and not in the header.
    if found.get(",", (0.0, 0))[1] > 0 and not re.search(r",(?! )", text[:_SAMPLE_CHARS]):
        del found[","]
    best = max((share for share, _ in found.values()), default=0.0)
    if best < 0.3:
        return _NO_SEPARATOR
    near = {separator: first for separator, (share, first) in found.items() if share >= 0.9 * best}
    return min(near, key=lambda separator: near[separator])


def _is_doubtful(rows: list[list[str]]) -> bool:
    """Whether the separator that cut `rows` may only stand inside the texts of a single column, whose name lacks it.

    A title above a table lacks it, too. Then a gap follows, or names stand above numbers or dates.
    """
    first = next((i for i, row in enumerate(rows) if any(row)), len(rows))
    wide = next((i for i, row in enumerate(rows) if len(row) > 1), len(rows))
    if first == wide or not all(any(row) for row in rows[first:wide]):
        return False
    return all(map(_is_value, _valued_heads(rows[wide], rows[wide + 1 :]))) if wide < len(rows) else True


def _is_value(field: str) -> bool:
    return bool(_NUMBER.fullmatch(field.strip()) or _MOMENT.fullmatch(field.strip()))


def _valued_heads(header: list[str], below: list[list[str]]) -> list[str]:
    """The header's fields in those columns that hold only numbers or dates in the first rows below."""
    rows = [row for row in below[:50] if len(row) == len(header)]
    columns = [[row[i] for row in rows if row[i].strip()] for i in range(len(header))]
    return [head for head, column in zip(header, columns, strict=True) if column and all(map(_is_value, column))]


def _is_data(header: list[str], below: list[list[str]]) -> bool:
    """Whether the first row already holds data: it has numbers or dates where the rows below have them.

    Years and evenly spaced whole numbers are accepted as names (2019, 2020, 2021 or 0, 1, 2).
    """
    heads = [head.strip() for head in _valued_heads(header, below)]
    if not heads or not all(map(_is_value, heads)):
        return False
    if not all(re.fullmatch(r"\d{1,4}", head) for head in heads):
        return True
    numbers = [int(head) for head in heads]
    steps = set(np.diff(numbers).tolist())
    return not (all(1800 <= n <= 2100 for n in numbers) or (len(numbers) > 1 and len(steps) == 1 and steps != {0}))


def _line_start(text: str, lines: int) -> int:
    """Character offset behind the first `lines` lines."""
    if lines == 0:
        return 0
    for number, match in enumerate(re.finditer(r"\r\n|\n|\r", text), start=1):
        if number == lines:
            return match.end()
    return len(text)


def _cut(text: str, layout: _Layout, path: Path, notes: list[str]) -> tuple[pd.DataFrame, list[str], list[int]]:
    """All data cells as text (object columns 0..n-1, "" where empty), the names of the columns, and the short rows."""
    data = text[layout.start :].encode("utf-8", "replace")
    quoted = True
    width = layout.widest
    names = list(layout.names)
    if not data.strip():
        return pd.DataFrame({i: np.array([], dtype=object) for i in range(len(names))}), names, []
    while True:
        try:
            cells = _parse(data, layout.separator, width, quoted)
            break
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            if "EOF inside string" in str(error) and quoted:
                cells = _parse_openquote(data, layout.separator, width)
                if cells is not None:
                    notes.append("the last row ends inside a quoted cell; the file may be cut off")
                    break
                quoted = False
                notes.append("quote marks are not balanced and were read as plain characters")
            elif re.search("Expected|Length of header", str(error)) and width < 64 * layout.widest + 64:
                width = 2 * width + 1
            else:
                raise UserError(
                    f"{path}: rows cannot be cut into cells ({error}); check quotes and separators"
                ) from None
    named = len(names)
    spare = cells.iloc[:, named:]
    long = np.flatnonzero((spare != "").any(axis=1).to_numpy()) if width > named else np.array([], dtype=int)
    if len(long):
        lost = [field for field in spare.iloc[long[0]] if field]
        first = f"row {long[0] + 1}: {quote(lost)}"
        notes.append(f"{count(len(long), 'row')} with more cells than the header, the surplus is left out ({first})")
    short = _short_rows(data, layout.separator, named, cells, quoted)
    keep = [i for i in range(named) if names[i] or (cells[i] != "").any()]
    if len(keep) < named:
        notes.append(f"{count(named - len(keep), 'column')} without name and values left out")
    if not keep:
        raise UserError(f"{path}: has no column names and no values; give a file with a header row and data")
    return cells[keep].set_axis(range(len(keep)), axis=1), [names[i] for i in keep], short


def _parse(data: bytes, separator: str, width: int, quoted: bool) -> pd.DataFrame:
    with warnings.catch_warnings():
        # pandas only warns when it cuts a long first row.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame: pd.DataFrame = pd.read_csv(
            io.BytesIO(data),
            sep=separator,
            header=None,
            names=range(width),
            index_col=False,
            dtype=object,
            na_filter=False,
            skipinitialspace=True,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            encoding="utf-8",
        )
    return frame


def _parse_openquote(data: bytes, separator: str, width: int) -> pd.DataFrame | None:
    """A file that was cut off inside a quoted cell; None when an early stray quote would swallow many lines."""
    try:
        cells = _parse(data.rstrip() + b'"', separator, width, True)
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        return None
    return cells if not any(field.count("\n") > 1 for field in cells.iloc[-1]) else None


def _short_rows(data: bytes, separator: str, width: int, cells: pd.DataFrame, quoted: bool) -> list[int]:
    """Positions (from 0) of the rows with fewer fields than `width`; the C parser fills them without a word."""
    if width < 2 or not (cells[width - 1] == "").any():
        return []
    if data.count(separator.encode()) == len(cells) * (width - 1) and b'"' not in data:
        return []
    csv.field_size_limit(max(csv.field_size_limit(), len(data)))
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    text = io.StringIO(data.decode("utf-8"), newline="")
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, quoting=quoting)
    # The C parser skips lines of nothing but spaces.
    rows = (row for row in reader if len(row) > 1 or (row and row[0].strip()))
    return [position for position, row in enumerate(rows) if len(row) < width]


# -------------------------------------------------------------------------------------------------- names


def _clean(name: str) -> str:
    return re.sub(r"\s*[\r\n]+\s*", " ", name.strip("\ufeff \t\r\n\u00a0\u3000"))


def _unique_names(names: list[str], notes: list[str]) -> list[str]:
    """Unique names, also when case is ignored (SQL does); the changed ones are noted with their originals."""
    taken = {name.lower() for name in names if name}
    used: set[str] = set()
    result: list[str] = []
    changed: list[str] = []
    alike: dict[str, list[str]] = {}
    for position, name in enumerate(names, start=1):
        new, number = name or f"column_{position}", 2
        while new.lower() in used or (new != name and new.lower() in taken):
            new, number = f"{name or f'column_{position}'}_{number}", number + 1
        if new != name:
            changed.append(f"column {position} {name!r} is {new!r}" if name else f"column {position} is {new!r}")
        used.add(new.lower())
        result.append(new)
        if name:
            alike.setdefault(name.lower(), []).append(new)
    if changed:
        notes.append(
            "renamed: " + "; ".join(changed[:12]) + (f"; and {len(changed) - 12} more" if len(changed) > 12 else "")
        )
    for name, group in alike.items():
        if len(group) > 1:
            notes.append(
                f"{len(group)} columns are called {name!r} when case and spaces are ignored: {', '.join(group[:8])}"
            )
    return result
