"""Real files, the public cases A01-A25 that are delimited text, and what must hold for any table written as csv."""

from __future__ import annotations

import csv
import gzip
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.errors import UserError
from agentic.tables.read import Table, read_table

ROOT = Path(__file__).resolve().parent.parent
CASES = Path(os.environ.get("AGENTIC_CASES", ROOT.parent / "shared" / "cases")) / "files"
BENCH = Path(os.environ.get("AGENTIC_BENCH", ROOT.parent / "shared" / "bench")) / "opsdata"


def case(name: str) -> Path:
    path = CASES / name
    if not path.exists():
        pytest.skip(f"case file {path} is absent (set AGENTIC_CASES)")
    return path


def bench(name: str) -> Path:
    path = BENCH / name
    if not path.exists():
        pytest.skip(f"benchmark file {path} is absent (set AGENTIC_BENCH)")
    return path


def write(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def said(table: Table, *words: str) -> bool:
    """Whether one note holds all the words."""
    return any(all(word in note for word in words) for note in table.notes)


# ------------------------------------------------------------------------------------------- public cases


def test_a01_byte_order_mark() -> None:
    table = read_table(case("A01_bom.csv"))
    assert list(table.frame) == ["order_id", "amount"]
    assert table.frame["amount"].sum() == 35.0
    assert table.notes == []


def test_a02_chinese_encodings() -> None:
    table = read_table(case("A02_gb18030.csv"))
    assert list(table.frame.iloc[:, 0]) == ["青石店", "柳河店", "𠮷田店"]
    assert table.frame.iloc[:, 1].sum() == 250
    assert said(table, "gb18030")
    trap = read_table(case("A02b_utf8_trap.csv"))
    assert list(trap.frame) == ["北京", "上海"]
    assert not said(trap, "encoding")


def test_a03_utf16_tab() -> None:
    table = read_table(case("A03_utf16_tab.csv"))
    assert table.frame["units"].sum() == 12
    assert "Süd" in set(table.frame["region"])
    assert said(table, "utf-16") and said(table, "separator tab")


def test_a04_semicolon_decimal_comma() -> None:
    table = read_table(case("A04_semicolon_decimal_comma.csv"))
    assert table.frame.shape == (2, 4)
    assert table.frame["Gewicht"].sum() == 2000.0
    assert table.frame["Tag"].tolist() == [pd.Timestamp("2024-03-02"), pd.Timestamp("2024-03-19")]
    assert (
        said(table, "semicolon") and said(table, "decimal comma", "Gewicht") and said(table, "Tag", "day first", "2024")
    )


def test_a05_money() -> None:
    table = read_table(case("A05_money.csv"))
    amount = table.frame.set_index("item")["amount"]
    assert amount.sum() == 2919.0 and amount.count() == 4
    assert amount[["A", "B", "C", "F"]].tolist() == [1234.5, -300.0, 2000.0, -15.5]
    assert said(table, "row 4", "1,50") and said(table, "missing", "- in 1 cell")


def test_a06_preamble_and_total() -> None:
    table = read_table(case("A06_preamble_total.csv"))
    assert list(table.frame) == ["store", "sales"] and table.frame["sales"].sum() == 60
    assert said(table, "above the header", "Store list") and said(table, "total row", "Total 60")
    assert said(table, "footnote", "preliminary")


def test_a07_quotes_and_ragged_rows() -> None:
    table = read_table(case("A07_quotes_ragged.csv"))
    assert table.frame["id"].tolist() == [1, 2, 3, 4, 5]
    assert table.frame["note"].tolist()[:3] == ["two\nlines, and a comma", '6" pipe', 'said "hi"']
    assert said(table, "1 row", "more cells", "row 4", "extra") and said(table, "1 row", "fewer cells", "row 5")


def test_a08_names() -> None:
    table = read_table(case("A08_dup_blank_names.csv"))
    assert list(table.frame) == ["id", "amount", "amount_2", "Amount_3", "column_5", "column_6"]
    assert table.frame.sum(numeric_only=True).tolist() == [3, 30, 300, 3000]
    assert said(table, "column 3 'amount' is 'amount_2'", "column 5 is 'column_5'")
    assert said(table, "3 columns are called 'amount'")


def test_a09_codes_that_look_missing() -> None:
    table = read_table(case("A09_literal_na.csv"))
    assert table.frame.loc[table.frame["code"] == "NA", "visits"].sum() == 30
    assert table.frame["country"][table.frame["code"].isna()].tolist() == ["Unknown"]
    assert said(table, "kept as text", "code", "NA")


def test_a10_identifiers() -> None:
    table = read_table(case("A10_ids.csv"))
    assert table.frame["sku"].tolist() == ["00060", "00061", "60", "00060"]
    assert table.frame["order_ref"].nunique() == 3 and "4400000000000000129" in set(table.frame["order_ref"])
    assert said(table, "identifiers", "sku", "zip", "order_ref")


def test_a11_whole_column_decides_day_first() -> None:
    table = read_table(case("A11_dayfirst.csv"))
    assert table.frame.groupby(table.frame["day"].dt.month)["orders"].sum().to_dict() == {9: 30, 10: 70}
    assert said(table, "day first")


def test_a17_odd_headers() -> None:
    table = read_table(case("A17_odd_headers.csv"))
    assert list(table.frame) == ["order", "2023", "2024", "客户 名称", "a-b", 'say "q"']
    assert table.frame["2023"].sum() == 30


def test_a21_small_files() -> None:
    with pytest.raises(UserError, match="empty"):
        read_table(case("A21a_zero.csv"))
    with pytest.raises(UserError, match="blank lines"):
        read_table(case("A21c_blank.csv"))
    header = read_table(case("A21b_header_only.csv"))
    assert header.frame.shape == (0, 3) and said(header, "no data rows")
    single = read_table(case("A21d_one_column.csv"))
    assert list(single.frame) == ["value"] and single.frame["value"].tolist() == [1, 2, 3]


def test_a22_wide() -> None:
    table = read_table(case("A22_wide_601.csv"))
    assert table.frame.shape[1] == 601 and table.frame["total_kwh"].sum() == 600


def test_a23_late_string() -> None:
    table = read_table(case("A23_late_string.csv"))
    assert round(table.frame["reading"].mean(), 4) == 4.5002 and table.frame["reading"].count() == 24_999
    assert said(table, "row 25000", "sensor off")


def test_a24_sentinels() -> None:
    table = read_table(case("A24_sentinels.csv"))
    assert table.frame["temp"].dropna().tolist() == [20, -999, 22]
    assert said(table, "infinite", "row 2 'inf'", "row 6 '1e400'") and said(table, "-999", "may stand for missing")


def test_a25_content_decides() -> None:
    with pytest.raises(UserError, match="xlsx"):
        read_table(case("A25_really_xlsx.csv"))
    with pytest.raises(UserError, match="HTML"):
        read_table(case("A25b_really_html.xls"))
    with pytest.raises(UserError, match="SQLite"):
        read_table(case("A20_odd.sqlite"))


# -------------------------------------------------------------------------------------------- real files


@pytest.mark.slow
def test_every_benchmark_file_reads() -> None:
    files = sorted(path for path in BENCH.rglob("*") if path.name.endswith((".csv", ".csv.gz")))
    if not files:
        pytest.skip(f"no benchmark files under {BENCH} (set AGENTIC_BENCH)")
    for path in files:
        table = read_table(path)
        assert len(table.frame) and table.frame.shape[1] > 1, path
        plain = pd.read_csv(path)
        if path.name != "sprint.csv":
            assert table.frame.shape == plain.shape, path
        for name in plain.select_dtypes("number").columns.intersection(table.frame.columns):
            np.testing.assert_allclose(table.frame[name].astype(float), plain[name].astype(float), rtol=1e-14)


def test_sprint_spaces_after_commas() -> None:
    table = read_table(bench("bokeh/sprint.csv"))
    assert list(table.frame) == ["Name", "Country", "Medal", "Time", "Year"]
    assert (table.frame["Country"] == "JAM").any() and table.frame["Time"].dtype == np.float64
    assert said(table, "spaces after separators")


def test_penguins_na_is_missing_in_text_too() -> None:
    table = read_table(bench("penguins/penguins.csv"))
    assert table.frame["sex"].isna().sum() == 11 and set(table.frame["sex"].dropna()) == {"male", "female"}
    assert said(table, "read as missing", "sex (NA in 11 cells)")


# ----------------------------------------------------------------------------------------------- columns


def test_missing_word_needs_evidence(tmp_path: Path) -> None:
    evidence = read_table(write(tmp_path, "n,word,code\n1,NA,NA\nNA,x y,NO\n3,abc,DE\n"))
    assert evidence.frame["word"].isna().tolist() == [True, False, False]
    assert evidence.frame["code"].tolist() == ["NA", "NO", "DE"], "a code among codes of its shape stays"
    none = read_table(write(tmp_path, "n,word\n1,NA\n2,x y\n"))
    assert none.frame["word"].tolist() == ["NA", "x y"] and said(none, "kept as text", "word")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2", "3"], np.int64),
        (["1", "", "3"], np.float64),
        (["1.5", "-2e3", ".5"], np.float64),
        (["true", "False", "TRUE"], np.bool_),
        (["12", "12B", "13"], "str"),
        (["1-2", "3-4", "5-6"], "str"),
        (["$1", "€2", "$3"], "str"),
        (["10%", "20", "30%"], "str"),
        (["1_000", "2", "3"], "str"),
        (["2024-01", "2024-02", "2024-03"], "str"),
        (["2024-01-31", "2024-02-01", "2024-02-30"], "str"),
        (["01/02/2024", "03/04/2024", "05/06/2024"], "str"),
        (["1.2.10", "1.3.11", "2.0.12"], "str"),
        (["10:30", "11:45", "23:00"], "str"),
        (["+4930123456", "+4930123457", "+4930123458"], "str"),
        (["", "", ""], np.float64),
    ],
)
def test_column_type(tmp_path: Path, cells: list[str], expected: object) -> None:
    text = "k,v\n" + "".join(f"r{i},{cell}\n" for i, cell in enumerate(cells))
    assert read_table(write(tmp_path, text)).frame["v"].dtype == expected


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        (["2024-01-31", "2024-02-01"], "2024-01-31"),
        (["2024/1/3", "2024/12/1"], "2024-01-03"),
        (["12/31/2024", "1/2/2025"], "2024-12-31"),
        (["31.12.2024", "01.02.2025"], "2024-12-31"),
        (["Jan 1 2000", "May 3 2001"], "2000-01-01"),
        (["5-Mar-24", "6-Apr-24"], "2024-03-05"),
        (["2024年3月1日", "2024年12月31日"], "2024-03-01"),
        (["2024-01-31 10:00:05", "2024-02-01 00:00:00"], "2024-01-31 10:00:05"),
        (["2024-01-31T10:00:05Z", "2024-02-01T00:00:00Z"], "2024-01-31 10:00:05"),
        (["1/31/2024 1:05 PM", "2/1/2024 11:00 AM"], "2024-01-31 13:05"),
    ],
)
def test_dates(tmp_path: Path, cells: list[str], first: str) -> None:
    column = read_table(write(tmp_path, "k,v\n" + "".join(f"a,{cell}\n" for cell in cells))).frame["v"]
    assert column.dtype == "datetime64[us]" and column[0] == pd.Timestamp(first)


