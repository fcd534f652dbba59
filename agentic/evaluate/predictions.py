"""Read a prediction file: JSONL of trajectories, or of {id, answer} (also {id, pred})."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentic.errors import UserError
from agentic.jsonl import iter_rows
from agentic.records import StopReason, Task, Trajectory


def read_predictions(path: str | Path, tasks: Sequence[Task]) -> list[Trajectory]:
    """Trajectories in the order of the file.

    A task without a prediction is no error here: it counts as a failure in the summary. UserError, with line and id,
    for a broken line, an unknown id, a second prediction of one id (and sample), and a line without an answer field.
    """
    known = {task.id for task in tasks}
    first_line: dict[tuple[str, int], int] = {}
    found: list[Trajectory] = []
    for number, row in iter_rows(path):
        trajectory = _trajectory(row, f"{path}, line {number}")
        key = (trajectory.task_id, trajectory.sample)
        if trajectory.task_id not in known:
            raise UserError(f"{path}, line {number}: id {trajectory.task_id} is not in the task file; remove the line")
        if key in first_line:
            raise UserError(
                f"{path}, line {number}: id {trajectory.task_id} was already predicted in line {first_line[key]}; "
                'keep one line per id, or number them with "sample"'
            )
        first_line[key] = number
        found.append(trajectory)
    return found


def _trajectory(row: dict[str, Any], where: str) -> Trajectory:
    if "task_id" in row:
        try:
            return Trajectory.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "trajectory"
            raise UserError(f"{where}: field {field}: {first['msg']}") from None
    if "id" not in row:
        raise UserError(f'{where}: no "id"; expected {{"id": ..., "answer": ...}} or a trajectory')
    if "answer" not in row and "pred" not in row:
        raise UserError(f'{where}: id {row["id"]} has no "answer" (or "pred")')
    sample = row.get("sample", 0)
    if not isinstance(sample, int):
        raise UserError(f'{where}: id {row["id"]}: "sample" must be a whole number, found {sample!r}')
    answer = _text(row["answer"] if "answer" in row else row["pred"])
    stop_reason = StopReason.ANSWERED if answer.strip() else StopReason.VOID
    return Trajectory(
        task_id=str(row["id"]),
        sample=sample,
        policy="predictions",
        answer=answer,
        stop_reason=stop_reason,
        void=stop_reason == StopReason.VOID,
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
