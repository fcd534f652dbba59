"""`agentic eval`: a model, an endpoint, a prediction file or the oracle on a task file."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from agentic import jsonl
from agentic.config import EvalConfig
from agentic.errors import UserError
from agentic.evaluate.metrics import Summary, summarise
from agentic.evaluate.predictions import read_predictions
from agentic.evaluate.report import bad_cases, print_table
from agentic.policy.base import Policy
from agentic.policy.load import load_policy
from agentic.policy.replay import ReplayPolicy
from agentic.records import StopReason, Task, Trajectory
from agentic.rollout import RolloutLimits, run_episodes
from agentic.run_folder import open_run
from agentic.sandbox import Sandbox


def read_tasks(path: Path, limit: int | None = None) -> list[Task]:
    """All tasks of a file; ids must be unique."""
    tasks: dict[str, Task] = {}
    for task in jsonl.read(path, Task):
        if task.id in tasks:
            raise UserError(f"{path}: task id {task.id!r} occurs twice; ids must be unique")
        tasks[task.id] = task
        if limit is not None and len(tasks) == limit:
            break
    if not tasks:
        raise UserError(f"{path}: no tasks in this file")
    return list(tasks.values())


def _policy(config: EvalConfig, tasks: list[Task]) -> Policy:
    if config.replay == "oracle":
        return ReplayPolicy.oracle(tasks)
    if config.replay == "empty":
        return ReplayPolicy.empty()
    return load_policy(
        model=config.model,
        endpoint=config.endpoint,
        endpoint_model=config.endpoint_model,
        tool_mode=config.tool_mode,
        temperature=config.temperature,
        seed=config.seed,
        batch_size=config.batch_size,
    )


def _finished(path: Path, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], Trajectory]:
    """Trajectories of an earlier, interrupted run; failures of the policy (outages) are run again."""
    if not path.exists():
        return {}
    # A run killed while writing leaves half a line at the end: that episode is run again.
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])
    done = {}
    for trajectory in jsonl.read(path, Trajectory):
        key = (trajectory.task_id, trajectory.sample)
        if key in wanted and trajectory.stop_reason not in {StopReason.POLICY_ERROR, StopReason.SANDBOX_LOST}:
            done[key] = trajectory
    return done


async def _run(config: EvalConfig, tasks: list[Task], path: Path) -> list[Trajectory]:
    base_dir = config.data.resolve().parent
    by_id = {task.id: task for task in tasks}
    wanted = [(task.id, sample) for sample in range(config.samples) for task in tasks]
    done = _finished(path, set(wanted))
    # Rewrite what is kept, so that a file never holds two lines for one episode.
    jsonl.write(path, done.values())
    left = [key for key in wanted if key not in done]
    if done:
        print(f"{len(done)} of {len(wanted)} trajectories are already there, {len(left)} to go")
    if not left:
        return [done[key] for key in wanted]
    policy = _policy(config, tasks)
    limits = RolloutLimits(
        max_new_tokens=config.max_new_tokens, deadline_s=config.deadline_s, concurrency=config.batch_size
    )

    def source() -> Iterator[tuple[Task, Path, int]]:
        for task_id, sample in left:
            yield by_id[task_id], base_dir, sample

    started = time.monotonic()
    try:
        async with Sandbox() as sandbox:
            async for trajectory in run_episodes(source(), policy, sandbox, limits):
                done[(trajectory.task_id, trajectory.sample)] = trajectory
                jsonl.append(path, trajectory)
                count = len(done) - (len(wanted) - len(left))
                if count % max(1, len(left) // 20) == 0 or count == len(left):
                    correct = sum(t.parts.get("task_success", 0.0) for t in done.values())
                    rate = count / (time.monotonic() - started)
                    print(
                        f"{len(done)}/{len(wanted)} success {correct / len(done):.3f} "
                        f"{rate:.2f}/s, {(len(left) - count) / rate:.0f} s left",
                        flush=True,
                    )
    finally:
        await policy.close()
    return [done[key] for key in wanted]


def evaluate(config: EvalConfig) -> tuple[Summary, list[Task], list[Trajectory]]:
    """Run or read the trajectories and summarise them; writes the run folder."""
    chosen = [name for name in ("model", "endpoint", "pred", "replay") if getattr(config, name) is not None]
    if len(chosen) > 1:
        raise UserError(f"choose one of --model, --endpoint, --pred and --replay, not {' and '.join(chosen)}")
    tasks = read_tasks(config.data, config.limit)
    open_run(config.output_dir, config, "eval", may_change={"limit", "batch_size", "deadline_s"})
    if config.pred is not None:
        trajectories = read_predictions(config.pred, tasks)
    else:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        trajectories = asyncio.run(_run(config, tasks, config.output_dir / "trajectories.jsonl"))
    summary = summarise(tasks, trajectories, seed=config.seed)
    text = json.dumps(summary.to_json(), ensure_ascii=False, indent=2) + "\n"
    (config.output_dir / "metrics.json").write_text(text, encoding="utf-8")
    jsonl.write(config.output_dir / "bad_cases.jsonl", bad_cases(tasks, trajectories))
    return summary, tasks, trajectories


def label(config: EvalConfig) -> str:
    for value in (config.model, config.endpoint_model if config.endpoint else None, config.replay, config.pred):
        if value is not None:
            return Path(str(value)).name
    return "default"


def run(config: EvalConfig) -> int:
    summary, _, _ = evaluate(config)
    print_table({label(config): summary}, Console())
    print(f"written: {config.output_dir}/trajectories.jsonl, metrics.json, bad_cases.jsonl")
    return 0