def test_ambiguous_dates_follow_the_files_other_dates(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a,b\n1/2/2024,3/31/2024\n3/4/2024,4/1/2024\n"))
    assert table.frame["a"].dt.month.tolist() == [1, 3] and said(table, "a (month first by the file's other dates")


@pytest.mark.parametrize(
    ("separator", "cells", "expected"),
    [
        (";", ["1.234,5", "2,25"], [1234.5, 2.25]),
        (",", ['"1.234,5"', '"2,25"'], [1234.5, 2.25]),
        (",", ["12.5%", "3%"], [12.5, 3.0]),
        (",", ["($5)", "$-2.50"], [-5.0, -2.5]),
        (",", ["１２", "３．５"], [12.0, 3.5]),
        (",", ["1’234.5", "99"], [1234.5, 99.0]),
    ],
)
def test_number_marks(tmp_path: Path, separator: str, cells: list[str], expected: list[float]) -> None:
    text = f"k{separator}v\n" + "".join(f"a{separator}{cell}\n" for cell in cells)
    table = read_table(write(tmp_path, text))
    assert table.frame["v"].tolist() == expected and said(table, "v")


def test_dot_groups_in_a_decimal_comma_file(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, "k;n;x\na;1.234;0,5\nb;12.000;1,25\n")).frame
    assert frame["n"].tolist() == [1234, 12000] and frame["x"].tolist() == [0.5, 1.25]


