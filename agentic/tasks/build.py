"""`agentic build`: tables, tasks with executed gold, expert trajectories, disjoint splits, manifest."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import Counter
from pathlib import Path

import pandas as pd

from agentic import __version__, jsonl
from agentic.config import BuildConfig
from agentic.errors import UserError
from agentic.records import TableRef, Task
from agentic.run_folder import write_json
from agentic.tables.card import load_tables
from agentic.tasks.draw import Unfit
from agentic.tasks.expert import Script, Step, execute_scripts, python_step, with_mistake
from agentic.tasks.general_tasks import MISTAKE_RATE, generated_scripts
from agentic.tasks.metrics import METRICS
from agentic.tasks.ops import OpsQuestion, draw_program, realise
from agentic.tasks.progress import progress
from agentic.tasks.store import DESCRIPTIONS, build_store
from agentic.tools.parse import render_call

SPLITS = ("train", "dev", "test")


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    frame.to_csv(temporary, index=False)
    os.replace(temporary, path)


def ops_questions(
    tables: dict[str, pd.DataFrame], count: int, seed: int, language: str
) -> list[tuple[OpsQuestion, str]]:
    """`count` questions with distinct canonical programs, and their languages. Deterministic in `seed`."""
    rng = random.Random(f"ops-{seed}")
    found: dict[str, tuple[OpsQuestion, str]] = {}
    for _ in range(count * 40):
        if len(found) == count:
            break
        spoken = rng.choice(["en", "zh"]) if language == "both" else language
        try:
            question = realise(draw_program(rng), tables, rng, spoken)
        except Unfit:
            continue
        found.setdefault(question.program.canonical, (question, spoken))
    if len(found) < count:
        raise UserError(f"only {len(found)} distinct programs found for {count} tasks; ask for fewer")
    return list(found.values())


def ops_script(
    number: int, question: OpsQuestion, language: str, split: str, output_dir: Path, rng: random.Random
) -> Script:
    """The expert: look the definition up, compute, for a what-if calculate, answer."""
    program = question.program
    tools = ["retriever", "python_executor"] + (["calculator"] if question.calculation else [])
    task = Task(
        id=f"ops-{split}-{number:06d}",
        question=question.question,
        language="zh" if language == "zh" else "en",
        tables=[
            TableRef(name=name, path=f"tables/{name}.csv", description=text) for name, text in DESCRIPTIONS.items()
        ],
        documents=question.documents,
        tools=["python_executor", "retriever", "calculator"],
        expected_tools=tools,
        answer=question.answer,
        checks=[question.check],
        max_turns=8,
        metadata={
            "task_type": "ops",
            "category": program.operation,
            "difficulty": "medium" if len(program.metric.tables) > 1 or question.calculation else "easy",
            "metric": program.metric.id,
            "program": program.canonical,
        },
    )
    steps = [Step(render_call("retriever", {"query": question.query}))]
    columns = tuple(term.split(".")[1] for term in program.metric.numerator)
    wrong = (
        with_mistake(question.code, columns, (), rng) if split == "train" and rng.random() < MISTAKE_RATE / 2 else None
    )
    if wrong is not None:
        steps.append(python_step(wrong, mistake=True))
    steps.append(python_step(question.code))
    if question.calculation is not None:
        template = question.calculation

        def calculation(observation: str) -> str:
            return render_call("calculator", {"expression": f"round({template.format(value=observation.strip())}, 4)"})

        steps.append(Step(calculation))
    steps.append(Step(question.answer))
    return Script(task, output_dir, steps)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(config: BuildConfig) -> int:
    started = time.monotonic()
    sizes = {"train": config.train_size, "dev": config.dev_size, "test": config.test_size}
    if min(*sizes.values(), config.general_size) < 0 or not any(sizes.values()):
        raise UserError("the sizes must not be negative, and train_size, dev_size and test_size not all zero")
    if config.workers < 1:
        raise UserError(f"--workers must be at least 1, found {config.workers}")
    output = config.output_dir
    try:
        (output / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output}: cannot write there ({error.strerror}); choose another --output_dir") from None
    # A folder without a manifest is half built: the tables are about to change under the tasks of an earlier build.
    (output / "manifest.json").unlink(missing_ok=True)
    for name, frame in build_store(config.seed).items():
        _write_csv(frame, output / "tables" / f"{name}.csv")
    refs = [TableRef(name=name, path=f"tables/{name}.csv") for name in DESCRIPTIONS]
    # Gold is computed on what the agent will read, not on what was in memory before it was written.
    tables = {name: table.frame for name, table in load_tables(refs, output).items()}
    questions = ops_questions(tables, sum(sizes.values()), config.seed, config.language)
    random.Random(f"split-{config.seed}").shuffle(questions)
    scripts: dict[str, list[Script]] = {}
    start = 0
    for split in SPLITS:
        rng = random.Random(f"expert-{config.seed}-{split}")
        part = questions[start : start + sizes[split]]
        start += sizes[split]
        scripts[split] = [ops_script(i, asked, spoken, split, output, rng) for i, (asked, spoken) in enumerate(part)]
    if config.general_size:
        scripts["general"] = list(generated_scripts(output, config.general_size, config.seed, config.language))
    with progress("executing") as report:
        together = [script for group in scripts.values() for script in group]
        tasks, dropped = execute_scripts(together, concurrency=config.workers, progress=report)
    certified = {task.id: task for task in tasks}
    counts: dict[str, dict[str, object]] = {}
    for name, group in scripts.items():
        kept = [certified[script.task.id] for script in group if script.task.id in certified]
        counts[name] = _write(kept, output / f"{name}.jsonl")
    manifest = {
        "format_version": 1,
        "version": __version__,
        "seed": config.seed,
        "language": config.language,
        "metrics": len(METRICS),
        "splits": counts,
        "dropped": dropped,
        "tables": {f"{name}.csv": _sha256(output / "tables" / f"{name}.csv") for name in DESCRIPTIONS},
    }
    write_json(output / "manifest.json", manifest)
    total = sum(int(str(one["tasks"])) for one in counts.values())
    print(f"{output}: {total} certified, {len(dropped)} dropped, {time.monotonic() - started:.0f} s")
    for name, one in counts.items():
        print(f"  {name}: {one['tasks']} tasks")
    for task_id, reason in list(dropped.items())[:5]:
        print(f"  dropped {task_id}: {reason}")
    return 0 if all(one["tasks"] for name, one in counts.items() if sizes.get(name, 1)) else 1


def _write(tasks: list[Task], path: Path) -> dict[str, object]:
    """Write one task file; returns what the manifest says of it."""
    jsonl.write(path, tasks)
    return {
        "tasks": len(tasks),
        "sha256": _sha256(path),
        "programs": len({task.metadata["program"] for task in tasks}),
        "languages": dict(Counter(task.language for task in tasks)),
        "categories": dict(sorted(Counter(str(task.metadata["category"]) for task in tasks).items())),
    }
