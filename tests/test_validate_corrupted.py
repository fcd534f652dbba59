"""`agentic validate` on corrupted task files: exit code 2 and one sentence that names file and line (no built data needed)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentic.cli import main

Rows = list[dict[str, Any]]


def message(role: str, content: str = "", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def calling(tool: str) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps({"code": "print(len(df))"})}
    return message("assistant", tool_calls=[{"type": "function", "id": "call_0", "function": function}])


def task(number: int) -> dict[str, Any]:
    return {
        "id": f"task-{number}",
        "question": f"How many rows have a value above {number}?",
        "tables": [{"name": "df", "path": "df.csv"}],
        "tools": ["python_executor"],
        "expected_tools": ["python_executor"],
        "answer": "The count is 42.",
        "checks": [{"kind": "number", "value": 42}],
        "expert_trajectory": [
            calling("python_executor"),
            message("tool", "42", name="python_executor", tool_call_id="call_0"),
            message("assistant", "The count is 42."),
        ],
        "metadata": {"program": f"count above {number}"},
    }


def change(**fields: Any) -> Callable[[Rows], None]:
    return lambda rows: rows[1].update(fields)


def check(**fields: Any) -> Callable[[Rows], None]:
    return change(checks=[fields])


CORRUPTED: dict[str, tuple[Callable[[Rows], Any], str]] = {
    "missing field": (lambda rows: rows[1].pop("question"), "field question: Field required"),
    "wrong type": (change(tables="df.csv"), "field tables: Input should be a valid list"),
    "unknown field": (change(anwser="42"), "field anwser: Extra inputs are not permitted"),
    "duplicate id": (change(id="task-0"), "id 'task-0' is already on line 1"),
    "duplicate program": (change(metadata={"program": "count above 0"}), "the same program is already on line 1"),
    "gold fails its check": (
        change(answer="The count is 41.", expert_trajectory=[]),
        "fails its own checks (41 is stated",
    ),
    "no checks": (change(checks=[]), "no checks"),
    "check without a value": (check(kind="number"), "field checks.0.value: Field required"),
    "check of an unknown kind": (check(kind="numbr", value=42), "field checks.0.kind: Input should be"),
    "gold is NaN": (check(kind="number", value=float("nan")), "needs a finite number, found nan"),
    "gold is infinite": (check(kind="number", value=float("inf")), "needs a finite number, found inf"),
    "gold is null": (check(kind="text", value=None), "a check of kind text needs a text, found None"),
    "table without columns": (check(kind="table", value=[["a", 1]]), 'kind table needs an object {"columns"'),
    "ragged table": (
        check(kind="table", value={"columns": ["a", "b"], "rows": [["x", 1], ["y"]]}),
        "needs rows of 2 cells each",
    ),
    "missing table file": (change(tables=[{"name": "df", "path": "gone.csv"}]), "table 'gone.csv' does not exist"),
    "unknown tool": (
        change(tools=["pyhton_executor"], expected_tools=[], expert_trajectory=[]),
        "unknown tools pyhton_exec",
    ),
    "expected tool not offered": (change(expected_tools=["calculator"]), "are not all offered (python_executor)"),
    "expert calls what is not offered": (
        lambda rows: rows[1]["expert_trajectory"].__setitem__(0, calling("retriever")),
        "the expert trajectory calls retriever, which is not offered",
    ),
    "observation without a call": (
        lambda rows: rows[1]["expert_trajectory"].pop(0),
        "message 0 of the expert trajectory (tool) answers no call",
    ),
    "observation of another call": (
        lambda rows: rows[1]["expert_trajectory"][1].update(tool_call_id="call_9"),
        "message 1 of the expert trajectory (tool) answers no call",
    ),
    "expert ends with a call": (lambda rows: rows[1]["expert_trajectory"].pop(), "does not end with an answer"),
    "expert answers wrong": (
        lambda rows: rows[1]["expert_trajectory"][-1].update(content="The count is 41."),
        "the expert's answer 'The count is 41.' fails the checks",
    ),
}


def write(folder: Path, rows: Rows, name: str = "tasks") -> Path:
    (folder / "df.csv").write_text("value\n1\n2\n")
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def said(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The only sentence about the file, after exit code 2."""
    assert main(["validate", f"--data={file}"]) == 2
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    (line,) = [line for line in (output.out + output.err).splitlines() if "problem: " in line or "error: " in line]
    return line


def test_the_sound_file_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"--data={write(tmp_path, [task(0), task(1), task(2)])}"]) == 0
    assert capsys.readouterr().out.endswith("valid\n")


@pytest.mark.parametrize("kind", CORRUPTED)
def test_what_is_wrong_in_a_row(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    corrupt, expected = CORRUPTED[kind]
    rows = [task(0), task(1), task(2)]
    corrupt(rows)
    file = write(tmp_path, rows)
    line = said(file, capsys)
    assert f"{file}, line 2: " in line and expected in line


def test_a_program_of_another_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(tmp_path, [task(5), task(1)], "test")
    file = write(tmp_path, [task(0), task(1), task(2)], "train")
    assert f"{file}, line 2: the same program is also in {other}" in said(file, capsys)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda data: b"", "no tasks in this file"),
        (lambda data: b"\n \n", "no tasks in this file"),
        (lambda data: data[:-40], "line 3: broken JSON at column"),  # a copy that was cut off
        (lambda data: data.replace(b'"id": "task-1",', b'"id": "task-1"'), "line 2: broken JSON at column"),
        (lambda data: data.replace(b"task-1", b"task-\xff"), "line 2: not UTF-8"),
        (lambda data: data.decode().encode("utf-16"), "line 1: not UTF-8"),
        (lambda data: b"[]\n" + data, "line 1: expected a JSON object, found list"),
        (lambda data: data[:200] + b"\x00" * 50 + data[250:], "line 1: broken JSON"),
    ],
)
def test_a_damaged_file(
    tmp_path: Path, damage: Callable[[bytes], bytes], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, [task(0), task(1), task(2)])
    file.write_bytes(damage(file.read_bytes()))
    line = said(file, capsys)
    assert str(file) in line and expected in line


def test_free_text_is_valid_without_a_judge_and_a_table_is_graded(tmp_path: Path) -> None:
    free, table = task(0), task(1)
    free.update(checks=[{"kind": "free_text", "value": "Sales fell because of the strike."}])
    table.update(
        checks=[{"kind": "table", "value": {"columns": ["region", "sales"], "rows": [["East", 5], ["West", 7]]}}],
        answer="| region | sales |\n|---|---|\n| West | 7 |\n| East | 5 |",
        expert_trajectory=[],
    )
    assert main(["validate", f"--data={write(tmp_path, [free, table])}"]) == 0
    table.update(answer="| region | sales |\n|---|---|\n| West | 5 |\n| East | 7 |")
    assert main(["validate", f"--data={write(tmp_path, [free, table])}"]) == 2
