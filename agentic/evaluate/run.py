"""`agentic eval`: a model, an endpoint, a prediction file or the oracle on a task file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from rich.console import Console

from agentic import jsonl
from agentic.config import EvalConfig
from agentic.data_analysis_env import task_tools
from agentic.errors import UserError
from agentic.evaluate.judging import judge_answers
from agentic.evaluate.metrics import Summary, summarise
from agentic.evaluate.predictions import read_predictions
from agentic.evaluate.report import bad_cases, print_table
from agentic.model import fetch
from agentic.model.card import read_facts, write_card
from agentic.policy.base import Policy
from agentic.policy.endpoint import check_url
from agentic.policy.load import load_policy
from agentic.policy.replay import ReplayPolicy
from agentic.records import StopReason, Task, Trajectory
from agentic.reward.judge import Judge
from agentic.reward.trajectory import record_score
from agentic.rollout import RolloutLimits, run_episodes
from agentic.run_folder import only_writer, open_run, write_json
from agentic.sandbox import Sandbox
from agentic.tools.dialect import in_react


def read_tasks(path: Path) -> list[Task]:
    """All tasks of a file. Raises UserError for a broken line, a repeated id, or a file without tasks."""
    tasks: dict[str, Task] = {}
    for task in jsonl.read(path, Task):
        if task.id in tasks:
            raise UserError(f"{path}: task id {task.id!r} occurs twice; ids must be unique")
        tasks[task.id] = task
    if not tasks:
        raise UserError(f"{path}: no tasks in this file")
    return list(tasks.values())


def _check_options(config: EvalConfig) -> None:
    chosen = [name for name in ("model", "endpoint", "weight", "pred", "replay") if getattr(config, name) is not None]
    if len(chosen) > 1:
        raise UserError(f"choose one of --model, --endpoint, --weight, --pred and --replay, not {' and '.join(chosen)}")
    for name in ("limit", "samples", "max_new_tokens", "batch_size"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be at least 1, found {value}")
    if config.card is not None and config.model is None:
        raise UserError("--card needs --model: the score is written into that folder's card")
    if config.deadline_s <= 0 or config.temperature < 0:
        raise UserError("--deadline_s must be above 0 and --temperature not below 0")
    if config.judge_base_url is not None:
        check_url(config.judge_base_url)  # before the hours of the run, not after
    if config.judge_timeout_s <= 0 or not 0 <= config.judge_tolerance < 1:
        raise UserError("--judge_timeout_s must be above 0 and --judge_tolerance from 0 to below 1 (0.03 is 3 %)")


def _check_tasks(path: Path, tasks: list[Task]) -> None:
    """Raise UserError for what would end a run half-way: unknown tools and missing tables. Before any model loads."""
    for task in tasks:
        task_tools(task)
        for ref in task.tables:
            if not os.path.isfile(path.parent / ref.path):
                raise UserError(f"{path}: task {task.id}: table {path.parent / ref.path} does not exist")


def _policy(config: EvalConfig, tasks: list[Task]) -> Policy:
    if config.replay == "oracle":
        if config.dialect == "react":
            tasks = [t.model_copy(update={"expert_trajectory": in_react(t.expert_trajectory)}) for t in tasks]
        return ReplayPolicy.oracle(tasks)
    if config.replay == "empty":
        return ReplayPolicy.empty()
    model = config.model
    if config.weight is not None:
        from agentic.model.searchlm.commands import folder_of_weight

        model = str(folder_of_weight(config.weight, config.save_dir, config.model_profile, config.tokenizer))
    return load_policy(
        model=model,
        endpoint=config.endpoint,
        endpoint_model=config.endpoint_model,
        tool_mode=config.tool_mode,
        temperature=config.temperature,
        seed=config.seed,
        batch_size=config.batch_size,
    )


def _finished(path: Path) -> dict[tuple[str, int], Trajectory]:
    """Trajectories of an earlier, interrupted run; failures of the policy (outages) or the sandbox are run again."""
    if not path.exists():
        return {}
    # A run killed while writing leaves half a line at the end: that episode is run again.
    jsonl.drop_half_line(path)
    failed = {StopReason.POLICY_ERROR, StopReason.SANDBOX_LOST}
    return {(t.task_id, t.sample): t for t in jsonl.read(path, Trajectory) if t.stop_reason not in failed}


async def _run(config: EvalConfig, tasks: list[Task], path: Path) -> list[Trajectory]:
    """Run what is missing in the trajectory file at `path`; returns the wanted trajectories, whenever they were run."""
    base_dir = config.data.resolve().parent
    by_id = {task.id: task for task in tasks}
    wanted = [(task.id, sample) for sample in range(config.samples) for task in tasks]
    done = _finished(path)
    for trajectory in done.values():
        if trajectory.task_id in by_id:
            record_score(by_id[trajectory.task_id], trajectory, config.reward)  # the preset may be another one now
    # Rewritten, so that a file never holds two lines for one episode. What a smaller --limit leaves out stays.
    jsonl.write(path, done.values())
    left = [key for key in wanted if key not in done]
    if len(left) < len(wanted):
        print(f"{len(wanted) - len(left)} of {len(wanted)} trajectories are already there, {len(left)} to go")
    if done:
        policy = _policy(config, tasks)
        stale = next((t for t in done.values() if t.policy_version != policy.version), None)
        if stale is not None or not left:
            await policy.close()
        if stale is not None:
            raise UserError(
                f"{path}: holds trajectories of other weights under this name (task {stale.task_id}); "
                "name another --output_dir, or remove this one"
            )
        if not left:
            return [done[key] for key in wanted]
    else:
        policy = _policy(config, tasks)
    limits = RolloutLimits(
        max_new_tokens=config.max_new_tokens,
        deadline_s=config.deadline_s,
        concurrency=config.batch_size,
        dialect=config.dialect,
        reward=config.reward,
    )

    def source() -> Iterator[tuple[Task, Path, int]]:
        for task_id, sample in left:
            yield by_id[task_id], base_dir, sample

    show = _Progress(len(wanted), [done[key] for key in wanted if key in done])
    sandbox = Sandbox()  # its process starts with the first cell
    try:
        async with aclosing(run_episodes(source(), policy, sandbox, limits)) as trajectories:
            async for trajectory in trajectories:
                jsonl.append(path, trajectory)
                done[(trajectory.task_id, trajectory.sample)] = trajectory
                show(trajectory)
    finally:
        await sandbox.close()
        await policy.close()
    return [done[key] for key in wanted]


class _Progress:
    """A line for about every twentieth of the trajectories: success so far, rate, time left."""

    def __init__(self, wanted: int, earlier: list[Trajectory]) -> None:
        self._wanted, self._earlier, self._count = wanted, len(earlier), 0
        self._right = sum(trajectory.parts.get("task_success", 0.0) for trajectory in earlier)
        self._unjudged = sum(trajectory.reward is None for trajectory in earlier)
        self._started = time.monotonic()

    def __call__(self, trajectory: Trajectory) -> None:
        self._count += 1
        self._right += trajectory.parts.get("task_success", 0.0)
        self._unjudged += trajectory.reward is None
        done = self._earlier + self._count
        left = self._wanted - done
        if self._count % max(1, (self._wanted - self._earlier) // 20) == 0 or left == 0:
            rate = self._count / max(time.monotonic() - self._started, 1e-6)
            judged = done - self._unjudged
            success = f"success {self._right / judged:.3f}" if judged else "not judged yet"
            print(f"{done}/{self._wanted} {success} {rate:.2f}/s, {left / rate:.0f} s left", flush=True)


def evaluate(config: EvalConfig) -> tuple[Summary, list[Task], list[Trajectory]]:
    """Run or read the trajectories and summarise them; writes the run folder.

    Interrupted at any point, it continues from what is in trajectories.jsonl.
    """
    _check_options(config)
    for option in ("output", "json_output", "bad_cases_output"):
        path = getattr(config, option)
        if path is not None:
            jsonl.check_output(path, f"--{option}")
    known = read_tasks(config.data)
    tasks = known[: config.limit]
    # Trajectories of other questions under the same ids must not pass for finished.
    facts = {"data_sha256": hashlib.sha256(config.data.read_bytes()).hexdigest()}
    may_change = {"card", "limit", "batch_size", "deadline_s", "output", "json_output", "bad_cases_output", "reward"}
    may_change |= {"judge_base_url", "judge_model", "judge_tolerance", "judge_timeout_s"}  # in each judgement's key
    path = config.output_dir / "trajectories.jsonl"
    if config.pred is not None:
        # All ids of the file are known ones, also those beyond --limit.
        chosen = {task.id for task in tasks}
        trajectories = [t for t in read_predictions(config.pred, known) if t.task_id in chosen]
    else:
        _check_tasks(config.data.resolve(), tasks)
    # A folder without a trajectory holds nothing that could be mixed up: a mistyped model name does not occupy it.
    empty = not path.exists() or path.stat().st_size == 0
    folder = open_run(config.output_dir, config, "eval", may_change, facts=facts, restart=empty)
    if config.pred is None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with only_writer(folder.path):
            trajectories = asyncio.run(_run(config, tasks, path))
    judge = _judged(config, tasks, trajectories, folder.path)
    summary = summarise(tasks, trajectories, seed=config.seed, preset=config.reward, judge=judge)
    bad = bad_cases(tasks, trajectories, judge)
    folder.write_json("metrics.json", summary.to_json())
    jsonl.write(folder.path / "bad_cases.jsonl", bad)
    if config.json_output is not None:
        config.json_output.parent.mkdir(parents=True, exist_ok=True)
        write_json(config.json_output, summary.to_json())
    if config.bad_cases_output is not None:
        jsonl.write(config.bad_cases_output, bad)
    if config.output is not None:
        jsonl.write(config.output, trajectories)
    return summary, tasks, trajectories


def _judged(config: EvalConfig, tasks: list[Task], trajectories: list[Trajectory], folder: Path) -> Judge | None:
    """Ask the judge, if there is something to judge, and write the rewards that follow into the trajectories."""
    with only_writer(folder):
        judge = judge_answers(config, tasks, trajectories, folder)
        if judge is not None and config.pred is None:
            by_id = {task.id: task for task in tasks}
            for trajectory in trajectories:
                record_score(by_id[trajectory.task_id], trajectory, config.reward, judge)
            path = folder / "trajectories.jsonl"
            scored = {(t.task_id, t.sample): t for t in [*jsonl.read(path, Trajectory), *trajectories]}
            jsonl.write(path, scored.values())
    return judge


def label(config: EvalConfig) -> str:
    served = config.endpoint_model if config.endpoint else None
    for value in (config.model, served, config.weight, config.replay, config.pred):
        if value is not None:
            return Path(str(value)).name
    return "default"


def run(config: EvalConfig) -> int:
    summary, _, _ = evaluate(config)
    print_table({label(config): summary}, Console())
    if config.card is not None:
        folder = Path(fetch.resolve(str(config.model)))
        if (success := summary.metrics.get("task_success")) is None:
            raise UserError(
                "no answer was judged, so there is no score for the card; give --judge_base_url and run again"
            )
        of = f"of {summary.tasks} tasks" + (f", {summary.unjudged} unjudged" if summary.unjudged else "")
        text = f"{success.mean:.3f} [{success.low:.3f}, {success.high:.3f}] {of} ({config.data.name})"
        print(
            f"score added to {write_card(folder, scores={**read_facts(folder).get('scores', {}), config.card: text})}"
        )
    files = ["metrics.json", "bad_cases.jsonl"] + (["trajectories.jsonl"] if config.pred is None else [])
    print(f"written to {config.output_dir}: {', '.join(files)}")
    return 0
