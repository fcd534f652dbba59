"""Summaries with intervals, prediction files (case D11), the table and the bad cases."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentic.errors import UserError
from agentic.evaluate.metrics import METRICS, Summary, summarise, wilson
from agentic.evaluate.predictions import read_predictions
from agentic.evaluate.report import bad_cases, print_table
from agentic.records import Action, Check, Observation, StopReason, TableRef, Task, Trajectory, Turn


def make_tasks(count: int, table_sets: int = 1, category: str = "mean") -> list[Task]:
    return [
        Task(
            id=str(i),
            question=f"How many [red]rows[/red] has {i}?",
            tables=[TableRef(name="t", path=f"tables/{i % table_sets}.csv")],
            expected_tools=["python_executor"],
            checks=[Check(kind="number", value=7)],
            answer="It is 7.",
            metadata={"category": category if i % 2 else "count"},
        )
        for i in range(1, count + 1)
    ]


def played(
    task_id: str, answer: str | None, sample: int = 0, stop: StopReason = StopReason.ANSWERED, status: str = "ok"
) -> Trajectory:
    observation = Observation.model_validate({"status": status, "text": "7"})
    run = Turn(
        text="call",
        actions=[Action(kind="tool", name="python_executor")],
        observations=[observation],
        generated_tokens=9,
    )
    turns = [run]
    if answer is not None:
        turns.append(Turn(text=answer, actions=[Action(kind="answer", answer=answer)], generated_tokens=1))
    return Trajectory(task_id=task_id, sample=sample, turns=turns, answer=answer, stop_reason=stop, wall_ms=500.0)


def test_the_denominator_is_all_tasks() -> None:
    tasks = make_tasks(5)
    summary = summarise(tasks, [played("1", "7"), played("2", "7"), played("3", "8")])
    assert summary.metrics["task_success"].mean == pytest.approx(0.4)
    assert summary.metrics["avg_turns"].mean == pytest.approx(2.0)
    assert summary.missing == ["4", "5"]
    assert summary.failures == {"right": 2, "wrong_answer": 1, "missing": 2}
    assert summary.tokens_per_trajectory == 10
    assert summary.wall_s_per_trajectory == 0.5
    assert list(summary.metrics) == list(METRICS)
    Summary.model_validate_json(summary.model_dump_json())


def test_samples_are_averaged_per_task() -> None:
    tasks = make_tasks(2)
    trajectories = [played("1", "7"), played("1", "8", sample=1), played("2", "7")]
    summary = summarise(tasks, trajectories)
    assert summary.samples == 2
    assert summary.metrics["task_success"].mean == pytest.approx(0.5)
    assert summary.missing == ["2"]
    assert summary.failures["missing"] == 1


def test_whose_error_it_was() -> None:
    tasks = make_tasks(7)
    summary = summarise(
        tasks,
        [
            played("1", "8"),
            played("2", None, stop=StopReason.MAX_TURNS),
            played("3", None, stop=StopReason.MAX_TURNS, status="error"),
            played("4", None, stop=StopReason.SANDBOX_LOST),
            played("5", None, stop=StopReason.POLICY_ERROR),
            played("6", None, stop=StopReason.DEADLINE),
            played("7", None, stop=StopReason.MAX_TURNS, status="killed"),
        ],
    )
    assert summary.failures == {"wrong_answer": 1, "model": 1, "tool": 1, "sandbox": 2, "harness": 2}
    assert summary.stop_reasons["max_turns"] == 3


def test_all_right_and_all_wrong_have_wilson_intervals() -> None:
    tasks = make_tasks(40)
    good = summarise(tasks, [played(t.id, "7") for t in tasks]).metrics["task_success"]
    assert (good.mean, good.high, good.method) == (1.0, 1.0, "wilson")
    assert good.low == pytest.approx(0.9124, abs=1e-3)
    bad = summarise(tasks, []).metrics["task_success"]
    assert (bad.mean, bad.low, bad.method) == (0.0, 0.0, "wilson")
    assert bad.high == pytest.approx(0.0876, abs=1e-3)


def test_clusters_widen_the_interval() -> None:
    # Every question of a table set has the same result: 20 independent observations, not 400.
    tasks = make_tasks(400, table_sets=20)
    trajectories = [played(t.id, "7" if int(t.id) % 20 < 10 else "8") for t in tasks]
    clustered = summarise(tasks, trajectories)
    assert clustered.clustering == "20 table sets"
    single = summarise(make_tasks(400), trajectories)
    assert "400 questions" in single.clustering
    wide, narrow = clustered.metrics["task_success"], single.metrics["task_success"]
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_same_seed_same_summary_and_fast() -> None:
    tasks = make_tasks(1000, table_sets=50)
    trajectories = [played(t.id, "7" if hash(int(t.id)) % 3 else "8") for t in tasks]
    started = time.perf_counter()
    first = summarise(tasks, trajectories, seed=3)
    assert time.perf_counter() - started < 5
    assert first == summarise(tasks, trajectories, seed=3)


@given(st.floats(0, 1), st.integers(1, 5000))
def test_wilson_holds_its_share(share: float, n: int) -> None:
    low, high = wilson(share, n)
    assert 0 <= low <= share + 1e-9 and share - 1e-9 <= high <= 1


@pytest.mark.slow
def test_interval_covers_the_true_share() -> None:
    rng = np.random.default_rng(0)
    tasks = make_tasks(60)
    covered = 0
    for repeat in range(30):
        trajectories = [played(t.id, "7" if rng.random() < 0.7 else "8") for t in tasks]
        interval = summarise(tasks, trajectories, seed=repeat, resamples=300).metrics["task_success"]
        covered += interval.low <= 0.7 <= interval.high
    assert covered >= 25


def test_bad_input_is_named() -> None:
    tasks = make_tasks(2)
    with pytest.raises(UserError, match="unknown task 9"):
        summarise(tasks, [played("9", "7")])
    with pytest.raises(UserError, match="two trajectories of task 1"):
        summarise(tasks, [played("1", "7"), played("1", "8")])
    with pytest.raises(UserError, match="no tasks"):
        summarise([], [])
    with pytest.raises(UserError, match="two tasks have the id 1"):
        summarise([tasks[0], tasks[0]], [])


# --------------------------------------------------------------------------------------------- predictions


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_predictions_of_answers_and_of_trajectories(tmp_path: Path) -> None:
    tasks = make_tasks(5)
    path = write(
        tmp_path / "pred.jsonl",
        {"id": 1, "pred": "7"},
        {"id": "2", "answer": 7, "model": "extra fields are fine"},
        {"id": 3, "answer": ""},
        {"id": 4, "answer": None},
        played("5", "7").model_dump(mode="json"),
    )
    trajectories = read_predictions(path, tasks)
    assert [t.stop_reason for t in trajectories] == ["answered", "answered", "void", "void", "answered"]
    assert summarise(tasks, trajectories).metrics["task_success"].mean == pytest.approx(0.6)


def test_answers_without_turns_have_no_process_metrics(tmp_path: Path) -> None:
    tasks = make_tasks(2)
    summary = summarise(tasks, read_predictions(write(tmp_path / "p.jsonl", {"id": 1, "pred": "7"}), tasks))
    assert list(summary.metrics) == ["task_success", "answer_score"]
    assert summary.metrics["task_success"].mean == 0.5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1, "pred": "7"}, {"id": 1, "pred": "8"}], "line 2: id 1 was already predicted in line 1"),
        ([{"id": 1, "pred": "7"}, {"id": 77, "pred": "77"}], "line 2: id 77 is not in the task file"),
        ([{"id": 1, "pred": "7"}, '{"id":4,"pr'], "line 2: broken JSON"),
        ([{"pred": "7"}], 'line 1: no "id"'),
        ([{"id": 1}], 'line 1: id 1 has no "answer"'),
        ([{"id": 1, "pred": "7", "sample": "x"}], 'line 1: id 1: "sample"'),
        ([{"task_id": "1", "turns": 3}], "line 1: field turns"),
    ],
)
def test_bad_prediction_files_are_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_predictions(write(tmp_path / "p.jsonl", *rows), make_tasks(5))
    assert message in str(error.value)


def test_public_case_d11(cases_dir: Path, tmp_path: Path) -> None:
    files = cases_dir / "files"
    rows = [json.loads(line) for line in (files / "D11_tasks.jsonl").read_text().splitlines()]
    tasks = [
        Task(id=str(row["id"]), question="?", checks=[Check(kind="number", value=int(row["gold"]))]) for row in rows
    ]
    lines = (files / "D11_predictions.jsonl").read_text().splitlines()
    for count, message in ((7, "id 1 was already predicted in line 1"), (3, "id 1 was already")):
        with pytest.raises(UserError, match=message):
            read_predictions(write(tmp_path / "p.jsonl", *lines[:count]), tasks)
    with pytest.raises(UserError, match="line 2: broken JSON"):
        read_predictions(write(tmp_path / "p.jsonl", lines[0], lines[-1]), tasks)
    with pytest.raises(UserError, match="id 77"):
        read_predictions(write(tmp_path / "p.jsonl", lines[0], lines[5]), tasks)
    kept = read_predictions(write(tmp_path / "p.jsonl", lines[0], *lines[3:5]), tasks)
    summary = summarise(tasks, kept)
    assert summary.tasks == 5
    assert summary.metrics["task_success"].mean == pytest.approx(0.4)
    assert summary.missing == ["4", "5"]


# ------------------------------------------------------------------------------------------------- report


def test_table_shows_every_run_and_no_markup() -> None:
    tasks = make_tasks(20)
    half = summarise(tasks, [played(t.id, "7" if int(t.id) % 2 else "8") for t in tasks])
    none = summarise(tasks, [])
    console = Console(file=io.StringIO(), width=120)
    print_table({"runs/[bold]a": half, "base": none}, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    low, high = half.metrics["task_success"].low, half.metrics["task_success"].high
    assert f"0.500 [{low:.2f}, {high:.2f}]" in text
    assert "0.000 [0.00, 0.16]w" in text
    assert "runs/[bold]a" in text
    assert "20 tasks without an answer" in text


def test_bad_cases_hold_what_a_person_needs() -> None:
    tasks = make_tasks(3)
    rows = bad_cases(tasks, [played("1", "7"), played("2", "It is 8.")])
    assert [row["id"] for row in rows] == ["2", "3"]
    assert rows[0]["gold"] == "It is 7."
    assert rows[0]["reason"] == "8 is stated, 7 is right"
    assert rows[0]["failure"] == "wrong_answer"
    assert rows[0]["turns"][0] == {"text": "call", "observations": ["7"]}
    assert rows[1]["failure"] == "missing"
    json.dumps(rows)
