"""Whole tables in an answer: JSON, a markdown pipe table or csv text, compared row by row.

A row is compared as a row: the cells that belong together stay together. (A comparer that sorts each column on its own
takes re-paired rows for right.) Rows are a multiset, or a sequence where the check says `ordered`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentic.records import Check
from agentic.reward.fold import fold
from agentic.reward.numbers import number_failure, tolerance
from agentic.reward.pairing import unpaired
from agentic.reward.quantity import quantities

MAX_CELLS = 200_000
MAX_ATTEMPTS = 50
"""Brackets that open no JSON; then the text is not searched further."""
_MISSING = {"", "nan", "none", "null", "na", "n a", "nat", "缺失"}
RULE = re.compile(r"^(?=.*\||\s*:?--)\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")


@dataclass(frozen=True)
class Grid:
    """A table as read: `columns` is empty where the text has no header that could be told from a row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def gold_problem(value: Any) -> str | None:
    """Why a value cannot be the gold of a table check, or None."""
    if not isinstance(value, dict) or set(value) != {"columns", "rows"}:
        return 'an object {"columns": [names], "rows": [[cells], ...]}'
    columns, rows = value["columns"], value["rows"]
    if (
        not isinstance(columns, list)
        or not columns
        or not all(isinstance(name, str) and name.strip() for name in columns)
    ):
        return "a list of column names"
    if len({fold(name) for name in columns}) < len(columns):
        return "column names that differ by more than case and punctuation"
    if not isinstance(rows, list) or not rows:
        return "at least one row"
    if any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
        return f"rows of {len(columns)} cells each, as there are columns"
    if not all(cell is None or isinstance(cell, str | int | float | bool) for row in rows for cell in row):
        return "cells that are texts, numbers, true, false or null"
    if any(
        cell != cell or cell in (float("inf"), float("-inf")) for row in rows for cell in row if isinstance(cell, float)
    ):
        return "finite numbers (null for a missing cell)"
    return None


def table_failure(text: str, check: Check, question: str) -> str | None:
    """None when the text holds one table and it is the gold table, otherwise a sentence."""
    if problem := gold_problem(check.value):
        return f"the check needs {problem}"
    columns = [str(name) for name in check.value["columns"]]
    gold = [tuple(row) for row in check.value["rows"]]
    grids = list(read_tables(text))
    if not grids:
        return "no table is stated"
    failures = [_failure(grid, columns, gold, check) for grid in grids]
    # Several readings of one text (with and without a header) are one table; two tables are an offer to choose from.
    if len({len(grid.rows) for grid in grids if grid.columns}) > 1:
        return f"{len(grids)} tables are stated, one is asked"
    return None if None in failures else failures[0]


def _failure(grid: Grid, columns: list[str], gold: list[tuple[Any, ...]], check: Check) -> str | None:
    if grid.columns:
        order = _order(grid.columns, columns)
        if order is None:
            missing = [name for name in columns if fold(name) not in {fold(c) for c in grid.columns}]
            return (
                f"column {missing[0]} is missing"
                if missing
                else f"{len(columns)} columns are asked, {len(grid.columns)} stated"
            )
        rows = [tuple(row[place] for place in order) for row in grid.rows]
    else:
        rows = list(grid.rows)
        if any(len(row) != len(columns) for row in rows):
            return f"a row has not {len(columns)} cells"
    if len(rows) != len(gold):
        return f"{len(gold)} rows are right, {len(rows)} are stated"
    if all(_same(row, right, check) for row, right in zip(rows, gold, strict=True)):
        return None
    # Rows can only match rows with the same texts, which makes a table of thousands of rows quick to compare.
    texts = [i for i in range(len(columns)) if all(isinstance(row[i], str) for row in gold)]
    groups: dict[tuple[str, ...], tuple[list[Any], list[Any]]] = {}
    for side, table in enumerate((rows, gold)):
        for row in table:
            groups.setdefault(tuple(fold(str(row[i])) for i in texts), ([], []))[side].append(row)
    for stated, right in groups.values():
        place = unpaired(stated, right, lambda a, b: _same(a, b, check))
        if place is not None:
            return f"row {', '.join(map(str, stated[place]))[:80]} is not in the right table"
    return "the rows are right, their order is not" if check.ordered else None


def _order(found: tuple[str, ...], columns: list[str]) -> list[int] | None:
    """Place in the stated header of every asked column; None unless they are the same columns. Order is free."""
    names = [fold(name) for name in found]
    if sorted(names) != sorted(fold(name) for name in columns):
        return None
    return [names.index(fold(name)) for name in columns]


def _same(row: tuple[Any, ...], gold: tuple[Any, ...], check: Check) -> bool:
    return len(row) == len(gold) and all(_cell(a, b, check) for a, b in zip(row, gold, strict=True))


