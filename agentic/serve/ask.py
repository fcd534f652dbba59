"""`agentic ask`: one question about the user's files, with the card, the turns, the code and the answer."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Literal

from agentic import jsonl
from agentic.config import AskConfig
from agentic.data_analysis_env import prompt_messages
from agentic.errors import UserError
from agentic.policy.load import load_policy
from agentic.records import ObservationStatus, StopReason, Task, Trajectory
from agentic.rollout import RolloutLimits, run_episode
from agentic.sandbox import Sandbox
from agentic.tables.card import load_tables, show, split_databases, table_refs
from agentic.tools.base import TOOLS

_CHINESE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

_ENDED = {
    StopReason.MAX_TURNS: "no answer: the agent used all its turns (--max-turns allows more)",
    StopReason.MAX_TOKENS: "no answer: the agent used its whole token budget",
    StopReason.TRUNCATED: "no answer: a turn was cut at the token limit",
    StopReason.PARSE_ERROR: "no answer: the model made no valid call",
    StopReason.VOID: "no answer: the model wrote nothing that could be run",
    StopReason.DEADLINE: "no answer: out of time",
    StopReason.SANDBOX_LOST: "no answer: the Python session was lost",
}


def question_language(question: str) -> Literal["en", "zh"]:
    """zh when the question has at least as many Chinese characters as Latin words: a name alone does not decide."""
    latin = re.findall(r"[A-Za-z]+", question)
    chinese = _CHINESE.findall(question)
    return "zh" if chinese and len(chinese) >= len(latin) else "en"


def ask_task(config: AskConfig) -> tuple[Task, list[str]]:
    """The task of a question, and what was assumed while reading the files.

    Raises UserError for an empty question and for bad files, before any model loads.
    """
    question, files = config.question, list(config.files)
    # os.path and not Path: a question can be longer than a file name may be.
    if files and os.path.isfile(question) and not os.path.exists(files[-1]):
        # `agentic ask sales.csv "question"` is typed as often as the documented order.
        question, files = str(files[-1]), [Path(question), *files[:-1]]
    if not question.strip():
        raise UserError('the question is empty; ask for example: agentic ask "how many rows are there?" sales.csv')
    if not files:
        raise UserError(f'no file given; try: agentic ask "{question}" sales.csv')
    if config.max_turns < 1:
        raise UserError(f"--max_turns must be at least 1, found {config.max_turns}")
    files, databases = split_databases(files)
    refs = table_refs(files)
    tables = load_tables(refs, Path())
    notes = [f"{ref.description}: {note}" for ref in refs for note in tables[ref.name].notes]
    language = question_language(question)
    tools = ["python_executor"]
    if databases:
        tools.insert(1 if refs else 0, "sql_executor")
    if databases and config.endpoint is None and config.model is None:
        notes.append("the shipped model was not trained on SQL; a larger model (--endpoint, --model) answers better")
    task = Task(
        id="ask",
        question=question,
        language=language,
        tables=refs,
        databases=databases,
        tools=tools,
        max_turns=config.max_turns,
    )
    return task, notes


async def _episode(task: Task, config: AskConfig) -> Trajectory:
    policy = load_policy(
        model=config.model,
        endpoint=config.endpoint,
        endpoint_model=config.endpoint_model,
        tool_mode=config.tool_mode,
        batch_size=1,
    )
    sandbox = Sandbox()  # its process starts with the first cell
    try:
        return await run_episode(task, Path(), policy, sandbox, RolloutLimits(dialect=config.dialect))
    finally:
        await sandbox.close()
        await policy.close()


def show_turns(trajectory: Trajectory) -> None:
    """Turns, code and observations on standard output."""
    for number, turn in enumerate(trajectory.turns, start=1):
        for action in turn.actions:
            if action.kind == "tool":
                body = str(action.arguments.get(TOOLS[str(action.name)].required[0], ""))
                print(f"[{number}] {action.name}")
                show("\n".join(f"    {line}" for line in body.splitlines()))
            elif action.kind == "invalid":
                show(f"[{number}] not a valid call: {action.error}")
            elif trajectory.answer is None:
                show(f"[{number}] cut: {action.answer}")
        for observation in turn.observations:
            show("\n".join(f"  > {line}" for line in observation.text.splitlines()))


def run(config: AskConfig) -> int:
    task, notes = ask_task(config)
    if not config.json:
        show(prompt_messages(task, Path())[1].content.removesuffix(f"\nQuestion: {task.question}"))
        for note in notes:
            show(f"note: {note}")
        show(f"\nQuestion: {task.question}")
        if config.endpoint is None:
            print("(loading the model ...)", file=sys.stderr)
        sys.stdout.flush()
    # A chat with one user needs no tokenizer threads, and the warning about them would hide the answer.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    trajectory = asyncio.run(_episode(task, config))
    if trajectory.stop_reason == StopReason.POLICY_ERROR:
        raise UserError(str(trajectory.error))
    if config.json:
        tables = [ref.path for ref in task.tables]
        databases = [ref.path for ref in task.databases]
        row = trajectory.model_dump(mode="json", exclude_none=True)
        print(jsonl.dumps({"question": task.question, "tables": tables, "databases": databases, "notes": notes, **row}))
        return 0 if trajectory.answer is not None else 1
    show_turns(trajectory)
    if trajectory.answer is None:
        why = f" ({trajectory.error})" if trajectory.error else ""
        show(f"\n{_ENDED[trajectory.stop_reason]}{why}")
        return 1
    show(f"\nAnswer: {trajectory.answer}")
    if any(o.status == ObservationStatus.OK for turn in trajectory.turns for o in turn.observations):
        print("(unchecked: computed by the code above, not recomputed by a second engine)")
    else:
        print("(unsupported: no code ran without an error, so nothing above computed this answer; do not rely on it)")
    return 0
