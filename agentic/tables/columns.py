"""Text cells to typed columns, without losing a value silently.

A column becomes a number, date or boolean column only when its cells say so as a whole; everything that was assumed,
and every cell that did not fit, is a note. Work is done on the distinct values of a column, so that a long column
with few values costs little.

Rules (each leaves a note where it changes something):
- Empty cells are missing. NA, N/A, None, null, nan, "-" and the like are missing in number, date and boolean columns.
- In a text column such a token stays text, because it may be a code (NA for Namibia), unless the file itself uses that
  token for missing in a number or date column, the text column writes no missing value as an empty cell, and the
  other values are not codes of the same shape (NO, DE, ...).
- Whole numbers with leading zeros, with more than 15 digits, or with "+" and many digits are identifiers: the column
  stays text.
- Money, thousands marks, percents, decimal commas become numbers. Cells that do not parse become missing and are named
  if they are few (see `_enough`); a column with codes such as 12B stays text.
- Dates need one format that fits every cell; day or month first is decided by the whole column, else it stays text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from agentic.tables.cells import ALWAYS, TEXT, Cells, Notes, Parsed, count, gather
from agentic.tables.dates import date_readings, day_or_month_first, parse_dates

_INFINITE = frozenset(("inf", "+inf", "-inf", "infinity", "+infinity", "-infinity", "∞", "-∞"))
_SENTINELS = (-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0)

_NOT_PLAIN = re.compile(r"[^0-9.eE+\-\n]")
_IDENTIFIER = re.compile(r"^(?:[+-]?0\d+|[+-]?\d{16,}|\+\d{7,})$", re.MULTILINE)
_FULLWIDTH = str.maketrans("０１２３４５６７８９．，－＋％（）−", "0123456789.,-+%()-")
_CURRENCY = r"(?:[A-Z]{2}\$|[¥￥$€£₹₩₽]|USD|EUR|CNY|RMB|GBP|JPY|INR|CHF|AUD|CAD|KRW|元|円)"
_AFFIXES = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[+-])?\s*(?P<before>{_CURRENCY})?\s*(?P<sign2>[+-])?\s*(?P<digits>[0-9.,'’\u00a0\u202f\u2009]+"
    rf"(?:[eE][+-]?[0-9]+)?)\s*(?P<percent>%)?\s*(?P<after>{_CURRENCY})?\s*(?P<sign3>-)?\s*(?P<close>\))?"
)
_DIGITS = {
    ".": re.compile(r"(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3})?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"),
    ",": re.compile(r"(?:[0-9]+|[0-9]{1,3}(?:\.[0-9]{3})+)?(?:,[0-9]*)?(?:[eE][+-]?[0-9]+)?"),
}
_DOT_GROUPS = re.compile(r"[+-]?[0-9]{1,3}(?:\.[0-9]{3})*")


def convert(names: list[str], columns: list[np.ndarray], separator: str) -> tuple[dict[str, Any], list[str]]:
    """Type every column.

    names: unique column names; columns: object arrays of str, one for each name and of equal length, "" for an empty
    cell. Returns arrays by name (int64, float64, bool, datetime64[us], `str` text; object where booleans have gaps) and
    the notes.
    """
    notes = Notes()
    plain = [_plain_numbers(column) for column in columns]
    rest = {i: gather(names[i], columns[i], notes) for i, numbers in enumerate(plain) if numbers is None}
    votes = {i: _style_votes(cells) for i, cells in rest.items()}
    decimal = "," if separator != "," and any(comma > dot for dot, comma in votes.values()) else "."
    if decimal == ",":
        for i, numbers in enumerate(plain):
            if numbers is not None and numbers.dtype.kind == "f" and _dot_groups(columns[i]):
                rest[i], votes[i] = gather(names[i], columns[i], notes), (0, 1)
    readings = {i: date_readings(cells, notes) for i, cells in rest.items()}
    orders = {order for found in readings.values() if (order := day_or_month_first(found))}
    parsed: dict[int, Parsed | None] = {}
    for i, cells in rest.items():
        done = _booleans(cells) or parse_dates(cells, readings[i], orders, notes)
        parsed[i] = done or _numbers_with_marks(cells, *votes[i], decimal, notes)

    # The words with which this file says "missing" in columns where nothing else can be meant.
    habit = {rest[i].values[k] for i, done in parsed.items() if done is not None for k in done.missing}
    result: dict[str, Any] = {}
    for i, name in enumerate(names):
        typed = parsed.get(i)
        data: Any = plain[i] if i not in rest else typed.data if typed is not None else _text(rest[i], habit, notes)
        if typed is not None and typed.missing:
            words = "/".join(sorted({rest[i].values[k] for k in typed.missing}))
            notes.add("read as missing", name, f"{words} in {count(rest[i].cells(typed.missing), 'cell')}")
        if isinstance(data, np.ndarray) and data.dtype.kind in "if":
            _question_sentinels(name, data, notes)
        result[name] = data
    return result, notes.lines()


# ---------------------------------------------------------------------------------------------- numbers


def _plain_numbers(column: np.ndarray) -> np.ndarray | None:
    """int64 or float64 for a column of 12, -3.5, 1e6 and empty cells, which needs no judgement; else None."""
    filled = column != ""
    texts = column if filled.all() else column[filled]
    joined = "\n".join(texts)
    if not len(texts) or _NOT_PLAIN.search(joined) or _IDENTIFIER.search(joined):
        return None
    try:
        numbers = texts.astype(np.float64)
    except ValueError:
        return None
    if not np.isfinite(numbers).all():
        return None
    if len(texts) < len(column):
        full = np.full(len(column), np.nan)
        full[filled] = numbers
        return full
    return numbers if re.search("[.eE]", joined) else numbers.astype(np.int64)


def _numbers(column: Cells, indices: list[int], numbers: np.ndarray, whole: bool) -> Parsed:
    missing = column.tokens + column.dashes
    gaps = len(indices) < len(column.values)
    if whole and not gaps:
        return Parsed(column.spread(indices, numbers.astype(np.int64), np.int64, 0), missing)
    return Parsed(column.spread(indices, numbers, np.float64, np.nan), missing)


def _numbers_with_marks(column: Cells, dot: int, comma: int, decimal: str, notes: Notes) -> Parsed | None:
    """A number column that needs judgement. dot, comma: see _style_votes; decimal: the file's mark."""
    if max(dot, comma) == 0:
        return None
    if any(_IDENTIFIER.match(column.values[i]) for i in column.real):
        notes.add("identifiers kept as text (leading zeros or more than 15 digits)", column.name)
        return None
    return _marked_numbers(column, decimal if dot == comma else "," if comma > dot else ".", notes)


