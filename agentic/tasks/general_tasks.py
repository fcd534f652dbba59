"""Tasks from the general question programs: over generated tables (training) or over a user's files (tests, checks)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from agentic import jsonl
from agentic.config import QuestionsConfig
from agentic.errors import UserError
from agentic.records import TableRef, Task
from agentic.tables.card import load_tables, table_refs
from agentic.tasks.expert import Script, Step, execute_scripts, python_step, with_mistake, with_wrong_value
from agentic.tasks.general import KINDS, GeneralQuestion, draw_question
from agentic.tasks.progress import progress
from agentic.tasks.random_tables import random_table

MISTAKE_RATE = 0.12
WRONG_VALUE_RATE = 0.15
"""Of the questions that name a text value: cells that first spell it wrong, and repair it after the hint."""
_CHINESE_TABLES = 0.15
_CHINESE_QUESTIONS_ON_ENGLISH_TABLES = 0.08


def general_task(task_id: str, found: GeneralQuestion, ref: TableRef, language: str) -> Task:
    return Task(
        id=task_id,
        question=found.question,
        language="zh" if language == "zh" else "en",
        tables=[ref],
        tools=["python_executor"],
        expected_tools=["python_executor"],
        answer=found.answer,
        checks=[found.check],
        max_turns=6,
        metadata={
            "task_type": "general",
            "category": found.kind,
            "difficulty": "easy",
            "program": f"{ref.path}:{found.program}",
        },
    )


def script_of(
    task: Task, found: GeneralQuestion, base_dir: Path, rng: random.Random, frame: pd.DataFrame | None = None
) -> Script:
    """`frame`: the table, where some experts are to make a mistake first."""
    steps = [python_step(found.code), Step(found.answer)]
    wrong = None
    if frame is not None:
        if rng.random() < MISTAKE_RATE:
            wrong = with_mistake(found.code, found.columns, map(str, frame.columns), rng)
        elif rng.random() < WRONG_VALUE_RATE:
            wrong = with_wrong_value(found.code, frame, rng)
    if wrong is not None:
        steps.insert(0, python_step(wrong, mistake=True))
    return Script(task, base_dir, steps)


def generated_scripts(output_dir: Path, count: int, seed: int, language: str, per_table: int = 8) -> Iterator[Script]:
    """`count` questions over random tables written to output_dir/general_tables, `per_table` each, all programs distinct."""
    folder = output_dir / "general_tables"
    folder.mkdir(parents=True, exist_ok=True)
    made = 0
    number = 0
    while made < count:
        rng = random.Random(f"general-{seed}-{number}")
        table_language = "zh" if language == "zh" or (language == "both" and rng.random() < _CHINESE_TABLES) else "en"
        name = f"t{number:05d}.csv"
        number += 1
        random_table(rng, table_language).to_csv(folder / name, index=False)
        ref = TableRef(name="df", path=f"general_tables/{name}")
        frame = load_tables([ref], output_dir)["df"].frame
        seen: set[str] = set()
        for _ in range(per_table * 6):
            if len(seen) == per_table or made == count:
                break
            spoken = table_language
            if language == "both" and table_language == "en" and rng.random() < _CHINESE_QUESTIONS_ON_ENGLISH_TABLES:
                spoken = "zh"
            found = draw_question(frame, rng, spoken)
            if found is None or found.program in seen:
                continue
            seen.add(found.program)
            task = general_task(f"general-{seed}-{made:06d}", found, ref, spoken)
            made += 1
            yield script_of(task, found, output_dir, rng, frame)


def questions_over(files: list[Path], count: int, seed: int, language: str = "en") -> list[Script]:
    """About `count` questions spread evenly over `files` and over the kinds each file allows; no two alike."""
    if count < 1:
        raise UserError(f"--count must be at least 1, found {count}")
    scripts: list[Script] = []
    stems: Counter[str] = Counter()
    for position, file in enumerate(files):
        wanted = count // len(files) + (position < count % len(files))
        rng = random.Random(f"questions-{seed}-{file.name}")
        ref = table_refs([file])[0]
        stem = file.name.split(".")[0]
        stems[stem] += 1
        if stems[stem] > 1:  # another folder's file of that name, or the same one given twice
            stem = f"{stem}~{stems[stem]}"
        frame = load_tables([ref], Path())["df"].frame
        seen: set[str] = set()
        kinds: list[str] = []
        for _ in range(wanted * 60):
            if len(seen) == wanted:
                break
            if not kinds:
                kinds = rng.sample(list(KINDS), len(KINDS))
            spoken = rng.choice(["en", "zh"]) if language == "both" else language
            found = draw_question(frame, rng, spoken, kinds.pop())
            if found is None or found.program in seen:
                continue
            seen.add(found.program)
            task = general_task(f"{stem}-{len(seen):03d}", found, ref, spoken)
            scripts.append(script_of(task, found, Path(), rng))
    return scripts


def run(config: QuestionsConfig) -> int:
    jsonl.check_output(config.output)
    scripts = questions_over(list(config.files), config.count, config.seed, config.language)
    if not scripts:
        named = ", ".join(map(str, config.files)) or "no file given"
        raise UserError(f"{named}: no question fits; give files that have columns with numbers or repeated values")
    with progress("executing") as report:
        tasks, dropped = execute_scripts(scripts, progress=report)
    if not tasks:
        raise UserError(f"{config.output}: not written, no question could be executed ({next(iter(dropped.values()))})")
    jsonl.write(config.output, tasks)
    print(f"{config.output}: {len(tasks)} questions over {len(config.files)} files, {len(dropped)} dropped")
    for task_id, reason in list(dropped.items())[:5]:
        print(f"  dropped {task_id}: {reason}")
    return 0