def _cell(cell: Any, gold: Any, check: Check) -> bool:
    if gold is None or cell is None:
        return all(value is None or fold(str(value)) in _MISSING for value in (cell, gold))
    if isinstance(gold, bool) or not isinstance(gold, int | float):
        return fold(str(cell)) == fold(str(gold))
    number = Check(kind="number", value=gold, unit=check.unit, decimals=check.decimals)
    if isinstance(cell, bool):
        return False
    if isinstance(cell, int | float):
        return abs(float(cell) - float(gold)) <= tolerance(number)
    found = quantities(cell)
    return len(found) == 1 and not re.search(r"[^\W\d_]{4,}", cell) and number_failure(found[0], number, "", "") is None


# ------------------------------------------------------------------------------------------------- reading


def read_tables(text: str) -> Iterator[Grid]:
    """The tables of a text in the first form that it has: JSON, pipe table, csv. At most MAX_CELLS cells."""
    for reader in (_json_tables, _pipe_tables, _csv_tables):
        found = [grid for grid in reader(text) if grid.rows and sum(map(len, grid.rows)) <= MAX_CELLS]
        if found:
            yield from found
            return


def _json_tables(text: str) -> Iterator[Grid]:
    decoder, position, failed = json.JSONDecoder(), 0, 0
    while (
        failed < MAX_ATTEMPTS
        and (start := min((p for p in (text.find("[", position), text.find("{", position)) if p >= 0), default=-1)) >= 0
    ):
        try:
            value, position = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            position, failed = start + 1, failed + 1
            continue
        if grid := _json_grid(value):
            yield grid


def _json_grid(value: Any) -> Grid | None:
    if isinstance(value, dict):
        rows = value.get("rows", value.get("data"))
        if isinstance(value.get("columns"), list) and isinstance(rows, list):
            columns = tuple(map(str, value["columns"]))
            good = all(isinstance(row, list) and len(row) == len(columns) for row in rows)
            return Grid(columns, tuple(map(tuple, rows))) if good else None
        lists = list(value.values())
        if lists and all(isinstance(column, list) for column in lists) and len({len(column) for column in lists}) == 1:
            return Grid(tuple(value), tuple(zip(*lists, strict=True)))  # {"region": [...], "gmv": [...]}
        return None
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(row, dict) for row in value):
        columns = tuple(value[0])
        if any(set(row) != set(columns) for row in value):
            return None
        return Grid(columns, tuple(tuple(row[name] for name in columns) for row in value))
    if all(isinstance(row, list) and row for row in value) and len({len(row) for row in value}) == 1:
        return _headed([tuple(row) for row in value])
    return None


def _headed(rows: list[tuple[Any, ...]]) -> Grid:
    """Rows whose first one may be a header: it is one where it is all text and a later row holds a number."""
    first, rest = rows[0], rows[1:]
    numeric = any(isinstance(cell, int | float) or quantities(str(cell)) for row in rest for cell in row)
    if rest and numeric and not any(not isinstance(cell, str) or _number_like(cell) for cell in first):
        return Grid(tuple(map(str, first)), tuple(rest))
    return Grid((), tuple(rows))


def _number_like(cell: str) -> bool:
    return bool(re.fullmatch(r"[-+$¥€£\d.,%\s]+", cell)) and any(c.isdigit() for c in cell)


def _pipe_tables(text: str) -> Iterator[Grid]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if number == 0 or "|" not in line or not RULE.match(line) or "|" not in lines[number - 1]:
            continue
        columns = _pipe_cells(lines[number - 1])
        rows = []
        for row in lines[number + 1 :]:
            if "|" not in row:
                break
            rows.append(_pipe_cells(row))
        if all(len(row) == len(columns) for row in rows):
            yield Grid(columns, tuple(rows))


def _pipe_cells(line: str) -> tuple[str, ...]:
    line = re.sub(r"^\s*\||(?<!\\)\|\s*$", "", line.strip())
    return tuple(cell.strip().strip("*` ").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line))


def _csv_tables(text: str) -> Iterator[Grid]:
    """Blocks of at least two neighbouring lines with the same number of cells, at least two."""
    for delimiter in (",", "\t", ";"):
        block: list[tuple[str, ...]] = []
        grids: list[Grid] = []
        for line in [*text.splitlines(), ""]:
            try:
                cells = next(csv.reader(io.StringIO(line), delimiter=delimiter, skipinitialspace=True), [])
            except csv.Error:
                cells = []
            row = tuple(cell.strip() for cell in cells)
            if len(row) >= 2 and (not block or len(row) == len(block[0])):
                block.append(row)
                continue
            if len(block) >= 2:
                grids.append(_headed(list(block)))
            block = [row] if len(row) >= 2 else []
        if grids:
            yield from grids
            return
