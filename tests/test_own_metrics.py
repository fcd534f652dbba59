"""Metric definitions as data, and tasks over a user's own tables: every problem names file, line and remedy."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import jsonl
from agentic.cli import main
from agentic.errors import UserError
from agentic.records import Task
from agentic.tasks.definitions import builtin_metrics, parse_definitions
from agentic.tasks.metrics import ExpressionError, parse
from agentic.tasks.own import own_world, read_folder

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "own_metrics"


def defined(text: str) -> str:
    """A YAML file with one metric of these lines."""
    return "metrics:\n  - " + "\n    ".join(text.strip().splitlines()) + "\n"


BROKEN = {
    "metrics: [": "m.yaml, line 1: not valid YAML",
    "metrics:\n  - name: a\n    name: b\n": "m.yaml, line 3: not valid YAML ('name' stands twice)",
    "": "holds no metrics; begin with 'metrics:'",
    "metric:\n  - name: a\n": "holds no metrics",
    "metrics: [gmv]": "entry 1: expected name, expression and so on, found 'gmv'",
    "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a]\nmetrics: [*b, *b]\n": "'x', ...], ...]",
    defined("expression: sum(t.a)"): "m.yaml, line 2, entry 1: 'name' must be letters",
    defined("name: a"): "m.yaml, line 2, metric 'a': 'expression' is missing",
    defined("name: a\nexpresion: sum(t.a)"): "metric 'a': unknown field 'expresion'; the fields are name, synonyms",
    defined(
        "name: a\nexpression: sum(t.a"
    ): "the expression 'sum(t.a' cannot be used: it is not an arithmetic expression",
    defined("name: a\nexpression: total(t.a)"): "unknown function total; use sum, mean",
    defined("name: a\nexpression: sum(t.a) ** 2"): "may not stand here; use + - * /",
    defined("name: a\nexpression: __import__('os')"): "unknown function __import__",
    defined("name: a\nexpression: 1 + 2"): "it aggregates no column",
    defined("name: a\nexpression: sum(a)"): "column 'a' of the expression needs its table",
    defined("name: a\nexpression: sum(t.a)\ndataset: u"): "table 't' of the expression is not in its 'dataset'",
    defined("name: a\nexpression: sum(t.a)\nadditivity: some"): "'additivity' must be one of additive",
    defined("name: a\nexpression: sum(t.a)\nfilters: ['status is paid']"): "the filter 'status is paid' cannot be used",
    defined("name: a\nexpression: sum(t.a)\nfilters: [\"u.s == 'x'\"]"): "is on table 'u', which the expression",
    defined("name: a\nexpression: sum(t.a)\nsynonyms: {fr: [b]}"): "'synonyms' must be a text, a list of texts",
    defined("name: a\nexpression: sum(t.a)\nversion: one"): "'version' must be a whole number",
    defined("name: a\nexpression: sum(t.a)") + "  - name: a\n    expression: sum(t.b)\n": (
        "m.yaml, line 4: metric 'a' is already defined in line 2; rename one"
    ),
    defined("name: a\nexpression: sum(t.a)") + "joins: [{table: t, with: u}]": "line 4: the join cannot be used; write",
    defined("name: a\nexpression: sum(t.a)") + "join: []": "unknown part 'join'",
}


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_definition_is_said_with_its_line(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_definitions(text, "m.yaml")
    assert str(caught.value).startswith("m.yaml") and BROKEN[text] in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        parse(text)
    except ExpressionError as error:
        assert str(error)


def test_the_built_in_stores_are_defined_in_the_same_form() -> None:
    shop = {metric.id: metric for metric in builtin_metrics()}
    assert shop["roas.net"].pandas({"orders": "o", "marketing": "k"}) == (
        "(o['gmv'].sum() - o['refund_amount'].sum()) / k['spend'].sum()"
    )
    assert shop["gmv.net"].computation == "net_revenue"
    assert (
        shop["paid_gmv"]
        .document("en")[1]
        .startswith("GMV of paid channels = sum(orders.gmv) where orders.channel != 'direct'.")
    )
    assert all(metric.time_field for metric in (*shop.values(), *builtin_metrics("metrics_unseen")))


TABLES = {
    "sales.csv": "day,shop,item,amount\n"
    + "".join(f"2024-0{1 + i % 3}-05,{'AB'[i % 2]},p{i % 4},{i}.5\n" for i in range(48)),
    "items.csv": "item,kind\np0,x\np1,y\np2,x\np3,y\n",
}


@pytest.fixture()
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, text in TABLES.items():
        (folder / name).write_text(text)
    return folder


def error_of(tmp_path: Path, tables: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    (tmp_path / "m.yaml").write_text(text)
    out = tmp_path / "out"
    command = ["build", f"--output_dir={out}", f"--metrics={tmp_path / 'm.yaml'}", f"--tables={tables}"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and not out.exists()
    return said


JOINED = "joins: [{table: sales, with: items, on: item}]\n"


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("name: a\nexpression: sum(sale.amount)", "metric 'a': no table 'sale' in"),
        ("name: a\nexpression: sum(sales.amout)", "no column 'amout' in table 'sales'; did you mean 'amount'"),
        ("name: a\nexpression: sum(sales.shop)", "sum needs numbers, and sales.shop holds none"),
        ("name: a\nexpression: sum(sales.amount)\nfilters: ['town == 1']", "names no column; there are: day"),
        ("name: a\nexpression: sum(sales.amount)\nfilters: ['shop == 1']", "compares a column of str with 1"),
        ("name: a\nexpression: sum(sales.amount)\ntime_field: month", "no column 'month' (time_field) in sales"),
    ],
)
def test_a_definition_that_does_not_fit_the_tables(
    tmp_path: Path, tables: Path, definition: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = error_of(tmp_path, tables, defined(definition), capsys)
    assert said in told and "m.yaml, line 2" in told


def test_a_join_that_multiplies_rows_is_refused(
    tmp_path: Path, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = defined("name: a\nexpression: sum(sales.amount)") + JOINED
    (tmp_path / "staging").mkdir()
    (tmp_path / "m.yaml").write_text(text)
    world = own_world(tmp_path / "m.yaml", tables, tmp_path / "staging")
    assert set(world.dimensions) == {"day_month", "shop", "item", "kind"} and world.dimensions["day_month"].is_time
    assert world.series(world.metrics[0], ("kind",), ()).sum() == sum(i + 0.5 for i in range(48))
    with (tables / "items.csv").open("a") as file:
        file.write("p3,z\n")
    told = error_of(tmp_path, tables, text, capsys)
    assert "would multiply rows: 'item' is not unique in 'items' (2 rows have 'p3')" in told and "line 4" in told


def test_tables_are_read_from_csv_sqlite_and_excel(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a;b\n1;2,5\n3;4,5\n")
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE 'Two Words' (x INTEGER, y TEXT)")
        database.executemany("INSERT INTO 'Two Words' VALUES (?, ?)", [(1, "a"), (2, "b")])
    database.close()
    (tmp_path / "notes.md").write_text("no table")
    frames = read_folder(tmp_path)
    assert {name: frame.to_dict("list") for name, frame in frames.items()} == {
        "one": {"a": [1, 3], "b": [2.5, 4.5]},
        "two_words": {"x": [1, 2], "y": ["a", "b"]},
    }
    pytest.importorskip("openpyxl")
    pd.DataFrame({"x": [1, 2]}).to_excel(tmp_path / "three.xlsx", index=False)
    assert read_folder(tmp_path)["three"].to_dict("list") == {"x": [1, 2]}


@pytest.mark.parametrize("make", [lambda folder: None, lambda folder: folder.mkdir()])
def test_no_tables(tmp_path: Path, make: object, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "empty"
    make(folder)  # type: ignore[operator]
    told = error_of(tmp_path, folder, defined("name: a\nexpression: sum(t.a)"), capsys)
    assert str(folder) in told and ("no such folder" in told or "no csv, xlsx or sqlite file" in told)


def test_metrics_and_tables_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", f"--output_dir={tmp_path / 'd'}", f"--tables={tmp_path}"]) == 2
    assert "--metrics and --tables go together" in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_is_built_and_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--train_size=24", "--dev_size=4", "--test_size=4", "--unseen_size=3", "--operations", "value", "share"]
    own = [f"--metrics={EXAMPLE / 'metrics.yaml'}", f"--tables={EXAMPLE / 'tables'}"]
    assert main(["build", f"--output_dir={tmp_path}", *sizes, *own]) == 0
    assert main(["validate", f"--data={tmp_path}"]) == 0
    assert capsys.readouterr().out.endswith("valid\n")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["own_tables"] and manifest["tables"].keys() == {"tables/products.csv", "tables/receipts.csv"}
    tasks = list(jsonl.read(tmp_path / "train.jsonl", Task))
    calls = [call.function for task in tasks for m in task.expert_trajectory for call in m.tool_calls or ()]
    code = "\n".join(json.loads(call.arguments)["code"] for call in calls if call.name == "python_executor")
    assert ".merge(products, on='product_id', how='left')" in code and "['status'] == 'paid'" in code
    frame = pd.read_csv(EXAMPLE / "tables" / "receipts.csv")
    paid = frame[frame["status"] == "paid"]
    values = [t for t in tasks if t.metadata["category"] == "value" and t.metadata["metric"] == "revenue"]
    assert values
    for task in values:  # recomputed from the user's file, apart from this project's code
        where = dict(c.split("=") for c in str(task.metadata["program"]).split("where=")[1].split(";")[0].split("&"))
        rows = paid.merge(pd.read_csv(EXAMPLE / "tables" / "products.csv"), on="product_id")
        rows = rows.assign(date_month=rows["date"].str[:7])
        for column, value in where.items():
            rows = rows[rows[column].astype(str) == value]
        assert task.checks[0].value == pytest.approx(rows["revenue"].sum(), abs=1e-3)
