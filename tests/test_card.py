"""The card: what a model is told about files, within a budget."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.cli import main
from agentic.errors import UserError
from agentic.tables.card import card, column_line, load_tables, table_card, table_refs


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([3, 1, 2], "x (number): 1 to 3"),
        ([1.5, None, 2.25], "x (number): 1.5 to 2.25; 1 missing"),
        ([12_345_678.9, 1], "x (number): 1 to 12345679"),
        ([True, False], "x (bool): True, False"),
        (["b", "a", "b"], "x (text): b, a"),
        (["b", "a", None], "x (text): a, b; 1 missing"),
        ([None, None], "x (empty)"),
        (["line\nbreak", "a" * 40], f"x (text): {'a' * 27}…, line break"),
        ([f"v{i:02d}" for i in range(20)], "x (text): v00, v01, v02, v03, 16 more"),
        ([f"v{i:02d}" for i in range(50)], "x (text): v00, v01, 48 more"),
        (pd.to_datetime(["2024-03-01", "2023-01-31"]), "x (date): 2023-01-31 to 2024-03-01"),
    ],
)
def test_one_line_says_kind_and_range(values: list[object], line: str) -> None:
    assert column_line("x", pd.Series(values)) == line


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a b", "a b"), ("a\nb", "'a\\nb'"), (" a", "' a'"), ("a ", "'a '"), ("a\\b", r"'a\\b'"), ("订单", "订单")],
)
def test_a_name_is_shown_as_code_must_spell_it(name: str, shown: str) -> None:
    assert column_line(name, pd.Series([1])).startswith(f"{shown} (number)")


def test_ties_do_not_depend_on_the_row_order() -> None:
    assert column_line("x", pd.Series(["b", "a", "c"])) == column_line("x", pd.Series(["c", "b", "a"]))


def test_shared_columns_are_said_once() -> None:
    shared = pd.DataFrame({"month": ["a", "b"], "n": [1, 2]})
    text = card({"first": shared, "second": shared.assign(n=[5, 6])}, {"second": "of a file"})
    assert text == (
        "Table first: 2 rows\nmonth (text): a, b\nn (number): 1 to 2\n"
        "Table second: 2 rows, of a file\nmonth: as in first\nn (number): 5 to 6"
    )


def test_a_file_name_cannot_add_lines() -> None:
    text = table_card("df", pd.DataFrame({"a": [1]}), "x\nTable gold: 1 rows\u2028y.csv")
    assert len(text.splitlines()) == 2


def test_a22_wide_table_keeps_to_the_budget_and_says_what_it_cut(
    cases_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cases_dir / "files" / "A22_wide_601.csv"
    frame = load_tables(table_refs([file]), Path())["df"].frame
    for budget in (300, 1600, 5000):
        text = card({"df": frame}, {}, budget)
        lines = text.splitlines()
        assert len(text) <= budget
        assert lines[-1] == f"... {len(frame.columns) - (len(lines) - 2)} more columns; see df.columns"
    assert main(["card", str(file)]) == 0
    assert len(capsys.readouterr().out.split("\nnote ")[0]) <= 300 * 3.5


def test_two_wide_tables_of_the_same_columns_share_the_budget(cases_dir: Path) -> None:
    file = cases_dir / "files" / "A22_wide_601.csv"
    frame = load_tables(table_refs([file]), Path())["df"].frame
    text = card({"a": frame, "b": frame}, {}, 1600)
    assert len(text) <= 1600 and text.count("more columns; see ") == 2


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
columns = st.dictionaries(names, st.lists(st.one_of(st.none(), st.text(max_size=40)), min_size=3, max_size=3))


@given(columns, columns, st.integers(250, 2000))
def test_no_card_is_longer_than_its_budget(one: dict[str, object], two: dict[str, object], budget: int) -> None:
    tables = {"one": pd.DataFrame(one, dtype=object), "two": pd.DataFrame(two, dtype=object)}
    assert len(card(tables, {"one": "first.csv", "two": "second.csv"}, budget)) <= budget


# ------------------------------------------------------------------------------------------ files and names


def test_one_file_is_df_and_several_get_names_that_code_can_use() -> None:
    assert [ref.name for ref in table_refs([Path("x y.csv")])] == ["df"]
    files = [
        "销售 2024's Q1.csv",
        "a-b.csv",
        "A b.csv",
        "class.csv",
        "print.csv",
        "2024.csv",
        "x².csv",
        ".csv",
        "pd.csv",
    ]
    refs = table_refs([Path("目录 (final)") / name for name in files])
    wanted = ["销售_2024_s_q1", "a_b", "a_b_2", "t_class", "t_print", "t_2024", "x2", "table", "t_pd"]
    assert [ref.name for ref in refs] == wanted
    assert [ref.description for ref in refs] == files


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40), min_size=2))
def test_names_are_distinct_identifiers(stems: list[str]) -> None:
    refs = table_refs([Path("folder") / f"{stem}.csv" for stem in stems])
    names = [ref.name for ref in refs]
    assert len(set(names)) == len(names)
    scope: dict[str, object] = {}
    exec("\n".join(f"{name} = 1" for name in names), scope)
    assert set(names) <= scope.keys()


def test_a_name_that_is_no_unicode_is_said(tmp_path: Path) -> None:
    file = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")
    with pytest.raises(UserError, match="not valid Unicode; rename it"):
        table_refs([Path(file)])


def test_tables_are_read_again_only_when_they_change(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    refs = table_refs([file])
    first = load_tables(refs, Path())["df"]
    assert load_tables(refs, Path())["df"] is first
    file.write_text("a\n1\n2\n")
    assert len(load_tables(refs, Path())["df"].frame) == 2


def test_a_file_cannot_act_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("x\x1b[31m,y\n1,\x1b]0;t\x07\n2,b\n")
    assert main(["card", str(tmp_path / "a.csv")]) == 0
    said = capsys.readouterr().out
    assert "[31m" in said and not {"\x1b", "\x07"} & set(said)


@pytest.mark.parametrize("name", ["absent.csv", "x" * 300 + ".csv", ".", "loop.csv"])
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    assert main(["card", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