def test_words_in_numbers(tmp_path: Path) -> None:
    rows = "".join(f"a,{i}\n" for i in range(40))
    few = read_table(write(tmp_path, "k,v\n" + rows + "a,broken\n"))
    assert few.frame["v"].count() == 40 and said(few, "row 41 'broken'")
    many = read_table(write(tmp_path, "k,v\n" + rows + "a,XL\n" * 10))
    assert many.frame["v"].dtype == "str" and said(many, "kept as text", "10 of 50 cells")


# ------------------------------------------------------------------------------------------ rows and names


@pytest.mark.parametrize(
    ("text", "names", "rows"),
    [
        ("a,b\n1,2,\n3,4,\n", ["a", "b"], 2),
        ('"x","y"\n"r1",1,2\n"r2",3,4\n', ["column_1", "x", "y"], 2),
        ("5,116,74\n1,85,66\n8,183,64\n", ["column_1", "column_2", "column_3"], 3),
        ("k,2019,2020\na,1,2\nb,3,4\n", ["k", "2019", "2020"], 2),
        ("2019,2020\n1,2\n3,4\n", ["2019", "2020"], 2),
        ("sep=;\na;b\n1;2\n", ["a", "b"], 1),
        ("a|b\n1|2\n", ["a", "b"], 1),
        ("text\nhello, you\nfoo\nbar, baz\n", ["text"], 3),
        ("Title,,\n,,\nname,x,y\na,1,2\n,,\nb,3,4\n", ["name", "x", "y"], 2),
        ("a,b\r1,2\r3,4\r", ["a", "b"], 2),
        ("sex,n\nmale,1\nTotal,3\nfemale,2\nTotal,3\n", ["sex", "n"], 4),
        ("店,额\nA,1\nB,2\n合计,3\n", ["店", "额"], 2),
        ("a,b\n1,x\n2,y\n\nSource: office, 2024\n", ["a", "b"], 2),
        ("'a' name,\"two\nlines\"\n1,2\n", ["'a' name", "two lines"], 1),
    ],
)
def test_shapes(tmp_path: Path, text: str, names: list[str], rows: int) -> None:
    frame = read_table(write(tmp_path, text)).frame
    assert list(frame) == names and len(frame) == rows


