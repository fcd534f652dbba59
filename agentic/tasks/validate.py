"""`agentic validate`: is a task file what it claims to be?

Checks schema, ids, tables, duplicates inside the file, programs shared with the other splits, gold through the real
grader (must pass), and neighbouring wrong answers through the same grader (must fail).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.config import ValidateConfig
from agentic.errors import UserError
from agentic.records import Check, Task
from agentic.reward.answer import compare
from agentic.tasks.build import SPLITS
from agentic.tools.base import TOOLS

_SHOWN = 5


@dataclass
class Report:
    tasks: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """One sentence each, naming file and line."""
    shared: dict[str, int] = field(default_factory=dict)
    """Other split -> canonical programs it shares with this file."""
    wrong_tried: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "tasks": self.tasks,
            "categories": dict(sorted(self.categories.items())),
            "languages": dict(sorted(self.languages.items())),
            "shared_programs": self.shared,
            "wrong_answers_tried": self.wrong_tried,
            "problems": self.problems,
        }


def wrong_answers(check: Check) -> list[str]:
    """Answers near the gold that must score 0: a neighbour, the fraction of a percent, the reversed or cut list."""
    value = check.value
    if check.kind == "number":
        near = value + 1 if isinstance(value, int) else value * 1.03 + (0.01 if value == 0 else 0)
        wrong = [f"The answer is {near}.", ""]
        if check.unit == "%" and abs(value) > 1e-6:
            wrong.append(f"The answer is {value / 100:.8g}.")
        return wrong
    if check.kind in {"list", "ordered_list"}:
        wrong = ["", ", ".join(map(str, value[:-1]))] if len(value) > 1 else [""]
        if check.kind == "ordered_list" and value != value[::-1]:
            wrong.append(", ".join(map(str, value[::-1])))
        return wrong
    if check.kind == "boolean":
        return ["", "no" if value else "yes"]
    return ["", "none of them"]


def _problems(task: Task, base_dir: Path, report: Report) -> list[str]:
    found = [f"table {ref.path!r} does not exist" for ref in task.tables if not (base_dir / ref.path).is_file()]
    unknown = [name for name in [*task.tools, *task.expected_tools] if name not in TOOLS]
    if unknown:
        found.append(f"unknown tools {', '.join(sorted(set(unknown)))}; the tools are {', '.join(TOOLS)}")
    if not task.checks:
        found.append("no checks: nothing says what a right answer is")
    elif not compare(task.answer, task.checks, task.question).correct:
        found.append(f"the gold answer {task.answer!r} fails its own checks")
    for check in task.checks:
        for answer in wrong_answers(check):
            report.wrong_tried += 1
            if compare(answer, [check], task.question).correct:
                found.append(f"the wrong answer {answer!r} passes the check")
    if task.expert_trajectory and task.expert_trajectory[-1].role != "assistant":
        found.append("the expert trajectory does not end with an answer")
    return found


def validate(path: Path) -> Report:
    report = Report()
    programs: dict[str, int] = {}
    ids: dict[str, int] = {}
    numbers = (number for number, _ in jsonl.iter_rows(path))
    for number, task in zip(numbers, jsonl.read(path, Task), strict=False):
        report.tasks += 1
        report.categories[str(task.metadata.get("category", "-"))] += 1
        report.languages[task.language] += 1
        problems = _problems(task, path.resolve().parent, report)
        program = str(task.metadata.get("program", task.question))
        if task.id in ids:
            problems.append(f"id {task.id!r} is already on line {ids[task.id]}")
        if program in programs:
            problems.append(f"the same program is already on line {programs[program]}")
        ids.setdefault(task.id, number)
        programs.setdefault(program, number)
        report.problems += [f"{path}, line {number}: {problem}" for problem in problems]
    if not report.tasks:
        raise UserError(f"{path}: no tasks in this file")
    if path.stem in SPLITS:
        for other in SPLITS:
            file = path.with_name(f"{other}.jsonl")
            if other != path.stem and file.exists():
                theirs = {str(t.metadata.get("program", t.question)) for t in jsonl.read(file, Task)}
                report.shared[other] = len(theirs & programs.keys())
                if report.shared[other]:
                    report.problems.append(f"{path}: {report.shared[other]} programs are also in {file}")
    return report


def run(config: ValidateConfig) -> int:
    report = validate(config.data)
    if config.json:
        print(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    else:
        print(f"{config.data}: {report.tasks} tasks ({', '.join(f'{n} {k}' for k, n in report.languages.items())})")
        for category, count in sorted(report.categories.items()):
            print(f"  {category}: {count}")
        for other, count in report.shared.items():
            print(f"  programs shared with {other}: {count}")
        print(f"  wrong answers tried: {report.wrong_tried}")
        for problem in report.problems[:_SHOWN]:
            print(f"problem: {problem}")
        if len(report.problems) > _SHOWN:
            print(f"... {len(report.problems) - _SHOWN} more problems (--json lists all)")
        print("valid" if not report.problems else f"invalid: {len(report.problems)} problems")
    return 2 if report.problems else 0
