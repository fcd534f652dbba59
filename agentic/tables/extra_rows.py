"""Rows that are no data: blank ones, and footnotes and totals below the table."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from agentic.tables.cells import count, quote

_TOTALS = frozenset(
    (
        *("total", "totals", "grand total", "grand totals", "overall total", "sum", "subtotal", "sub-total"),
        *("合计", "总计", "总和", "共计", "小计", "合計", "總計", "gesamt", "summe", "insgesamt", "gesamtsumme"),
        *("total general", "total général", "totale", "итого", "всего"),
    )
)
_TOTAL_FORMS = [
    form + end for t in _TOTALS for form in {t, t.title(), t.upper(), t.capitalize()} for end in ("", ":", "：")
]
_FOOTNOTE = re.compile(r"\*|†|(?:notes?|sources?|注|备注|说明|数据来源|来源|quelle)\s*[:：]", re.IGNORECASE)


def leave_out(cells: pd.DataFrame, text: str, notes: list[str]) -> pd.DataFrame:
    """Without blank rows, footnotes and total rows at the end."""
    if cells.shape[1] < 2 or not len(cells):
        return cells
    candidates = np.flatnonzero((cells[0] == "").to_numpy())
    blank = candidates[(cells.iloc[candidates].apply(lambda column: column.str.strip()) == "").all(axis=1).to_numpy()]
    if len(blank):
        cells = cells.drop(cells.index[blank])
        notes.append(f"{count(len(blank), 'row')} without values left out")

    tail = [line.strip(" \t,;|") for line in text[-8192:].rstrip().splitlines()]
    behind_gap = next((i for i, line in enumerate(reversed(tail)) if not line), 0)
    end = len(cells)
    footnotes: list[str] = []
    while end > 1:
        row = [field.strip() for field in cells.iloc[end - 1] if field.strip()]
        mark = _FOOTNOTE.match(row[0]) if row else None
        alone = len(row) == 1 and (mark or len(footnotes) < behind_gap)
        if not alone and not (mark and len(mark[0]) > 1):
            break
        footnotes.insert(0, " ".join(row))
        end -= 1
    if footnotes:
        notes.append(f"{count(len(footnotes), 'footnote')} left out: {quote(footnotes)}")

    totals: list[str] = []
    while end > 2:
        row = [field.strip() for field in cells.iloc[end - 1] if field.strip()]
        if (
            not row
            or row[0].rstrip(" :：").lower() not in _TOTALS
            or not any(re.search(r"\d", cell) for cell in row[1:])
        ):
            break
        # A label that also stands elsewhere is a value of the column (sex: male, female, total).
        if int((cells[0].str.strip() == row[0]).sum()) > 1:
            break
        totals.insert(0, " ".join(row))
        end -= 1
    if totals:
        notes.append(f"{count(len(totals), 'total row')} left out: {quote(totals)}")
    cells = cells.iloc[:end]
    inner = np.flatnonzero(cells[0].isin(_TOTAL_FORMS).to_numpy())
    if len(inner):
        first = f"row {inner[0] + 1}: {cells[0].iloc[inner[0]].strip()!r}"
        notes.append(f"{count(len(inner), 'row')} kept that may be totals ({first})")
    return cells
