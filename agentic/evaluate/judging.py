"""Ask a judge model about the free-text answers of an evaluation; every judgement is kept in the run folder.

A judge that is down, slow, or says anything but a verdict leaves the answer unjudged; the next run asks again.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agentic import jsonl
from agentic.config import EvalConfig
from agentic.policy.base import Conversation
from agentic.records import Task, Trajectory
from agentic.reward.judge import Case, Judge, Judgement, Judgements, needed, read_reply, request

FILE = "judgements.jsonl"
MAX_REPLY_TOKENS = 512
MAX_RETRIES = 2
GIVE_UP_AFTER = 5
"""Outages in a row after which the judge is not asked any more: a dead server must not cost a timeout an answer."""


def judge_answers(
    config: EvalConfig, tasks: Sequence[Task], trajectories: Sequence[Trajectory], folder: Path
) -> Judge | None:
    """What is known about the free-text answers of `trajectories` after asking the judge; None where there is no judge.

    Raises UserError for a base URL that cannot be used.
    """
    cases = needed(tasks, trajectories)
    if not cases:
        return None
    if config.judge_base_url is None:
        print(f"{len(cases)} free-text answers stay unjudged: name a judge with --judge_base_url and --judge_model")
        return None
    path = folder / FILE
    judgements = Judgements(config.judge_model, config.judge_tolerance, _known(path))
    left = [case for case in cases if judgements(case) is None]
    print(f"{len(cases)} free-text answers, {len(cases) - len(left)} judged already")
    if left:
        failed = asyncio.run(_ask_all(config, left, judgements, path))
        if failed:
            causes = "; ".join(f"{cause} ({count}x)" for cause, count in failed.most_common(2))
            print(f"{failed.total()} answers are unjudged: {causes}. The same command asks again.")
    return judgements


def _known(path: Path) -> list[Judgement]:
    jsonl.drop_half_line(path)
    return list(jsonl.read(path, Judgement)) if path.exists() else []


async def _ask_all(config: EvalConfig, left: list[Case], judgements: Judgements, path: Path) -> Counter[str]:
    """Ask about every case, in order of the list; returns why answers stay unjudged, with counts."""
    from agentic.policy.endpoint import EndpointPolicy

    policy = EndpointPolicy(
        str(config.judge_base_url),
        model=config.judge_model,
        api_key=os.environ.get("AGENTIC_JUDGE_API_KEY"),
        timeout_s=config.judge_timeout_s,
        max_retries=MAX_RETRIES,
        max_concurrency=config.batch_size,
    )
    failed: Counter[str] = Counter()
    queue = iter(left)
    outages = asked = 0

    async def worker() -> None:
        nonlocal outages, asked
        for case in queue:
            if outages >= GIVE_UP_AFTER:
                failed["not asked after repeated outages"] += 1
                continue
            conversation = Conversation(messages=request(case, config.judge_tolerance), tools=[])
            reply = await policy.act(conversation, MAX_REPLY_TOKENS)
            asked += 1
            if asked % max(1, len(left) // 10) == 0 or asked == len(left):
                print(f"judge: {asked}/{len(left)}", flush=True)
            if reply.finish == "error":
                outages += 1
                failed[str(reply.error)] += 1
                continue
            outages = 0
            verdict = read_reply(reply.text) if reply.finish == "stop" else None
            if verdict is None:
                failed["the judge's reply is no verdict"] += 1
                continue
            key = case.key(config.judge_model, config.judge_tolerance)
            judgement = Judgement(key=key, correct=verdict[0], reason=verdict[1])
            judgements.add(judgement)
            jsonl.append(path, judgement)

    try:
        await asyncio.gather(*(worker() for _ in range(min(config.batch_size, len(left)))))
    finally:
        await policy.close()
    return failed
