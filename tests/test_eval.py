"""`agentic eval`: oracle and empty run, prediction files, resuming after a kill, one sentence for bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from http_server import Scripted, ScriptedServer, chat_reply

from agentic import jsonl
from agentic.cli import main
from agentic.records import StopReason, Task, Trajectory

pytest_plugins = ("built", "shared_zygote")
pytestmark = pytest.mark.usefixtures("shared_zygote")

ROOT = Path(__file__).resolve().parents[1]


def evaluate(data: Path, out: Path, *options: str) -> int:
    return main(["eval", f"--data={data}", f"--output_dir={out}", *options])


def metrics(out: Path) -> dict[str, Any]:
    """metrics.json without what the clock decides."""
    found: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    del found["wall_s_per_trajectory"]
    return found


def trajectories(out: Path) -> list[Trajectory]:
    return list(jsonl.read(out / "trajectories.jsonl", Trajectory))


def small_task(task_id: str, **changes: Any) -> Task:
    checks = [{"kind": "number", "value": int(task_id)}]
    return Task.model_validate({"id": task_id, "question": "How many?", "checks": checks, "answer": task_id, **changes})


@pytest.fixture()
def five(tmp_path: Path) -> Path:
    """Five tasks "1" to "5", each with its own id as answer."""
    jsonl.write(tmp_path / "five.jsonl", [small_task(str(number)) for number in range(1, 6)])
    return tmp_path / "five.jsonl"


# ------------------------------------------------------------------------------------------ oracle and empty


def test_oracle_is_everything_and_its_observations_are_the_experts(built: Path, tmp_path: Path) -> None:
    assert evaluate(built / "test.jsonl", tmp_path / "run", "--replay=oracle") == 0
    summary = metrics(tmp_path / "run")
    assert (summary["tasks"], summary["missing"], summary["stop_reasons"]) == (8, [], {"answered": 8})
    for name in ("task_success", "answer_score", "tool_selection_f1", "schema_valid_rate", "format_score"):
        assert summary["metrics"][name]["mean"] == 1.0, name
    assert summary["metrics"]["task_success"]["low"] < 1.0
    assert (tmp_path / "run" / "bad_cases.jsonl").read_text() == ""
    seen = {t.task_id: [o.text for turn in t.turns for o in turn.observations] for t in trajectories(tmp_path / "run")}
    for task in jsonl.read(built / "test.jsonl", Task):
        assert seen[task.id] == [message.content for message in task.expert_trajectory if message.role == "tool"]
    # The trajectories of a run are a prediction file, too.
    pred = f"--pred={tmp_path / 'run' / 'trajectories.jsonl'}"
    assert evaluate(built / "test.jsonl", tmp_path / "again", pred) == 0
    assert metrics(tmp_path / "again") == summary


def test_oracle_also_repairs_the_scripted_mistakes(built: Path, tmp_path: Path) -> None:
    assert evaluate(built / "general.jsonl", tmp_path / "run", "--replay=oracle", "--samples=2", "--limit=8") == 0
    summary = metrics(tmp_path / "run")
    assert (summary["trajectories"], summary["samples"], summary["metrics"]["task_success"]["mean"]) == (16, 2, 1.0)


def test_empty_is_nothing(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(built / "test.jsonl", tmp_path / "run", "--replay=empty") == 0
    summary = metrics(tmp_path / "run")
    for name in ("task_success", "answer_score", "tool_selection_f1", "schema_valid_rate", "exec_success_rate"):
        assert summary["metrics"][name]["mean"] == 0.0, name
    assert summary["stop_reasons"] == {"void": 8} and all(t.void for t in trajectories(tmp_path / "run"))
    assert len((tmp_path / "run" / "bad_cases.jsonl").read_text().splitlines()) == 8
    said = capsys.readouterr().out
    assert "task_success" in said and "8/8 success 0.000" in said


# ------------------------------------------------------------------------------------------ prediction files


def predictions(path: Path, answers: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps({"id": id, "answer": answer}) + "\n" for id, answer in answers.items()))
    return path


def test_predictions_are_scored_over_all_tasks(five: Path, tmp_path: Path) -> None:
    pred = predictions(tmp_path / "pred.jsonl", {"1": "1", "2": "It is 2.", "3": "", "4": "5"})
    assert evaluate(five, tmp_path / "run", f"--pred={pred}") == 0
    summary = metrics(tmp_path / "run")
    assert (summary["tasks"], summary["missing"]) == (5, ["5"])
    assert summary["metrics"]["task_success"]["mean"] == 0.4
    assert not (tmp_path / "run" / "trajectories.jsonl").exists()
    # The file was mended: the same command says so.
    predictions(pred, {str(number): str(number) for number in range(1, 6)})
    assert evaluate(five, tmp_path / "run", f"--pred={pred}") == 0
    assert metrics(tmp_path / "run")["metrics"]["task_success"]["mean"] == 1.0


def test_a_limit_does_not_make_ids_unknown(five: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pred = predictions(tmp_path / "pred.jsonl", {"1": "1", "2": "9", "5": "5"})
    assert evaluate(five, tmp_path / "run", f"--pred={pred}", "--limit=2") == 0
    summary = metrics(tmp_path / "run")
    assert (summary["tasks"], summary["metrics"]["task_success"]["mean"]) == (2, 0.5)
    predictions(pred, {"1": "1", "77": "77"})
    assert evaluate(five, tmp_path / "run", f"--pred={pred}", "--limit=2") == 2
    assert f"{pred}, line 2: id 77 is not in the task file" in capsys.readouterr().err


def test_d11_repeated_unknown_and_broken_lines(
    five: Path, tmp_path: Path, cases_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (cases_dir / "files" / "D11_predictions.jsonl").read_text().split("\n")
    said = []
    for remove in (None, "1", "1", "77"):
        if remove is not None:
            lines.remove(next(line for line in lines if f'"id":{remove},' in line))
        pred = tmp_path / f"pred-{len(said)}.jsonl"
        pred.write_text("\n".join(lines))
        assert evaluate(five, tmp_path / "run", f"--pred={pred}") == 2
        said.append(capsys.readouterr().err)
    assert "line 2: id 1 was already predicted in line 1" in said[0]
    assert "line 2: id 1 was already predicted in line 1" in said[1]
    assert "line 4: id 77 is not in the task file" in said[2]
    assert "line 4: broken JSON at column" in said[3]
    assert all(text.count("\n") == 1 for text in said)
    pred.write_text("\n".join(lines[:3]))
    assert evaluate(five, tmp_path / "whole", f"--pred={pred}") == 0
    assert metrics(tmp_path / "whole")["tasks"] == 5  # the denominator


# ------------------------------------------------------------------------------------------ resuming


def test_a_killed_run_resumes_to_the_same_metrics(built: Path, tmp_path: Path) -> None:
    """The file a kill leaves: fewer lines, the last one cut; also a failure of the server, which is tried again."""
    run, options = tmp_path / "run", ["--replay=oracle", "--batch_size=2"]
    assert evaluate(built / "test.jsonl", run, *options) == 0
    whole = metrics(run)
    lines = (run / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
    outage = Trajectory.model_validate_json(lines[3])
    outage = outage.model_copy(update={"stop_reason": StopReason.POLICY_ERROR, "answer": None, "turns": []})
    lines[3] = jsonl.dumps(outage).encode() + b"\n"
    (run / "trajectories.jsonl").write_bytes(b"".join(lines[:5]) + lines[5][: len(lines[5]) // 2])
    (run / "metrics.json").unlink()
    assert evaluate(built / "test.jsonl", run, *options) == 0
    assert metrics(run) == whole
    again = (run / "trajectories.jsonl").read_bytes()
    assert again.startswith(b"".join([*lines[:3], lines[4]]))  # what was finished was not run again
    assert len(trajectories(run)) == 8
    # Nothing is left to do: the third call runs nothing and says the same, to the byte.
    before = (run / "metrics.json").read_bytes()
    assert evaluate(built / "test.jsonl", run, *options) == 0
    assert ((run / "metrics.json").read_bytes(), (run / "trajectories.jsonl").read_bytes()) == (before, again)


def test_a_folder_keeps_what_it_holds(five: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert evaluate(five, run, "--replay=oracle") == 0
    assert evaluate(five, run, "--replay=oracle", "--limit=2") == 0
    assert metrics(run)["tasks"] == 2 and len(trajectories(run)) == 5
    assert evaluate(five, run, "--replay=empty") == 2
    assert "the folder holds a run with other options (replay was 'oracle', now 'empty')" in capsys.readouterr().err
    jsonl.write(five, [small_task(str(number), question="How many now?") for number in range(1, 6)])
    assert evaluate(five, run, "--replay=oracle") == 2
    assert "data_sha256" in capsys.readouterr().err


def test_interrupted_it_keeps_what_is_finished_and_says_how_to_go_on(five: Path, tmp_path: Path) -> None:
    slow = Scripted(200, {}, chat_reply("3"), delay_s=60.0)
    answers = [chat_reply("3"), chat_reply("3"), slow]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    run = tmp_path / "run"
    with ScriptedServer(answers, repeat=True) as server:
        command = [sys.executable, "-m", "agentic.cli", "eval", f"--data={five}", f"--output_dir={run}"]
        process = subprocess.Popen(
            [*command, f"--endpoint={server.url}", "--batch_size=1"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while len(server.requests) < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.count("\n") == 1 and "run the same command again" in said
    assert [t.task_id for t in trajectories(run)] == ["1", "2"]
    with ScriptedServer([chat_reply("3")], repeat=True, port=server.port) as server:
        assert evaluate(five, run, f"--endpoint={server.url}", "--batch_size=1") == 0
        assert len(server.requests) == 3
    assert metrics(run)["trajectories"] == 5


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replay=oracle", "--model=smollm2"], "choose one of --model, --endpoint, --weight, --pred and --replay"),
        (["--replay=oracle", "--limit=0"], "--limit must be at least 1"),
        (["--replay=oracle", "--samples=0"], "--samples must be at least 1"),
        (["--replay=oracle", "--batch_size=0"], "--batch_size must be at least 1"),
        (["--replay=oracle", "--deadline_s=0"], "--deadline_s must be above 0"),
        (["--endpoint=nonsense"], "the base URL must start with http"),
        (["--pred=absent.jsonl"], "absent.jsonl: no such file"),
    ],
)
def test_bad_options(
    five: Path, tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(five, tmp_path / "run", *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and error.count("\n") == 1


@pytest.mark.parametrize("option", ["output", "json_output", "bad_cases_output"])
def test_an_output_that_cannot_be_written_is_said_before_the_run(
    five: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    for place, said in ((tmp_path / "folder", "is a folder"), (five / "x.json", "cannot write there")):
        assert evaluate(five, tmp_path / "run", "--replay=oracle", f"--{option}={place}") == 2
        error = capsys.readouterr().err
        assert said in error and f"name another --{option}" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists() and not list((tmp_path / "folder").iterdir())


def test_a_missing_model_is_one_sentence_and_does_not_occupy_the_folder(
    five: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert evaluate(five, tmp_path / "run", "--model=/absent/model") == 2
    error = capsys.readouterr().err
    assert "/absent/model" in error and error.count("\n") == 1
    assert evaluate(five, tmp_path / "run", "--replay=oracle") == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no tasks in this file"),
        ('{"id": "1"}\n', "line 1: field question"),
        (None, "no such file"),
        (jsonl.dumps(small_task("1")) + "\n" + jsonl.dumps(small_task("1")) + "\n", "task id '1' occurs twice"),
        (jsonl.dumps(small_task("1", tools=["sql"])) + "\n", "task 1: unknown tool 'sql'"),
        (jsonl.dumps(small_task("1", tables=[{"name": "df", "path": "x.csv"}])) + "\n", "x.csv does not exist"),
    ],
)
def test_bad_task_files(tmp_path: Path, content: str | None, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tasks.jsonl"
    if content is not None:
        file.write_text(content)
    assert evaluate(file, tmp_path / "run", "--replay=oracle") == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
