"""A column of text cells by its distinct values, and the notes about columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

# The same dtype name (`str`) with and without pyarrow, so that a frame does not depend on what is installed.
TEXT = pd.StringDtype("python", na_value=np.nan)

TOKENS = frozenset(
    ("NA", "N/A", "n/a", "na", "N.A.", "None", "none", "NONE", "null", "NULL", "Null", "nan", "NAN", "<NA>", "nil")
)
"""May mean missing, or be a code or a word."""
ALWAYS = frozenset(("NaN", "#N/A", "#NA", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"))
"""Missing in every column."""
DASHES = frozenset(("-", "--", "---", "—", "–", ".", "..", "…", "?", "*"))
"""Missing in number, date and boolean columns only."""
_SPECIAL = TOKENS | ALWAYS | DASHES | {""}


@dataclass
class Notes:
    """Notes of one kind are said once for all columns they concern."""

    kinds: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, column: str, detail: str = "") -> None:
        self.kinds.setdefault(kind, []).append(f"{column} ({detail})" if detail else column)

    def lines(self, most: int = 8) -> list[str]:
        """One sentence for each kind, with at most `most` columns named."""
        result = []
        for kind, columns in self.kinds.items():
            rest = f" and {len(columns) - most} more columns" if len(columns) > most else ""
            result.append(f"{kind}: {', '.join(columns[:most])}{rest}")
        return result


@dataclass
class Cells:
    """A column as distinct texts: cell i holds values[codes[i]]."""

    name: str
    codes: np.ndarray
    values: list[str]
    counts: np.ndarray
    blank: bool = False
    """Some cell is empty or an error value."""
    padded: list[int] = field(default_factory=list)
    """Indices of values that had spaces around them."""
    tokens: list[int] = field(default_factory=list)
    """Indices of values that may mean missing (TOKENS)."""
    dashes: list[int] = field(default_factory=list)
    real: list[int] = field(default_factory=list)
    """Indices of all other non-empty values."""

    def where(self, indices: list[int], most: int = 3) -> str:
        """First cells that hold one of the values, as "row 4 '1,50'"; rows count from 1 below the header."""
        rows = np.flatnonzero(np.isin(self.codes, indices))
        cells = ", ".join(f"row {row + 1} {_short(self.values[self.codes[row]])!r}" for row in rows[:most])
        return cells + (f" and {len(rows) - most} more" if len(rows) > most else "")

    def cells(self, indices: list[int]) -> int:
        return int(self.counts[indices].sum()) if indices else 0

    def spread(self, indices: list[int], parsed: Any, dtype: Any, missing: Any) -> np.ndarray:
        """A full column from the parsed distinct values; the other cells are `missing`."""
        table = np.full(len(self.values), missing, dtype=dtype)
        table[indices] = parsed
        column: np.ndarray = table[self.codes]
        return column


@dataclass
class Parsed:
    """What the cells of a number, date or boolean column became."""

    data: np.ndarray
    missing: list[int]
    """Values that were read as missing although not empty."""


def gather(name: str, column: np.ndarray, notes: Notes) -> Cells:
    """Distinct stripped values of an object array of str, sorted by what they may mean."""
    codes, uniques = pd.factorize(column)
    values = [value.strip() for value in uniques]
    cells = Cells(name, codes, values, np.bincount(codes, minlength=len(values)))
    cells.padded = [i for i, raw in enumerate(uniques) if values[i] is not raw and values[i]]
    special = {i: value for i, value in enumerate(values) if value in _SPECIAL}
    cells.tokens = [i for i, value in special.items() if value in TOKENS]
    cells.dashes = [i for i, value in special.items() if value in DASHES]
    cells.blank = len(special) > len(cells.tokens) + len(cells.dashes)
    cells.real = [i for i in range(len(values)) if i not in special]
    errors = [i for i, value in special.items() if value in ALWAYS]
    if errors:
        notes.add("error values read as missing", name, cells.where(errors))
    return cells


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 cell, 2 cells."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def quote(parts: list[str], most: int = 3) -> str:
    """The first `most` texts of a note, long ones cut."""
    shown = "; ".join(repr(part if len(part) <= 60 else part[:57] + "...") for part in parts[:most])
    return shown + (f" and {len(parts) - most} more" if len(parts) > most else "")
