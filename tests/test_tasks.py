"""Built data: disjoint splits, gold that plain Python confirms, executed experts; and a validator that finds what is wrong."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import jsonl
from agentic.cli import main
from agentic.data_analysis_env import prompt_messages
from agentic.records import Check, Task
from agentic.reward.answer import compare
from agentic.tasks.build import ops_questions
from agentic.tasks.expert import Script, Step, execute_scripts, misspell, python_step, with_mistake
from agentic.tasks.ops import realise
from agentic.tasks.programs import Program
from agentic.tasks.store import shop_world
from agentic.tasks.validate import check_problem, wrong_answers
from agentic.tasks.world import World
from agentic.tools.retriever import Retriever

pytest_plugins = ("built", "shared_zygote")
pytestmark = pytest.mark.usefixtures("shared_zygote")

Rows = list[dict[str, str]]
SIZES = {"train": 12, "dev": 4, "test": 8, "test_unseen": 8, "general": 16}


def tasks_of(file: Path) -> list[Task]:
    return list(jsonl.read(file, Task))


@pytest.fixture(scope="module")
def shop(built: Path) -> World:
    return shop_world(built / "tables", built)


# ------------------------------------------------------------------------------------------ the data set


def test_splits_have_their_sizes_and_share_no_program(built: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    programs: set[str] = set()
    for name, size in SIZES.items():
        tasks = tasks_of(built / f"{name}.jsonl")
        assert len(tasks) == manifest["splits"][name]["tasks"] == size
        found = {task.metadata["program"] for task in tasks}
        assert len(found) == size and not found & programs
        programs |= found
    assert manifest["dropped"] == {}
    assert {file.name for file in (built / "tables").iterdir()} == {"orders.csv", "marketing.csv", "users.csv"}


def test_one_seed_one_set_of_bytes(built: Path, build: Callable[[Path], Path], tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    files = sorted(file.relative_to(built) for file in built.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(again) for file in again.rglob("*") if file.is_file())
    assert all((built / file).read_bytes() == (again / file).read_bytes() for file in files)


def test_another_seed_asks_other_questions(shop: World) -> None:
    first, second = ([q.question for q, _ in ops_questions(shop, 20, seed, "both")] for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize("language", ["en", "zh"])
def test_one_language_alone(shop: World, language: str) -> None:
    for question, spoken in ops_questions(shop, 20, 0, language):
        assert spoken == language
        assert bool(re.search(r"[\u4e00-\u9fff]", question.question)) == (language == "zh")


def test_every_gold_passes_its_check_and_its_neighbours_fail(built: Path) -> None:
    for name in SIZES:
        for task in tasks_of(built / f"{name}.jsonl"):
            assert compare(task.answer, task.checks, task.question).correct
            for check in task.checks:
                assert check_problem(check) is None
                assert not any(compare(wrong, [check], task.question).correct for wrong in wrong_answers(check))


@pytest.mark.parametrize("size", [["--train_size=-1"], ["--general_size=-1"], ["--workers=0"]])
def test_sizes_that_cannot_be_built(tmp_path: Path, size: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", f"--output_dir={tmp_path / 'd'}", *size]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["build", f"--output_dir={tmp_path / 'file'}"]) == 2
    assert "cannot write there" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ gold, computed again


def total(rows: Rows, column: str) -> float:
    return sum(float(row[column]) for row in rows)


# metric -> its value over the rows of (orders, marketing, users), written down apart from agentic/tasks/metrics.py
PLAIN: dict[str, Callable[[Rows, Rows, Rows], float]] = {
    "gmv": lambda o, k, u: total(o, "gmv"),
    "refund_amount": lambda o, k, u: total(o, "refund_amount"),
    "net_revenue": lambda o, k, u: total(o, "gmv") - total(o, "refund_amount"),
    "refund_rate.amount": lambda o, k, u: 100 * total(o, "refund_amount") / total(o, "gmv"),
    "refund_rate.orders": lambda o, k, u: 100 * total(o, "refund_orders") / total(o, "orders_count"),
    "orders": lambda o, k, u: total(o, "orders_count"),
    "aov.gross": lambda o, k, u: total(o, "gmv") / total(o, "orders_count"),
    "aov.net": lambda o, k, u: (total(o, "gmv") - total(o, "refund_amount")) / total(o, "orders_count"),
    "spend": lambda o, k, u: total(k, "spend"),
    "impressions": lambda o, k, u: total(k, "impressions"),
    "clicks": lambda o, k, u: total(k, "clicks"),
    "ctr": lambda o, k, u: 100 * total(k, "clicks") / total(k, "impressions"),
    "cpc": lambda o, k, u: total(k, "spend") / total(k, "clicks"),
    "cpm": lambda o, k, u: 1000 * total(k, "spend") / total(k, "impressions"),
    "roas.gross": lambda o, k, u: total(o, "gmv") / total(k, "spend"),
    "roas.net": lambda o, k, u: (total(o, "gmv") - total(o, "refund_amount")) / total(k, "spend"),
    "new_users": lambda o, k, u: total(u, "new_users"),
    "active_users": lambda o, k, u: total(u, "active_users"),
    "new_user_share": lambda o, k, u: 100 * total(u, "new_users") / total(u, "active_users"),
    "cac": lambda o, k, u: total(k, "spend") / total(u, "new_users"),
    "gmv_per_user": lambda o, k, u: total(o, "gmv") / total(u, "active_users"),
    "orders_per_user": lambda o, k, u: total(o, "orders_count") / total(u, "active_users"),
    "gmv.net": lambda o, k, u: total(o, "gmv") - total(o, "refund_amount"),
    "new_users.accounts": lambda o, k, u: total(u, "new_accounts"),
    "cac.accounts": lambda o, k, u: total(k, "spend") / total(u, "new_accounts"),
    "new_user_share.accounts": lambda o, k, u: 100 * total(u, "new_accounts") / total(u, "active_users"),
    "gmv_per_user.net": lambda o, k, u: (total(o, "gmv") - total(o, "refund_amount")) / total(u, "active_users"),
    "marketing_roi.gross": lambda o, k, u: 100 * (total(o, "gmv") - total(k, "spend")) / total(k, "spend"),
    "marketing_roi.net": lambda o, k, u: (
        100 * (total(o, "gmv") - total(o, "refund_amount") - total(k, "spend")) / total(k, "spend")
    ),
    "average_refund": lambda o, k, u: total(o, "refund_amount") / total(o, "refund_orders"),
    "conversion.orders": lambda o, k, u: 100 * total(o, "orders_count") / total(k, "clicks"),
    "conversion.users": lambda o, k, u: 100 * total(u, "new_users") / total(k, "clicks"),
}


def test_gold_is_what_plain_python_computes_from_the_csv_rows(built: Path, shop: World) -> None:
    files: dict[str, Rows] = {}
    for name in ("orders", "marketing", "users"):
        with (built / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            files[name] = list(csv.DictReader(file))
    compared = {
        "value": 0,
        "change": 0,
        "difference": 0,
        "change_percent": 0,
        "ratio": 0,
        "share": 0,
        "contribution": 0,
    }
    for question, _ in ops_questions(shop, 260, 3, "both"):
        program, asked = question.program, question.arguments
        if program.operation not in compared or program.metric.conditions:
            continue

        def value(conditions: dict[str, Any], metric: str = program.metric.id) -> float:
            kept = (
                [row for row in files[name] if all(row.get(c) == v for c, v in conditions.items())]
                for name in ("orders", "marketing", "users")
            )
            return PLAIN[metric](*kept)

        filters = dict(program.filters)
        if program.operation == "value":
            gold = value(filters)
        elif program.operation == "share":
            gold = value({**filters, program.dimension: asked[0]}) / value(filters) * 100
        elif program.operation == "contribution":
            level, *periods = asked
            part = [value({**filters, program.along: period, program.dimension: level}) for period in periods]
            whole = [value({**filters, program.along: period}) for period in periods]
            gold = (part[1] - part[0]) / (whole[1] - whole[0]) * 100
        else:
            first, second = (value({**filters, program.dimension: one}) for one in asked)
            percent = (second / first - 1) * 100
            gold = {
                "change": second - first,
                "difference": first - second,
                "change_percent": percent,
                "ratio": first / second,
            }[program.operation]
        assert question.check.value == pytest.approx(gold, abs=6e-5, rel=1e-9), program.canonical
        compared[program.operation] += 1
    assert min(compared.values()) >= 3, compared


def test_every_metric_is_checked_above(shop: World) -> None:
    assert {metric.id for metric in shop.metrics if not metric.conditions} == PLAIN.keys()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("refund_rate.amount", "refund_rate.orders"),
        ("aov.gross", "aov.net"),
        ("roas.gross", "roas.net"),
        ("gmv", "gmv.net"),
        ("new_users", "new_users.accounts"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_document_decides_between_rival_definitions(shop: World, one: str, other: str, language: str) -> None:
    """One sentence, two golds: without the retriever nobody can know which."""
    asked = [
        realise(Program(shop.by_id[id], "value", None, (("quarter", "2024Q1"),)), shop, random.Random(5), language)
        for id in (one, other)
    ]
    assert asked[0].question == asked[1].question
    assert asked[0].check.value != pytest.approx(asked[1].check.value, rel=0.02)
    for question, id, rival in zip(asked, (one, other), (other, one), strict=True):
        assert {id} <= {document.id for document in question.documents}
        assert rival not in {document.id for document in question.documents}
        assert not compare(question.answer, [asked[id == one].check], question.question).correct
        assert Retriever(question.documents).search(question.queries[0][0], 1)[0].id == id


# ------------------------------------------------------------------------------------------ experts


def test_expert_trajectories_end_with_the_answer_and_call_what_is_expected(built: Path) -> None:
    for name in SIZES:
        for task in tasks_of(built / f"{name}.jsonl"):
            messages = task.expert_trajectory
            assert messages[-1].role == "assistant" and messages[-1].content == task.answer
            used = {call.function.name for message in messages for call in message.tool_calls or ()}
            assert used == set(task.expected_tools)
            assert all(message.content for message in messages if message.role == "tool")
            assert [m.role for m in messages[:-1]] == ["assistant", "tool"] * (len(messages) // 2)


@pytest.fixture()
def simple(tmp_path: Path) -> Callable[..., Script]:
    (tmp_path / "df.csv").write_text("Net Sales,b\n1,2\n5,4\n")

    def script(task_id: str, *steps: Step, value: int = 6) -> Script:
        given = {
            "id": task_id,
            "question": "What is the total of Net Sales?",
            "tables": [{"name": "df", "path": "df.csv"}],
            "checks": [{"kind": "number", "value": value}],
            "expected_tools": ["python_executor"],
            "metadata": {"program": task_id},
        }
        return Script(Task.model_validate(given), tmp_path, list(steps))

    return script


def test_a_mistake_stays_in_the_context_and_only_its_repair_is_trained(
    simple: Callable[..., Script], tmp_path: Path
) -> None:
    code = "print(df['Net Sales'].sum())"
    wrong = with_mistake(code, ("Net Sales",), ["Net Sales", "b"], random.Random(1))
    assert wrong is not None and wrong != code
    steps = (python_step(wrong, mistake=True), python_step(code), Step(lambda observation: f"It is {observation}."))
    (task,), dropped = execute_scripts([simple("t", *steps)])
    assert dropped == {} and task.answer == "It is 6."
    assert [m.weight for m in task.expert_trajectory if m.role == "assistant"] == [0, None, None]
    assert "KeyError" in task.expert_trajectory[1].content
    assert "Hint: the column is 'Net Sales'" in task.expert_trajectory[1].content
    jsonl.write(tmp_path / "tasks.jsonl", [task])
    assert main(["dataset", f"--input={tmp_path / 'tasks.jsonl'}", f"--output={tmp_path / 'sft.jsonl'}"]) == 0
    (row,) = (row for _, row in jsonl.iter_rows(tmp_path / "sft.jsonl"))
    prompt = [message.content for message in prompt_messages(task, tmp_path)]
    assert [message["content"] for message in row["messages"][:2]] == prompt
    turns = [message for message in row["messages"] if message["role"] == "assistant"]
    assert [turn.get("weight") for turn in turns] == [0, None, None]
    assert json.loads(turns[1]["tool_calls"][0]["function"]["arguments"]) == {"code": code}


def test_a_dataset_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tasks.jsonl"
    jsonl.write(file, [])
    for place, said in (
        (tmp_path, "is a folder"),
        (file / "x.jsonl", "cannot write there"),
        (Path("/proc/x"), "/proc/x"),
    ):
        assert main(["dataset", f"--input={file}", f"--output={place}"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {place}: ") and said in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_script_that_does_not_prove_itself_never_becomes_data(simple: Callable[..., Script]) -> None:
    right = python_step("print(df['Net Sales'].sum())")
    scripts = [
        simple("wrong", right, Step("It is 7.")),
        simple("good", right, Step("It is 6.")),
        simple("error", python_step("print(df['absent'])"), Step("It is 6.")),
        simple("no mistake", python_step("print(1)", mistake=True), right, Step("It is 6.")),
        simple("endless", right),
        simple("early", Step("It is 6."), right),
        simple("second", right, Step("It is 6.")),
    ]
    seen: list[tuple[int, int]] = []
    tasks, dropped = execute_scripts(scripts, progress=lambda done, all_: seen.append((done, all_)))
    assert [task.id for task in tasks] == ["good", "second"]
    assert {name: reason.split(":")[0].split(" after")[0] for name, reason in dropped.items()} == {
        "wrong": "the answer 'It is 7.' fails the task's own checks",
        "error": "a step failed",
        "no mistake": "a scripted mistake did not fail",
        "endless": "ended as void",
        "early": "ended as answered",
    }
    assert seen == [(done, 7) for done in range(1, 8)]


@given(st.text(min_size=1), st.integers())
def test_misspelling_changes_the_name(name: str, seed: int) -> None:
    assert misspell(name, random.Random(seed)) not in ("", name)


@given(st.lists(st.text("abAB_ ", min_size=1), min_size=1, unique=True), st.integers())
def test_a_mistake_is_never_another_column(columns: list[str], seed: int) -> None:
    code = f"print(df[{columns[0]!r}].sum())"
    wrong = with_mistake(code, (columns[0],), columns, random.Random(seed))
    assert wrong is None or wrong not in {f"print(df[{column!r}].sum())" for column in columns}


# ------------------------------------------------------------------------------------------ questions over own files


def test_questions_over_files_of_one_name_and_odd_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i},{'北南'[i % 2]},{i * 7 % 11}.5\n" for i in range(24))
    files = []
    for place in ("one", "it's 目录"):
        (tmp_path / place).mkdir()
        files.append(tmp_path / place / "sales.csv")
        files[-1].write_text("day,area,amount\n" + rows)
    out = tmp_path / "questions.jsonl"
    assert main(["questions", *map(str, files), f"--output={out}", "--count=8"]) == 0
    tasks = tasks_of(out)
    assert len(tasks) == len({task.id for task in tasks}) == 8
    assert {task.tables[0].path for task in tasks} == {str(file) for file in files}
    assert main(["validate", f"--data={out}"]) == 0
    assert main(["questions", str(files[0]), f"--output={out}", "--count=0"]) == 2
    assert main(["questions", str(files[0]), f"--output={tmp_path}"]) == 2
    assert "--count must be at least 1" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ validate


def test_built_files_are_valid(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in SIZES:
        assert main(["validate", f"--data={built / f'{name}.jsonl'}"]) == 0
    said = capsys.readouterr().out
    assert said.count("\nvalid\n") == 5 and said.count("programs shared with test: 0") == 3


Corrupt = Callable[[list[dict[str, Any]]], None]


def change(**changes: Any) -> Corrupt:
    return lambda rows: rows[2].update(changes)


def check(**changes: Any) -> Corrupt:
    return lambda rows: rows[2]["checks"][0].update(changes)


def copy(field: str) -> Corrupt:
    def corrupt(rows: list[dict[str, Any]]) -> None:
        source, target = (rows[0], rows[2]) if field == "id" else (rows[0]["metadata"], rows[2]["metadata"])
        target[field] = source[field]

    return corrupt


CORRUPTIONS: dict[str, tuple[Corrupt, str]] = {
    "missing field": (lambda rows: rows[2].pop("question"), "field question: Field required"),
    "unknown field": (change(qestion="?"), "field qestion: Extra inputs are not permitted"),
    "wrong type": (change(max_turns="many"), "field max_turns: Input should be a valid integer"),
    "unknown kind of check": (check(kind="nubmer"), "field checks.0.kind: Input should be"),
    "unknown tool": (
        change(tools=["python_exec"], expert_trajectory=[]),
        "unknown tools python_exec; the tools are python_executor",
    ),
    "expected tool not offered": (change(tools=["calculator"], expert_trajectory=[]), "are not all offered"),
    "missing table": (change(tables=[{"name": "df", "path": "tables/x.csv"}]), "table 'tables/x.csv' does not exist"),
    "table name": (lambda rows: rows[2]["tables"][0].update(name="a b"), "table name 'a b' is no Python name"),
    "two tables of one name": (lambda rows: rows[2]["tables"][1].update(name="orders"), "two tables have one name"),
    "duplicate id": (copy("id"), "is already on line 1"),
    "duplicate program": (copy("program"), "the same program is already on line 1"),
    "gold fails": (change(answer="The answer is 0.123.", expert_trajectory=[]), "fails its own checks"),
    "gold is text": (check(kind="number", value="12"), "a check of kind number needs a finite number, found '12'"),
    "gold is not finite": (check(kind="number", value=1e999), "needs a finite number, found inf"),
    "no checks": (change(checks=[]), "no checks: nothing says what a right answer is"),
    "empty question": (change(question=" "), "the question is empty"),
    "no turns": (change(max_turns=0), "max_turns is 0; it must be at least 1"),
    "expert without an answer": (
        lambda rows: rows[2]["expert_trajectory"].pop(),
        "the expert trajectory does not end with an answer",
    ),
    "expert answers wrong": (
        lambda rows: rows[2]["expert_trajectory"][-1].update(content="It is 0.123."),
        "the expert's answer 'It is 0.123.' fails the checks",
    ),
}


@pytest.fixture()
def corrupted(built: Path, tmp_path: Path) -> Callable[[Corrupt], Path]:
    """A function that writes a corrupted train.jsonl beside links to everything else."""

    def write(corrupt: Corrupt) -> Path:
        for file in built.iterdir():
            if file.name != "train.jsonl":
                (tmp_path / file.name).symlink_to(file)
        rows = [row for _, row in jsonl.iter_rows(built / "train.jsonl")]
        corrupt(rows)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "train.jsonl").write_text(text.replace("Infinity", "1e999"))
        return tmp_path / "train.jsonl"

    return write


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_what_is_wrong_is_said_with_file_and_line(
    corrupted: Callable[[Corrupt], Path], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corrupt, said = CORRUPTIONS[kind]
    file = corrupted(corrupt)
    assert main(["validate", f"--data={file}"]) == 2
    output = capsys.readouterr()
    (line,) = [line for line in (output.out + output.err).splitlines() if str(file) in line and "line" in line]
    assert f"{file}, line 3: " in line and said in line


def test_a_program_of_another_split_is_said_with_its_line(
    corrupted: Callable[[Corrupt], Path],
    built: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    theirs = tasks_of(built / "test.jsonl")[1].metadata["program"]
    file = corrupted(lambda rows: rows[2]["metadata"].update(program=theirs))
    assert main(["validate", f"--data={file}", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["shared_programs"] == {"dev": 0, "test": 1, "test_unseen": 0}
    assert report["problems"] == [f"{file}, line 3: the same program is also in {file.with_name('test.jsonl')}"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no tasks in this file"),
        (b"\n\n", "no tasks in this file"),
        (b'{"id": "a",\n', "line 1: broken JSON at column"),
        (b"[1]\n", "line 1: expected a JSON object, found list"),
        (b'{"id": "a", "question": "\xff"}\n', "line 1: not UTF-8"),
        (None, "no such file"),
    ],
)
def test_a_file_that_cannot_be_read_at_all(
    tmp_path: Path, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tasks.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert main(["validate", f"--data={file}"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and str(file) in output.err and said in output.err


def test_tasks_without_a_program_are_told_apart_by_question_and_tables(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x\n1\n2\n")
    rows = [
        Task.model_validate(
            {
                "id": name,
                "question": "How many rows are there?",
                "tables": [{"name": "df", "path": f"{name}.csv"}],
                "answer": "2",
                "checks": [{"kind": "number", "value": 2}],
            }
        )
        for name in ("a", "b")
    ]
    jsonl.write(tmp_path / "tasks.jsonl", rows)
    assert main(["validate", f"--data={tmp_path / 'tasks.jsonl'}"]) == 0
    jsonl.write(tmp_path / "tasks.jsonl", [*rows, rows[0].model_copy(update={"id": "c"})])
    assert main(["validate", f"--data={tmp_path / 'tasks.jsonl'}"]) == 2


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (Check(kind="number", value=True), True),
        (Check(kind="number", value=0), False),
        (Check(kind="text", value=" "), True),
        (Check(kind="list", value=[]), True),
        (Check(kind="list", value=["a", 2]), False),
        (Check(kind="ordered_list", value="a, b"), True),
        (Check(kind="boolean", value="yes"), True),
        (Check(kind="choice", value="a", options=["b"]), True),
        (Check(kind="choice", value="a", options=["a", "b"]), False),
    ],
)
def test_checks_of_the_wrong_type(given: Check, problem: bool) -> None:
    assert (check_problem(given) is not None) == problem


numbers = st.one_of(st.integers(-(10**8), 10**8), st.floats(-1e9, 1e9).map(lambda value: round(value, 4)))


@given(numbers, st.sampled_from([None, "%"]), st.sampled_from([None, 0, 1, 2, 4]))
def test_wrong_numbers_are_wrong_for_the_real_comparer(value: float, unit: str | None, decimals: int | None) -> None:
    given = Check(kind="number", value=value, unit=unit, decimals=decimals)
    assert not any(compare(wrong, [given]).correct for wrong in wrong_answers(given))
