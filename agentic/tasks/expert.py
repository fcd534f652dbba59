"""Expert trajectories, executed in the real environment: their observations are what a model would see."""

from __future__ import annotations

import ast
import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from agentic.policy.base import Conversation
from agentic.policy.replay import ReplayPolicy
from agentic.records import Message, ObservationStatus, StopReason, Task, Trajectory
from agentic.rollout import RolloutLimits, assistant_message, run_episodes
from agentic.sandbox import Sandbox
from agentic.tools.dialect import observation_message
from agentic.tools.parse import render_call
from agentic.tools.values import unknown_values

ROUNDING = 1.5e-4
"""How far a printed number may be from the gold: one unit of the fourth decimal, for sums in another order."""


@dataclass(frozen=True)
class Step:
    """One scripted assistant turn."""

    text: str | Callable[[str], str]
    """The text, or a function of the last observation."""
    mistake: bool = False
    """A turn that must fail; it stays in the context with weight 0, only its repair is trained."""
    detour: bool = False
    """A turn that runs but helps nobody (a query that finds another document): weight 0, too."""
    prints: str | None = None
    """What the observation must be, where that is known."""
    finds: str | None = None
    """Id of the document that the query must find first."""


@dataclass(frozen=True)
class Script:
    task: Task
    base_dir: Path
    steps: list[Step]
    gold: float | None = None
    """The task's number as it was computed apart from the script. The last observation must be this number up to rounding,
    and is then what the task's check says: gold is what executing the program gives."""


@dataclass(frozen=True)
class Calculation:
    """The calculator call over the numbers that the last cell printed."""

    template: str
    """Expression with {0}, {1} for the printed numbers."""

    def __call__(self, observation: str) -> str:
        return render_call("calculator", {"expression": self.template.format(*observation.split())})


def python_step(code: str, mistake: bool = False, prints: str | None = None) -> Step:
    return Step(render_call("python_executor", {"code": code}), mistake, prints=prints)


def misspell(name: str, rng: random.Random) -> str:
    """A column name as a small model gets it wrong: case, separators, a lost or doubled letter, a lost unit."""
    changes = [
        name.lower(),
        name.replace("_", " "),
        name.replace(" ", "_"),
        name.replace("_", ""),
        name.title(),
        re.sub(r"\s*[(\[].*[)\]]$", "", name),
        re.sub(r"([a-z])([A-Z])", r"\1_\2", name),
        name.split("_")[0],
    ]
    if len(name) > 3:
        at = rng.randrange(1, len(name) - 1)
        changes += [name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:]]
    different = [change for change in changes if change and change != name]
    return rng.choice(different) if different else name + "s"


def with_mistake(code: str, columns: tuple[str, ...], known: Iterable[str], rng: random.Random) -> str | None:
    """The cell with one column misspelt, or None when that would be another column of the tables."""
    if not columns:
        return None
    name = rng.choice(columns)
    wrong = misspell(name, rng)
    if wrong in set(map(str, known)) or repr(name) not in code:
        return None
    return code.replace(repr(name), repr(wrong))


def with_wrong_value(code: str, frame: pd.DataFrame, rng: random.Random) -> str | None:
    """The cell with one compared text in another case, as long as the environment then names the right one; else None."""
    found = re.findall(r"== ('(?:[^'\\]|\\.)*')", code)
    if not found:
        return None
    literal = rng.choice(found)
    value = ast.literal_eval(literal)
    changes = [
        change for change in (value.lower(), value.title(), value.upper(), misspell(value, rng)) if change != value
    ]
    if not changes:
        return None
    wrong = code.replace(f"== {literal}", f"== {rng.choice(changes)!r}")
    return wrong if unknown_values(wrong, {"df": frame}) else None


