"""`agentic validate`: is a task file what it claims to be?

Checks schema, ids, tables, tools, duplicates inside the file, programs shared with the other splits, gold and the expert's
answer through the real grader (must pass), and neighbouring wrong answers through the same grader (must fail).
"""

from __future__ import annotations

import json
import keyword
import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.config import ValidateConfig
from agentic.errors import UserError
from agentic.records import Check, Task
from agentic.reward.answer import compare
from agentic.reward.tables import gold_problem
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


def check_problem(check: Check) -> str | None:
    """Why a check cannot say what is right, or None: the record's schema leaves the type of its value open."""
    value = check.value
    if check.kind == "number":
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        wanted = "a finite number"
    elif check.kind == "boolean":
        good, wanted = isinstance(value, bool), "true or false"
    elif check.kind in {"list", "ordered_list"}:
        items = value if isinstance(value, list) else []
        good = bool(items) and all(isinstance(v, str | int | float) and not isinstance(v, bool) for v in items)
        wanted = "a list of texts or numbers with at least one item"
    elif check.kind == "table":
        wanted = gold_problem(value) or ""
        good = not wanted
    else:
        good, wanted = isinstance(value, str) and bool(value.strip()), "a text"
    if not good:
        return f"a check of kind {check.kind} needs {wanted}, found {value!r}"
    if check.kind == "choice" and value not in check.options:
        return f"the options of the choice {check.options} lack its value {value!r}"
    return None


def wrong_answers(check: Check) -> list[str]:
    """Answers near the gold that must score 0: a neighbour, the fraction of a percent, the reversed or cut list."""
    value = check.value
    if check.kind == "number":
        # Twice the unit that is asked (at least twice the fourth decimal, in which gold is stored) is no rounding.
        unit = 10.0 ** -(4 if check.decimals is None else check.decimals)
        near = value + 1 if isinstance(value, int) and unit < 1 else value + max(abs(value) * 0.03, 2 * unit)
        wrong = [f"The answer is {near}.", ""]
        if check.unit == "%" and abs(value) > 2 * unit:
            wrong.append(f"The answer is {value / 100:.8g}.")
        return wrong
    if check.kind in {"list", "ordered_list"}:
        wrong = ["", ", ".join(map(str, value[:-1]))] if len(value) > 1 else [""]
        if check.kind == "ordered_list" and value != value[::-1]:
            wrong.append(", ".join(map(str, value[::-1])))
        return wrong
    if check.kind == "boolean":
        return ["", "no" if value else "yes"]
    if check.kind == "table":
        columns, rows = value["columns"], value["rows"]
        return ["", *(json.dumps({"columns": columns, "rows": r}) for r in ([*rows, rows[0]], rows[:-1]) if r)]
    return ["", "none of them"]


def _problems(task: Task, base_dir: Path, report: Report) -> list[str]:
    found = []
    for ref in task.tables:
        if not os.path.isfile(base_dir / ref.path):
            found.append(f"table {ref.path!r} does not exist")
        if not ref.name.isidentifier() or keyword.iskeyword(ref.name):
            found.append(f"table name {ref.name!r} is no Python name")
    if len({ref.name for ref in task.tables}) < len(task.tables):
        found.append("two tables have one name")
    unknown = [name for name in [*task.tools, *task.expected_tools] if name not in TOOLS]
    if unknown:
        found.append(f"unknown tools {', '.join(sorted(set(unknown)))}; the tools are {', '.join(TOOLS)}")
    elif not set(task.expected_tools) <= set(task.tools):
        found.append(f"expected tools {', '.join(task.expected_tools)} are not all offered ({', '.join(task.tools)})")
    if not task.question.strip():
        found.append("the question is empty")
    if task.max_turns < 1:
        found.append(f"max_turns is {task.max_turns}; it must be at least 1")
    return found + _check_problems(task, report) + _expert_problems(task)


def _check_problems(task: Task, report: Report) -> list[str]:
    if not task.checks:
        return ["no checks: nothing says what a right answer is"]
    found = [problem for check in task.checks if (problem := check_problem(check))]
    if found:
        return found
    verdict = compare(task.answer, task.checks, task.question)
    if not verdict.correct and not verdict.unjudged:
        found.append(f"the gold answer {task.answer!r} fails its own checks ({verdict.reason})")
    for check in task.checks:
        for answer in wrong_answers(check):
            report.wrong_tried += 1
            if compare(answer, [check], task.question).correct:
                found.append(f"the wrong answer {answer!r} passes the check")
    return found


def _expert_problems(task: Task) -> list[str]:
    """The turns of an expert trajectory call offered tools; the last message is an answer that passes the checks."""
    if not task.expert_trajectory:
        return []
    used = {call.function.name for message in task.expert_trajectory for call in message.tool_calls or ()}
    if not used <= set(task.tools):
        return [f"the expert trajectory calls {', '.join(sorted(used - set(task.tools)))}, which is not offered"]
    last = task.expert_trajectory[-1]
    if last.role != "assistant" or last.tool_calls:
        return ["the expert trajectory does not end with an answer"]
    if any(map(check_problem, task.checks)) or not task.checks or last.content == task.answer:
        return []  # said of the checks, or of the gold answer
    verdict = compare(last.content, task.checks, task.question)
    return (
        []
        if verdict.correct or verdict.unjudged
        else [f"the expert's answer {last.content!r} fails the checks ({verdict.reason})"]
    )


def identity(task: Task) -> str:
    """The canonical program; for tasks that state none, the question over its tables."""
    program = task.metadata.get("program")
    return str(program) if program else " ".join([task.question, *(ref.path for ref in task.tables)])


def validate(path: Path) -> Report:
    """Everything that is wrong with a task file. Raises UserError for a line that cannot be read at all."""
    report = Report()
    programs: dict[str, int] = {}
    ids: dict[str, int] = {}
    numbers = (number for number, _ in jsonl.iter_rows(path))
    for number, task in zip(numbers, jsonl.read(path, Task), strict=True):
        report.tasks += 1
        report.categories[str(task.metadata.get("category", "-"))] += 1
        report.languages[task.language] += 1
        problems = _problems(task, path.resolve().parent, report)
        program = identity(task)
        if task.id in ids:
            problems.append(f"id {task.id!r} is already on line {ids[task.id]}")
        if program in programs:
            problems.append(f"the same program is already on line {programs[program]}")
        ids.setdefault(task.id, number)
        programs.setdefault(program, number)
        report.problems += [f"{path}, line {number}: {problem}" for problem in problems]
    if not report.tasks:
        raise UserError(f"{path}: no tasks in this file")
    others = [path.with_name(f"{name}.jsonl") for name in SPLITS if name != path.stem] if path.stem in SPLITS else []
    for file in others:
        if file.exists():
            theirs = {identity(task) for task in jsonl.read(file, Task)}
            shared = [number for program, number in programs.items() if program in theirs]
            report.shared[file.stem] = len(shared)
            report.problems += [f"{path}, line {number}: the same program is also in {file}" for number in shared]
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
