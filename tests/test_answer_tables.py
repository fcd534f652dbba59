"""Tables as answers: read from JSON, markdown and csv; rows stay rows (case D07 and the re-paired columns)."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.records import Check
from agentic.reward.answer import compare
from agentic.reward.pairing import unpaired
from agentic.reward.tables import gold_problem

COLUMNS = ["region", "revenue"]
ROWS: list[list[Any]] = [["East", 12.5], ["West", 7], ["North", 9.25]]


def check(rows: list[list[Any]] = ROWS, ordered: bool | None = None, **changes: Any) -> Check:
    return Check(kind="table", value={"columns": COLUMNS, "rows": rows}, ordered=ordered, **changes)


def right(answer: str, given: Check | None = None) -> bool:
    return compare(answer, [given or check()], "Revenue by region?").correct


def as_records(columns: list[str], rows: list[list[Any]]) -> str:
    return json.dumps([dict(zip(columns, row, strict=True)) for row in rows], ensure_ascii=False)


def as_lists(columns: list[str], rows: list[list[Any]]) -> str:
    return json.dumps([columns, *rows], ensure_ascii=False)


def as_split(columns: list[str], rows: list[list[Any]]) -> str:
    return json.dumps({"columns": columns, "data": rows}, ensure_ascii=False)


def as_columns(columns: list[str], rows: list[list[Any]]) -> str:
    return json.dumps(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)), ensure_ascii=False)


def as_markdown(columns: list[str], rows: list[list[Any]]) -> str:
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [columns, ["---"] * len(columns), *rows])


def as_csv(columns: list[str], rows: list[list[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return file.getvalue()


FORMS = [as_records, as_lists, as_split, as_columns, as_markdown, as_csv]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_is_read(form: Any) -> None:
    text = form(COLUMNS, ROWS)
    assert right(text)
    assert right(f"Here is the table:\n\n{text}\n\nEast is highest.")
    assert right(f"```\n{text}\n```")
    assert right(form(COLUMNS[::-1], [row[::-1] for row in ROWS]))  # the header says which column is which
    assert right(form(["Region", "REVENUE"], ROWS[::-1]))  # multiset of rows
    assert not right(form(COLUMNS, ROWS[::-1]), check(ordered=True))
    assert right(form(COLUMNS, ROWS), check(ordered=True))
    assert not right(form(COLUMNS, ROWS[:2]))
    assert not right(form(COLUMNS, [*ROWS, ROWS[0]]))  # duplicates count
    assert not right(form(COLUMNS, [*ROWS, ["South", 1]]))
    repaired = [["East", 7], ["West", 12.5], ["North", 9.25]]
    assert not right(form(COLUMNS, repaired))
    assert not right(form(["region", "profit"], ROWS))
    assert not right(form([*COLUMNS, "share"], [[*row, 1] for row in ROWS]))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("| region | revenue |\n|:--|--:|\n| East | $12.50 |\n| **West** | 7.0 |\n| North | 9.25 |", True),
        ("region | revenue\n---|---\nEast | 12.5\nWest | 7\nNorth | 9.25", True),
        ('[["East", 12.5], ["West", 7], ["North", 9.25]]', True),
        ('[["East", "12.50"], ["West", "7"], ["North", "9.25"]]', True),
        ('"region","revenue"\n"East","12.5"\n"West","7"\n"North","9.25"', True),
        ("region\trevenue\nEast\t12.5\nWest\t7\nNorth\t9.25", True),
        ("East: 12.5, West: 7, North: 9.25", False),
        ("| region | revenue |\n|---|---|\n| East | 12.5 or 13 |\n| West | 7 |\n| North | 9.25 |", False),
        ("| region | revenue |\n|---|---|\n| East | 12.9 |\n| West | 7 |\n| North | 9.25 |", False),
        ("| region | revenue |\n|---|---|\n| East | 12.5 |\n| West | 7 |\n| North |", False),
        ("East is 12.5", False),
        ("", False),
        ("[]", False),
        ("[" * 5000, False),
    ],
)
def test_wordings(answer: str, expected: bool) -> None:
    assert right(answer) is expected


def test_two_tables_are_an_offer() -> None:
    wrong = as_markdown(COLUMNS, [["East", 1]])
    assert not right(f"{wrong}\n\nor\n\n{as_markdown(COLUMNS, ROWS)}")


def test_numbers_have_the_tolerance_of_the_check() -> None:
    counts = check([["East", 1000000], ["West", 7]])
    assert not right(as_csv(COLUMNS, [["East", 1000004], ["West", 7]]), counts)
    rounded = check([["East", 12.3456]], decimals=2)
    assert right(as_markdown(COLUMNS, [["East", 12.35]]), rounded)
    assert not right(as_markdown(COLUMNS, [["East", 12.36]]), rounded)
    percent = check([["East", 12.5]], unit="%")
    assert right(as_markdown(COLUMNS, [["East", "12.5%"]]), percent)
    assert not right(as_markdown(COLUMNS, [["East", "0.125"]]), percent)


def test_missing_cells() -> None:
    gold = check([["East", None], ["West", 7]])
    for cell in ("", "NaN", "None", "null"):
        assert right(as_markdown(COLUMNS, [["East", cell], ["West", 7]]), gold), cell
    assert right(as_records(COLUMNS, [["East", None], ["West", 7]]), gold)
    assert not right(as_markdown(COLUMNS, [["East", 0], ["West", 7]]), gold)


def test_the_reason_names_what_is_wrong() -> None:
    reasons = [
        compare(answer, [check(ordered=True)]).reason
        for answer in (
            "nothing",
            as_csv(["region", "profit"], ROWS),
            as_csv(COLUMNS, ROWS[:2]),
            as_csv(COLUMNS, [["East", 13], *ROWS[1:]]),
            as_csv(COLUMNS, ROWS[::-1]),
        )
    ]
    assert reasons == [
        "no table is stated",
        "column revenue is missing",
        "3 rows are right, 2 are stated",
        "row East, 13 is not in the right table",
        "the rows are right, their order is not",
    ]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [["East", 1]],
        {"columns": ["a"], "rows": []},
        {"columns": [], "rows": [[]]},
        {"columns": ["a", "A"], "rows": [[1, 2]]},
        {"columns": ["a"], "rows": [[1, 2]]},
        {"columns": ["a"], "rows": [[float("nan")]]},
        {"columns": ["a"], "rows": [[{}]]},
    ],
)
def test_golds_that_say_nothing(value: Any) -> None:
    assert gold_problem(value) is not None
    assert not compare("a\n1", [Check(kind="table", value=value)]).correct


CELLS = st.integers(-50, 50) | st.sampled_from([1.5, -2.25, 1000.125])
GRIDS = st.lists(
    st.tuples(st.sampled_from(["East", "West", "华东", "St. Mary's"]), CELLS).map(list), min_size=1, max_size=6
)


@settings(max_examples=60)
@given(GRIDS, GRIDS, st.sampled_from(FORMS), st.randoms())
def test_right_exactly_when_the_rows_are_the_same_multiset(
    gold: list[list[Any]], other: list[list[Any]], form: Any, random: Any
) -> None:
    shuffled = random.sample(gold, len(gold))
    assert right(form(COLUMNS, shuffled), check(gold))
    same = Counter(map(tuple, gold)) == Counter(map(tuple, other))
    assert right(form(COLUMNS, other), check(gold)) == same
    assert right(form(COLUMNS, shuffled), check(gold, ordered=True)) == (shuffled == gold)
    values = sorted((row[1] for row in gold), key=float)
    resorted = [[row[0], value] for row, value in zip(sorted(gold, key=lambda row: row[0]), values, strict=True)]
    paired = Counter(map(tuple, resorted)) == Counter(map(tuple, gold))
    assert right(form(COLUMNS, resorted), check(gold)) == paired  # columns are never sorted on their own


@settings(max_examples=60)
@given(st.lists(st.integers(0, 12), max_size=7), st.lists(st.integers(0, 12), max_size=7))
def test_pairing_under_a_tolerance_is_a_perfect_matching(items: list[int], gold: list[int]) -> None:
    """Against the sorted pairing, which is optimal for numbers on a line."""
    near = lambda a, b: abs(a - b) <= 2  # noqa: E731
    best = len(items) == len(gold) and all(near(a, b) for a, b in zip(sorted(items), sorted(gold), strict=True))
    assert (len(items) == len(gold) and unpaired(items, gold, near) is None) == best


def test_a_large_table_is_quick() -> None:
    rows: list[list[Any]] = [[f"r{i}", i] for i in range(3000)]
    assert right(as_csv(COLUMNS, rows[::-1]), check(rows))