def test_unbalanced_quotes_lose_no_rows(tmp_path: Path) -> None:
    stray = read_table(write(tmp_path, 'a,b\n1,"x\n2,y\n3,z\n4,w\n'))
    assert stray.frame["a"].tolist() == [1, 2, 3, 4] and said(stray, "quote")
    cut = read_table(write(tmp_path, 'a,b\n1,"x, y"\n2,"cut of'))
    assert cut.frame["b"].tolist() == ["x, y", "cut of"] and said(cut, "cut off")


def test_western_text_is_not_read_as_chinese(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "name,n\nSüd,1\nMünchen,2\nCafé,3\n".encode("cp1252")))
    assert table.frame["name"].tolist() == ["Süd", "München", "Café"] and said(table, "windows-1252")


# ----------------------------------------------------------------------------------------- files, refusals


def test_gzip_by_content(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, gzip.compress(b"a,b\n1,2\n"), "plain_name.csv"))
    assert table.frame["b"].tolist() == [2] and said(table, "gzip")
    with pytest.raises(UserError, match="damaged"):
        read_table(write(tmp_path, gzip.compress(b"a,b\n1,2\n" * 100)[:-12]))
    with pytest.raises(UserError, match="larger than"):
        read_table(write(tmp_path, gzip.compress(b"0" * 5000)), max_bytes=1000)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PAR1\x15\x04", "Parquet"),
        (b"%PDF-1.7\n", "PDF"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON"),
        (b'[\n {"a": 1}\n]', "JSON"),
        (b"<?xml version='1.0'?><a/>", "XML"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", "xls"),
        (bytes(range(256)) * 8, "binary"),
        (b"PK\x03\x04broken", "zip"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, content: bytes, kind: str) -> None:
    with pytest.raises(UserError, match=kind) as caught:
        read_table(write(tmp_path, content))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(UserError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(UserError, match="larger than"):
        read_table(write(tmp_path, "a,b\n" + "1,2\n" * 100), max_bytes=64)
    with pytest.raises(UserError, match="no column names"):
        read_table(write(tmp_path, ",,\n,,\n"))


def test_permission(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n1,2\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="permission denied"):
            read_table(path)
    finally:
        os.seteuid(user)


def test_imports_stay_light() -> None:
    code = "import sys, agentic.tables.read; print([m for m in ('torch', 'pydantic', 'tyro', 'openpyxl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("texts", [["a;b", "c;d"], ["a|b"], ["x", "1;2", "3;4"], ["a;b;c", "d;e;f", "g"]])
def test_a_separator_inside_the_texts_of_one_column_is_text(tmp_path: Path, texts: list[str]) -> None:
    table = read_table(write(tmp_path, "\n".join(["note", *texts])))
    assert table.frame["note"].tolist() == texts and list(table.frame) == ["note"]


@pytest.mark.parametrize("gap", ["", "\n"])
def test_a_title_without_separator_stands_above_a_table(tmp_path: Path, gap: str) -> None:
    table = read_table(write(tmp_path, f"Report 2024\n{gap}city;sales\nYork;1,5\nBath;2,5\n"))
    assert list(table.frame) == ["city", "sales"] and table.frame["sales"].sum() == 4.0
    assert said(table, "above the header", "Report 2024")


@pytest.mark.slow
def test_hundred_thousand_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{i}": rng.normal(size=100_000).round(4) for i in range(4)})
    frame["word"] = rng.choice(["east", "west"], len(frame))
    frame["when"] = pd.date_range("2024-01-01", periods=len(frame), freq="min")
    path = tmp_path / "big.csv"
    frame.to_csv(path, index=False)
    start = time.process_time()
    table = read_table(path)
    assert time.process_time() - start < 3.0, "anchor: 0.4 s on an idle core"
    pd.testing.assert_frame_equal(table.frame, frame, check_dtype=False)


# -------------------------------------------------------------------------------------------- properties

_WORD = st.text(st.sampled_from("abcdeXYZ ,;'\"|äß中文\n()-!"), min_size=1, max_size=12).map(str.strip)
_TEXT = _WORD.filter(lambda text: sum(letter in "abcdeXYZ" for letter in text) >= 2).map(lambda text: "q" + text)
_FLOAT = st.floats(allow_nan=False, allow_infinity=False)
_COLUMN = st.sampled_from(["text", "int", "float"])


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(_COLUMN, min_size=1, max_size=5), st.integers(1, 12))
def test_written_tables_come_back(data: st.DataObject, kinds: list[str], rows: int) -> None:
    """What the csv module writes is read back: shape, names, text exactly, numbers bit for bit."""
    strategies = {"text": _TEXT, "int": st.integers(-(10**15) + 1, 10**15 - 1), "float": _FLOAT}
    columns = [data.draw(st.lists(strategies[kind], min_size=rows, max_size=rows)) for kind in kinds]
    names = [f"name_{i}" for i in range(len(kinds))]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"])))
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), buffer.getvalue())
        table, again = read_table(path), read_table(path)
    assert list(table.frame) == names and len(table.frame) == rows
    for name, column in zip(names, columns, strict=True):
        assert table.frame[name].tolist() == column
    pd.testing.assert_frame_equal(table.frame, again.frame)
    assert table.notes == again.notes


@settings(max_examples=120, deadline=None)
@given(st.one_of(st.text(st.sampled_from('ab1.,;|\t\n" -/:%$('), max_size=80).map(str.encode), st.binary(max_size=60)))
def test_any_bytes_give_a_table_or_one_sentence(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), content)
        try:
            table = read_table(path)
        except UserError as error:
            assert "\n" not in str(error).replace(str(path), "")
        else:
            names = [name.lower() for name in table.frame]
            assert len(set(names)) == len(names) > 0