def _style_votes(column: Cells) -> tuple[int, int]:
    """How many of some distinct values are numbers with a decimal point, and how many with a decimal comma."""
    step = max(1, len(column.real) // 400)
    sample = [column.values[i] for i in column.real[::step]]
    dot = sum(_number(text, ".") is not None for text in sample)
    comma = sum(_number(text, ",") is not None for text in sample)
    return (dot, comma) if 2 * max(dot, comma) >= len(sample) else (0, 0)


def _dot_groups(column: np.ndarray) -> bool:
    """True for 1.234 and 12.345.678 in a file whose decimal mark is the comma."""
    return all(_DOT_GROUPS.fullmatch(text) for text in column if text)


@dataclass(frozen=True)
class _Number:
    value: float
    currency: str
    percent: bool


def _number(text: str, decimal: str) -> _Number | None:
    """Read one cell with signs, currency, thousands marks; None when it is not a number in this style."""
    text = text.translate(_FULLWIDTH)
    if text.lower() in _INFINITE:
        return _Number(np.inf, "", False)
    match = _AFFIXES.fullmatch(text)
    if match is None or bool(match["open"]) != bool(match["close"]):
        return None
    if sum(map(bool, (match["open"], match["sign"], match["sign2"], match["sign3"]))) > 1:
        return None
    digits = re.sub(r"(?<=[0-9])['’\u00a0\u202f\u2009](?=[0-9]{3}(?![0-9]))", "", match["digits"])
    if not _DIGITS[decimal].fullmatch(digits) or not re.search("[0-9]", digits):
        return None
    digits = digits.replace(",", "") if decimal == "." else digits.replace(".", "").replace(",", ".")
    negative = match["open"] or "-" in (match["sign"], match["sign2"], match["sign3"])
    value = float(digits)
    return _Number(-value if negative else value, match["before"] or match["after"] or "", bool(match["percent"]))


def _marked_numbers(column: Cells, decimal: str, notes: Notes) -> Parsed | None:
    """Numbers with marks, and number columns with a few cells that are none."""
    read = {i: _number(column.values[i], decimal) for i in column.real}
    good = {i: number for i, number in read.items() if number is not None and np.isfinite(number.value)}
    endless = [i for i, number in read.items() if number is not None and i not in good]
    bad = [i for i, number in read.items() if number is None]
    if not good:
        return None
    if not _enough(column, list(good) + endless, bad):
        share = f"{column.cells(bad)} of {column.cells(column.real)} cells"
        notes.add("kept as text", column.name, f"{share} are not numbers: {column.where(bad)}")
        return None
    marks = {number.currency for number in good.values() if number.currency}
    percents = {number.percent for number in good.values()}
    if len(marks) > 1 or len(percents) > 1:
        notes.add("kept as text, currencies or units differ between cells", column.name)
        return None
    if bad:
        notes.add("cells that are not numbers, read as missing", column.name, column.where(bad))
    if endless:
        notes.add("infinite or out of range, read as missing", column.name, column.where(endless))
    if decimal == ",":
        notes.add("decimal comma", column.name)
    first = next((i for i in good if re.search(r"[^0-9.eE+\-]", column.values[i])), None)
    if True in percents:
        notes.add("percent signs removed, the numbers are percents", column.name)
    elif first is not None and decimal == ".":
        notes.add("number marks removed", column.name, f"{column.values[first]!r} is {good[first].value:g}")
    numbers = np.array([number.value for number in good.values()], dtype=np.float64)
    whole = not marks and all(re.fullmatch(r"[+-]?[0-9]{1,3}(?:[,.]?[0-9]{3})*", column.values[i]) for i in good)
    return _numbers(column, list(good), numbers, whole and bool((numbers % 1 == 0).all()))


def _enough(column: Cells, good: list[int], bad: list[int]) -> bool:
    """Whether so many cells are numbers that the others are faults.

    A misplaced comma (1,50) is a fault in up to a quarter of the cells, a word (sensor off) in 5 %, a word with digits
    (12 kg) in 1 %; a code (12B) says that the whole column holds codes.
    """
    if not bad:
        return True
    texts = [column.values[i] for i in bad]
    if any(re.fullmatch(r"[A-Za-z0-9_/#-]*", t) and re.search("[A-Za-z]", t) and re.search("[0-9]", t) for t in texts):
        return False
    if all(re.fullmatch("[0-9.,]+", t) for t in texts):
        needed = 0.75
    else:
        needed = 0.99 if any(re.search("[0-9]", t) and re.search("[^0-9.,]", t) for t in texts) else 0.95
    return column.cells(good) >= needed * column.cells(good + bad)


def _question_sentinels(name: str, data: np.ndarray, notes: Notes) -> None:
    """Name values such as -999 that lie far outside the rest; they are kept."""
    finite = data[np.isfinite(data)]
    if len(finite) < 3:
        return
    for value in {float(finite.min()), float(finite.max())}.intersection(_SENTINELS):
        rest = finite[finite != value]
        if not len(rest):
            continue
        low, high = float(rest.min()), float(rest.max())
        gap = low - value if value < low else value - high
        if gap > 3 * (high - low) or (value < 0 <= low and value <= -999):
            number = len(finite) - len(rest)
            notes.add("may stand for missing, kept as numbers", name, f"{value:g} in {count(number, 'cell')}")


# ------------------------------------------------------------------------------------------ booleans, text


def _booleans(column: Cells) -> Parsed | None:
    words = [column.values[i].lower() for i in column.real]
    if not words or len(words) > 6 or not set(words) <= {"true", "false"}:
        return None
    truth = [word == "true" for word in words]
    missing = column.tokens + column.dashes
    if len(column.real) == len(column.values):
        return Parsed(column.spread(column.real, truth, np.bool_, False), missing)
    return Parsed(column.spread(column.real, truth, object, np.nan), missing)


def _text(column: Cells, habit: set[str], notes: Notes) -> Any:
    """The text column, with tokens that mean missing in this file removed; NaN numbers when nothing remains."""
    if not column.real and not column.dashes:
        notes.add("columns without values", column.name)
        return np.full(len(column.codes), np.nan)
    if column.padded:
        notes.add("spaces around cells removed", column.name, count(column.cells(column.padded), "cell"))
    gone: list[int] = []
    if column.tokens and not column.blank:
        others = [column.values[i] for i in column.real]
        gone = [i for i in column.tokens if column.values[i] in habit and not _same_shape(column.values[i], others)]
    kept = [i for i in column.tokens if i not in gone]
    if gone:
        words = "/".join(sorted({column.values[i] for i in gone}))
        notes.add("read as missing", column.name, f"{words} in {count(column.cells(gone), 'cell')}")
    if kept:
        words = "/".join(sorted({column.values[i] for i in kept}))
        detail = f"{words} in {count(column.cells(kept), 'cell')}"
        notes.add("words kept as text although they may mean missing", column.name, detail)
    keep = [i for i, value in enumerate(column.values) if value and value not in ALWAYS and i not in set(gone)]
    texts = np.array([column.values[i] for i in keep] + [""], dtype=object)[:-1]
    return pd.array(column.spread(keep, texts, object, np.nan), dtype=TEXT)


def _same_shape(token: str, others: list[str]) -> bool:
    """True when all other values are codes of the token's length and case (NA among NO, DE, US)."""
    return bool(others) and all(len(o) == len(token) and o.isalpha() and o.isupper() == token.isupper() for o in others)
