"""`agentic validate`: is a task file what it claims to be?

Checks schema, ids, tables, tools, duplicates inside the file, programs shared with the other splits, gold and the expert's
answer through the real grader (must pass), and wrong answers through the same grader (must fail): neighbours of the gold,
and those that the build recorded (another slice, no filter, a fraction for a percent, a rival definition). The
tables and the file are held against the hashes in the manifest beside it; of a folder all files are checked.
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
from agentic.tasks.build import SPLITS, sha256
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
    recorded: Counter[str] = field(default_factory=Counter)
    """Recorded wrong answers that were tried, by what was mistaken."""

    def to_json(self) -> dict[str, Any]:
        return {
            "tasks": self.tasks,
            "categories": dict(sorted(self.categories.items())),
            "languages": dict(sorted(self.languages.items())),
            "shared_programs": self.shared,
            "wrong_answers_tried": self.wrong_tried,
            "recorded_wrong_answers_tried": dict(sorted(self.recorded.items())),
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
    return found + _check_problems(task, report) + _recorded_problems(task, report) + _expert_problems(task)


def _recorded_problems(task: Task, report: Report) -> list[str]:
    """The wrong answers that the build has computed (metadata.wrong) must fail."""
    wrong = task.metadata.get("wrong", {})
    if not isinstance(wrong, dict) or not all(isinstance(answer, str) for answer in wrong.values()):
        return [f"metadata.wrong must hold texts by name, found {wrong!r}"]
    if any(map(check_problem, task.checks)):
        return []  # said of the checks
    report.recorded.update(wrong.keys())
    report.wrong_tried += len(wrong)
    passing = {what: said for what, said in wrong.items() if compare(said, task.checks, task.question).correct}
    return [f"the wrong answer {answer!r} ({what}) passes the checks" for what, answer in passing.items()]


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
    asked: set[str | None] = set()
    for position, message in enumerate(task.expert_trajectory):
        if message.role == "assistant":
            asked = {call.id for call in message.tool_calls or ()}
        elif message.role != "tool" or not asked or message.tool_call_id not in {None, *asked}:
            return [
                f"message {position} of the expert trajectory ({message.role}) answers no call of the turn before it"
            ]
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


def _row_identity(row: dict[str, Any]) -> str:
    """The same of a row that was not checked: other files are only looked at for what they share."""
    metadata, tables = row.get("metadata"), row.get("tables")
    program = metadata.get("program") if isinstance(metadata, dict) else None
    paths = [str(ref.get("path")) for ref in tables if isinstance(ref, dict)] if isinstance(tables, list) else []
    return str(program) if program else " ".join([str(row.get("question")), *paths])


def validate(path: Path) -> Report:
    """Everything that is wrong with a task file. Raises UserError for a line that cannot be read at all."""
    report = Report()
    programs: dict[str, int] = {}
    ids: dict[str, int] = {}
    for number, task in jsonl.read_numbered(path, Task):
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
            theirs = {_row_identity(row) for _, row in jsonl.iter_rows(file)}
            shared = [number for program, number in programs.items() if program in theirs]
            report.shared[file.stem] = len(shared)
            report.problems += [f"{path}, line {number}: the same program is also in {file}" for number in shared]
    return report


def _manifest_problems(folder: Path, only: Path | None = None) -> list[str]:
    """Files that are not those which the manifest of a built folder names; of the task files `only` one, if it is given."""
    path = folder / "manifest.json"
    if not path.exists():
        return [f"{path}: no such file; the build did not end, run it again"]
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        named = {f"{name}.jsonl": one["sha256"] for name, one in manifest["splits"].items()}
        for name, digest in manifest["tables"].items():
            named[name if "/" in name else f"tables/{name}"] = digest
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{path}: not a manifest of agentic build; build the folder again"]
    problems = []
    for name, digest in named.items():
        if only is not None and "/" not in name and name != only.name:
            continue
        if not (folder / name).is_file():
            problems.append(f"{folder / name}: no such file, but the manifest names it")
        elif sha256(folder / name) != digest:
            problems.append(f"{folder / name}: changed since the build (its hash is not the manifest's)")
    return problems


def run(config: ValidateConfig) -> int:
    folder = config.data if config.data.is_dir() else None
    names = (*SPLITS, "general")
    files = [f for name in names if (f := folder / f"{name}.jsonl").exists()] if folder else [config.data]
    if not files:
        raise UserError(f"{config.data}: holds none of {', '.join(f'{name}.jsonl' for name in names)}")
    reports = {file: validate(file) for file in files}
    if folder:
        manifest = _manifest_problems(folder)
    else:
        built = config.data.stem in SPLITS and config.data.with_name("manifest.json").exists()
        manifest = _manifest_problems(config.data.parent, config.data) if built else []
        if reports[config.data].problems:  # what changed is already said with its line
            manifest = [problem for problem in manifest if not problem.startswith(f"{config.data}: ")]
    problems = [problem for report in reports.values() for problem in report.problems] + manifest
    if config.json:
        said: dict[str, Any] = {file.stem: report.to_json() for file, report in reports.items()}
        shown = said | {"manifest_problems": manifest} if folder else said[config.data.stem]
        if not folder:
            shown["problems"] = problems
        print(json.dumps(shown, ensure_ascii=False, indent=2))
    else:
        for file, report in reports.items():
            _print(file, report)
        for problem in problems[:_SHOWN]:
            print(f"problem: {problem}")
        if len(problems) > _SHOWN:
            print(f"... {len(problems) - _SHOWN} more problems (--json lists all)")
        print("valid" if not problems else f"invalid: {len(problems)} problems")
    return 2 if problems else 0


def _print(file: Path, report: Report) -> None:
    print(f"{file}: {report.tasks} tasks ({', '.join(f'{n} {k}' for k, n in report.languages.items())})")
    for category, count in sorted(report.categories.items()):
        print(f"  {category}: {count}")
    for other, count in report.shared.items():
        print(f"  programs shared with {other}: {count}")
    recorded = ", ".join(f"{what} {count}" for what, count in sorted(report.recorded.items()))
    print(f"  wrong answers tried: {report.wrong_tried}" + (f" (recorded: {recorded})" if recorded else ""))