class _Play:
    """Feeds each task's steps to the replay policy."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts

    def __call__(self, conversation: Conversation) -> str:
        turn = sum(message.role == "assistant" for message in conversation.messages)
        steps = self.scripts[conversation.task_id].steps
        if turn >= len(steps):
            return ""
        text = steps[turn].text
        return text if isinstance(text, str) else text(conversation.messages[-1].content)


def _messages(script: Script, trajectory: Trajectory) -> list[Message]:
    messages: list[Message] = []
    for turn, step in zip(trajectory.turns, script.steps, strict=True):
        message = assistant_message(turn.text, turn.actions)
        untrained = step.mistake or step.detour
        messages.append(message.model_copy(update={"weight": 0}) if untrained else message)
        messages += [observation_message(observation, index) for index, observation in enumerate(turn.observations)]
    return messages


def _problem(script: Script, trajectory: Trajectory) -> str | None:
    """Why an executed script is no expert trajectory, or None. A turn of an expert is one call or the answer."""
    if trajectory.stop_reason != StopReason.ANSWERED or len(trajectory.turns) != len(script.steps):
        why = f": {trajectory.error}" if trajectory.error else ""
        return f"ended as {trajectory.stop_reason} after {len(trajectory.turns)} of {len(script.steps)} turns{why}"
    for turn, step in zip(trajectory.turns, script.steps, strict=True):
        # A comparison with a value that is not there succeeds, and its observation ends with a hint.
        failed = any(o.status != ObservationStatus.OK or "\nHint: " in o.text for o in turn.observations)
        if failed != step.mistake:
            return (
                "a scripted mistake did not fail"
                if step.mistake
                else f"a step failed: {turn.observations[0].text[:120]}"
            )
        if step.prints is not None and turn.observations[0].text != step.prints:
            return f"a step gave {turn.observations[0].text[:80]!r}, the gold's computation {step.prints!r}"
        if step.finds is not None and turn.observations[0].data["documents"][0] != step.finds:
            return f"the query found {turn.observations[0].data['documents'][0]!r}, not {step.finds!r}"
    if trajectory.parts["task_success"] != 1.0:
        return f"the answer {trajectory.answer!r} fails the task's own checks"
    return None


def printed_number(observation: str, gold: float) -> int | float | None:
    """The number that an observation is, when it is the gold up to rounding; whole numbers stay whole."""
    try:
        value = int(observation) if re.fullmatch(r"-?\d+", observation) else float(observation)
    except ValueError:
        return None
    return value if abs(value - gold) <= ROUNDING + 1e-9 * abs(gold) else None


def finished(script: Script, trajectory: Trajectory) -> Task | str:
    """The task with its executed trajectory, or why it does not become data."""
    problem = _problem(script, trajectory)
    if problem is not None:
        return problem
    task = script.task
    answer = trajectory.turns[-1].actions[0].answer or ""
    checks = task.checks
    if script.gold is not None:
        observed = trajectory.turns[-2].observations[0].text if len(trajectory.turns) > 1 else ""
        value = printed_number(observed, script.gold)
        if value is None:
            return f"the executed program gave {observed[:80]!r}, the gold's computation {script.gold}"
        checks = [task.checks[0].model_copy(update={"value": value}), *task.checks[1:]]
    changes = {"expert_trajectory": _messages(script, trajectory), "answer": answer, "checks": checks}
    return task.model_copy(update=changes)


def script_policy(scripts: Iterable[Script]) -> ReplayPolicy:
    return ReplayPolicy(_Play({script.task.id: script for script in scripts}), name="expert")


async def _execute(scripts: list[Script], concurrency: int) -> AsyncIterator[tuple[int, Task | str]]:
    position = {script.task.id: index for index, script in enumerate(scripts)}
    policy = script_policy(scripts)
    async with Sandbox() as sandbox:
        source = ((script.task, script.base_dir, 0) for script in scripts)
        async for trajectory in run_episodes(source, policy, sandbox, RolloutLimits(concurrency=concurrency)):
            index = position[trajectory.task_id]
            yield index, finished(scripts[index], trajectory)


def execute_scripts(
    scripts: list[Script], concurrency: int = 4, progress: Callable[[int, int], None] | None = None
) -> tuple[list[Task], dict[str, str]]:
    """Run every script in the sandbox. Returns the tasks with their trajectories, in the given order, and the dropped
    ones as {task id: reason}: a trajectory that does not pass its own task's grader never becomes data."""

    async def collect() -> list[Task | str | None]:
        results: list[Task | str | None] = [None] * len(scripts)
        done = 0
        async for index, result in _execute(scripts, concurrency):
            results[index] = result
            done += 1
            if progress is not None:
                progress(done, len(scripts))
        return results

    results = asyncio.run(collect())
    tasks = [result for result in results if isinstance(result, Task)]
    dropped = {script.task.id: str(r) for script, r in zip(scripts, results, strict=True) if not isinstance(r, Task)}
    return tasks, dropped
