"""`agentic ask`: one question about the user's files, with the card, the turns, the code and the answer."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from agentic import jsonl
from agentic.config import AskConfig
from agentic.data_analysis_env import prompt_messages
from agentic.errors import UserError
from agentic.policy.load import load_policy
from agentic.records import StopReason, Task, Trajectory
from agentic.rollout import run_episode
from agentic.sandbox import Sandbox
from agentic.tables.card import load_tables, table_refs

_ENDED = {
    StopReason.MAX_TURNS: "no answer: the agent used all its turns (--max-turns allows more)",
    StopReason.MAX_TOKENS: "no answer: the agent used its whole token budget",
    StopReason.TRUNCATED: "no answer: a turn was cut at the token limit",
    StopReason.PARSE_ERROR: "no answer: the model made no valid call",
    StopReason.VOID: "no answer: the model wrote nothing that could be run",
    StopReason.DEADLINE: "no answer: out of time",
    StopReason.SANDBOX_LOST: "no answer: the Python session was lost",
}


def ask_task(config: AskConfig) -> tuple[Task, list[str]]:
    """The task of a question, and what was assumed while reading the files. UserError for bad files, before any model loads."""
    question, files = config.question, list(config.files)
    if Path(question).is_file() and files and not files[-1].exists():
        # `agentic ask sales.csv "question"` is typed as often as the documented order.
        question, files = str(files[-1]), [Path(question), *files[:-1]]
    if not question.strip():
        raise UserError('the question is empty; ask for example: agentic ask "how many rows are there?" sales.csv')
    if not files:
        raise UserError(f'no file given; try: agentic ask "{question}" sales.csv')
    refs = table_refs(files)
    tables = load_tables(refs, Path())
    notes = [f"{ref.description}: {note}" for ref in refs for note in tables[ref.name].notes]
    language = "zh" if any("\u4e00" <= character <= "\u9fff" for character in question) else "en"
    return Task(id="ask", question=question, language=language, tables=refs, max_turns=config.max_turns), notes


async def _episode(task: Task, config: AskConfig) -> Trajectory:
    policy = load_policy(
        model=config.model,
        endpoint=config.endpoint,
        endpoint_model=config.endpoint_model,
        tool_mode=config.tool_mode,
        batch_size=1,
    )
    try:
        async with Sandbox() as sandbox:
            return await run_episode(task, Path(), policy, sandbox)
    finally:
        await policy.close()


def show(trajectory: Trajectory) -> None:
    """Turns, code, observations on standard output; plain text, so that what a model wrote cannot act as markup."""
    for number, turn in enumerate(trajectory.turns, start=1):
        for action in turn.actions:
            if action.kind == "tool":
                body = str(next(iter(action.arguments.values()), ""))
                print(f"[{number}] {action.name}")
                print("\n".join(f"    {line}" for line in body.splitlines()))
            elif action.kind == "invalid":
                print(f"[{number}] not a valid call: {action.error}")
        for observation in turn.observations:
            print("\n".join(f"  > {line}" for line in observation.text.splitlines()))


def run(config: AskConfig) -> int:
    task, notes = ask_task(config)
    if not config.json:
        print(prompt_messages(task, Path())[1].content.rsplit("\nQuestion: ", 1)[0])
        for note in notes:
            print(f"note: {note}")
        print(f"\nQuestion: {task.question}", flush=True)
        if config.endpoint is None:
            print("(loading the model ...)", file=sys.stderr)
    # A chat with one user needs no tokenizer threads, and the warning about them would hide the answer.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    trajectory = asyncio.run(_episode(task, config))
    if trajectory.stop_reason == StopReason.POLICY_ERROR:
        raise UserError(str(trajectory.error))
    if config.json:
        row = trajectory.model_dump(mode="json", exclude_none=True)
        print(jsonl.dumps({"question": task.question, "tables": [ref.path for ref in task.tables], "notes": notes, **row}))
    else:
        show(trajectory)
        print(f"\nAnswer: {trajectory.answer}" if trajectory.answer is not None else f"\n{_ENDED[trajectory.stop_reason]}")
        print("(unchecked: computed by the code above, not recomputed by a second engine)" if trajectory.answer else "")
    return 0 if trajectory.answer is not None else 1
