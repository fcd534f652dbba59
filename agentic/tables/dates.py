"""Columns of dates: one layout must fit every cell."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from agentic.tables.cells import Cells, Notes, Parsed

_TIME = re.compile(
    r"(?P<gap>[T ])\d{1,2}:\d{2}(?P<seconds>:\d{2}(?P<fraction>\.\d+)?)?(?P<half> ?[AaPp][Mm])?"
    r"(?P<zone> ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?$"
)
_NUMERIC_DATE = re.compile(r"(\d+)([-/.])(\d+)\2(\d+)$")
_NAMED_DATES = (
    "%b %d %Y",
    "%b %d, %Y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%b-%d-%Y",
    "%B %d, %Y",
    "%B %d %Y",
    "%d %B %Y",
)


def date_readings(column: Cells, notes: Notes) -> dict[str, Any]:
    """Every strptime layout of the date part that fits all cells, with the moments it gives (zones dropped, noted)."""
    texts = [column.values[i] for i in column.real]
    if not texts or not 6 <= len(texts[0]) <= 40:
        return {}
    time = _TIME.search(texts[0])
    layouts = _layouts(texts[0][: time.start()] if time is not None else texts[0])
    if not layouts:
        return {}
    suffix = ""
    if time is not None:
        clock = "%I" if time["half"] else "%H"
        suffix = time["gap"] + clock + ":%M" + (":%S" if time["seconds"] else "") + (".%f" if time["fraction"] else "")
        suffix += " %p" if time["half"] and time["half"][0] == " " else "%p" if time["half"] else ""
        if time["zone"]:
            cuts = [_TIME.search(text) for text in texts]
            zones = {cut["zone"].strip() if cut and cut["zone"] else "" for cut in cuts}
            if len(zones) > 1:
                notes.add("kept as text, time zones differ between cells", column.name)
                return {}
            notes.add("times kept as written, zone dropped", column.name, zones.pop())
            texts = [text[: cut.start("zone")] for text, cut in zip(texts, cuts, strict=True) if cut]
    fits: dict[str, Any] = {}
    for layout in layouts:
        # A short look first: most layouts fail on the first cells.
        if pd.to_datetime(pd.Index(texts[:50]), format=layout + suffix, errors="coerce").isna().any():
            continue
        parsed = pd.to_datetime(pd.Index(texts), format=layout + suffix, errors="coerce")
        if not parsed.isna().any() and not _too_short(texts, layout):
            fits[layout] = parsed
    return fits


def day_or_month_first(readings: dict[str, Any]) -> str | None:
    """The first directive (%d or %m) when the cells alone decide what comes first in dates such as 28/10/2025."""
    layout = next(iter(readings), "")
    return layout[:2] if len(readings) == 1 and layout[:2] in ("%d", "%m") and layout not in _NAMED_DATES else None


def parse_dates(column: Cells, readings: dict[str, Any], orders: set[str], notes: Notes) -> Parsed | None:
    """datetime64[us]; None when no layout fits, or two do and no other column of the file decides.

    orders: what day_or_month_first says of the file's columns.
    """
    named = [layout for layout in readings if layout in _NAMED_DATES]
    if not readings:
        return None
    example = repr(column.values[column.real[0]])
    layout = next(iter(named or readings))
    if len(readings) > 1 and not named:
        if len(orders) != 1:
            notes.add("kept as text, day and month cannot be told apart", column.name, f"first {example}")
            return None
        layout = next(layout for layout in readings if layout[:2] in orders)
    is_date = f"{example} is {readings[layout][0].date()}"
    if layout[:2] in ("%d", "%m") and not named:
        order = "day first" if layout.startswith("%d") else "month first"
        year = ", two-digit years" if layout.endswith("y") else ""
        basis = "the whole column" if len(readings) == 1 else "the file's other dates"
        notes.add("dates, order of day and month assumed", column.name, f"{order} by {basis}{year}: {is_date}")
    elif layout.endswith("y"):
        notes.add("dates with two-digit years", column.name, is_date)
    stamps = readings[layout].to_numpy().astype("datetime64[us]")
    data = column.spread(column.real, stamps, "datetime64[us]", np.datetime64("NaT", "us"))
    return Parsed(data, column.tokens + column.dashes)


def _layouts(date: str) -> list[str]:
    """strptime layouts that a column may have whose first date is `date`."""
    numeric = _NUMERIC_DATE.match(date)
    if numeric is not None:
        first, mark, second, last = numeric.groups()
        if len(first) == 4:
            return [f"%Y{mark}%m{mark}%d"]
        if len(first) > 2 or len(second) > 2 or len(last) not in (2, 4):
            return []
        # 1.2.10 is more often a version than a date.
        if mark == "." and len(last) == 2 and (len(first), len(second)) != (2, 2):
            return []
        year = "%Y" if len(last) == 4 else "%y"
        orders = ("%d", "%m") if mark == "." else ("%d", "%m", "%m", "%d")
        return [mark.join((*orders[i : i + 2], year)) for i in range(0, len(orders), 2)]
    if re.match(r"\d{4}年\d{1,2}月\d{1,2}日", date):
        return ["%Y年%m月%d日"]
    return list(_NAMED_DATES) if re.search("[A-Za-z]{3}", date) and re.search(r"\d", date) else []


def _too_short(texts: list[str], layout: str) -> bool:
    """pandas reads "2024-05" with the layout %Y-%m-%d; here it is no date."""
    mark = layout[2]
    return mark in "-/" and any(text[:10].count(mark) < 2 for text in texts)
