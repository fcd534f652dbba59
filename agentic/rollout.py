"""Many episodes at once: each alternates between its policy and its environment, none waits for the slowest.

A policy that batches (hf) sees the waiting conversations together; a straggler closes as `deadline` and holds up nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path

from agentic.data_analysis_env import Environment, EnvironmentLimits, Preset, task_tools
from agentic.errors import UserError
from agentic.jsonl import scrub
from agentic.policy.base import Conversation, Policy, Reply
from agentic.records import Action, Dialect, Message, StopReason, Task, ToolCall, ToolFunction, Trajectory, Turn
from agentic.sandbox import Sandbox, SandboxError, Session
from agentic.tools.dialect import observation_message, shown_tools
from agentic.tools.parse import parse_message

log = logging.getLogger(__name__)

SPELLING_FLAGS = frozenset({"name_normalised", "arguments_as_string", "unknown_arguments", "calls_as_list"})
"""Flags of a call that was read strictly and only spelt oddly: nothing was guessed, nothing beside it was ignored."""


@dataclass(frozen=True)
class RolloutLimits:
    max_new_tokens: int = 256
    """Per turn."""
    max_total_tokens: int = 4096
    """Generated tokens of one trajectory."""
    deadline_s: float = 300.0
    """Wall time of one trajectory."""
    concurrency: int = 16
    """Trajectories in flight."""
    dialect: Dialect = "tool_call"
    """How the agent is told to write its actions."""
    reward: Preset = "ops"
    """How a finished trajectory is rewarded."""


def assistant_message(text: str, actions: list[Action], first_id: int = 0) -> Message:
    """How a turn enters the history: strictly read calls as tool_calls, anything else exactly as written.

    A call that was only spelt oddly (SPELLING_FLAGS) counts as strict: the history then holds what ran, and a server with
    native tools gets it back natively. A repaired call, a missing tag, or text that was ignored (a self-written tool
    result) stays as written, so that the observation behind it makes sense. Calls are numbered from `first_id`.
    """
    strict = actions and all(
        a.kind == "tool" and not a.repaired and SPELLING_FLAGS.issuperset(a.flags) for a in actions
    )
    if not strict:
        return Message(role="assistant", content=text)
    # The calls stand at the end; what looks like one of them further up is a draft in the reasoning.
    start = len(text)
    for action in reversed(actions):
        found = text.rfind(action.raw, 0, start)
        start = found if found >= 0 else start
    return Message(
        role="assistant",
        content=text[:start].strip(),
        tool_calls=[
            ToolCall(
                id=f"call_{first_id + index}",
                function=ToolFunction(name=str(a.name), arguments=json.dumps(a.arguments, ensure_ascii=False)),
            )
            for index, a in enumerate(actions)
        ],
    )


async def run_episode(
    task: Task,
    base_dir: Path,
    policy: Policy,
    sandbox: Sandbox,
    limits: RolloutLimits | None = None,
    sample: int = 0,
    session: Session | None = None,
) -> Trajectory:
    """One episode to its end, whatever the policy, the model's code or the sandbox do: a failure of ours is a trajectory
    with an `error`, too. Raises UserError only, for a task or an option that the user has to mend.

    `session`: lent to the environment (see Environment).
    """
    limits = limits or RolloutLimits()
    trajectory = Trajectory(
        task_id=task.id, sample=sample, policy=policy.name, policy_version=policy.version, isolation=sandbox.level
    )
    started = time.perf_counter()
    environment = Environment(sandbox, EnvironmentLimits(), seed=f"{task.id}/{sample}", session=session)
    tools = shown_tools(task_tools(task), limits.dialect)
    conversation = Conversation(messages=[], tools=tools, task_id=task.id, sample=sample)
    deadline = asyncio.timeout(limits.deadline_s)
    try:
        conversation.messages = await environment.reset(task, base_dir, limits.dialect)
        async with deadline:
            await _turns(task, policy, environment, conversation, trajectory, limits)
    except UserError:
        raise
    except SandboxError as error:
        trajectory.stop_reason, trajectory.error = StopReason.SANDBOX_LOST, str(error)
    except Exception as error:
        if isinstance(error, TimeoutError) and deadline.expired():
            trajectory.stop_reason = StopReason.DEADLINE
        else:  # a bug; the other episodes go on, and this one says what it met
            log.exception("task %s, sample %d: the episode failed", task.id, sample)
            trajectory.stop_reason = StopReason.POLICY_ERROR
            trajectory.error = f"internal error: {type(error).__name__}: {error}"
    finally:
        await environment.close()
    trajectory.prompt_ids = list(conversation.prompt_ids)
    trajectory.completion_ids = list(conversation.completion_ids)
    trajectory.mask, trajectory.logprobs = list(conversation.mask), list(conversation.logprobs)
    trajectory.void = trajectory.answer is None and not any(
        action.kind == "tool" for turn in trajectory.turns for action in turn.actions
    )
    trajectory.wall_ms = (time.perf_counter() - started) * 1000
    environment.score(trajectory, limits.reward)
    return trajectory


async def _turns(
    task: Task,
    policy: Policy,
    environment: Environment,
    conversation: Conversation,
    trajectory: Trajectory,
    limits: RolloutLimits,
) -> None:
    generated = calls = 0
    tools = task_tools(task)
    for _ in range(task.max_turns):
        asked = time.perf_counter()
        reply: Reply = await policy.act(conversation, limits.max_new_tokens)
        policy_ms = (time.perf_counter() - asked) * 1000
        if reply.finish == "error":
            trajectory.stop_reason, trajectory.error = StopReason.POLICY_ERROR, reply.error
            return
        generated += reply.tokens
        text = scrub(reply.text)  # a lone surrogate fits into no record and no file
        actions = parse_message(text, tools, dialect=limits.dialect, finish=reply.finish)
        turn = Turn(text=text, actions=actions, generated_tokens=reply.tokens, policy_ms=policy_ms)
        trajectory.turns.append(turn)
        if reply.finish == "length":  # also for an answer: the rest of "it is 12" may have been ",500"
            trajectory.stop_reason = StopReason.TRUNCATED
            return
        if actions[0].kind == "answer":
            trajectory.answer, trajectory.stop_reason = actions[0].answer, StopReason.ANSWERED
            return
        if limits.dialect == "react":
            conversation.messages.append(Message(role="assistant", content=text))
        else:
            conversation.messages.append(assistant_message(text, actions, calls))
        for action in actions:
            observation = await environment.step(action)
            turn.observations.append(observation)
            conversation.messages.append(observation_message(observation, calls, limits.dialect))
            calls += 1
        if not text.strip():
            trajectory.stop_reason = StopReason.VOID
            return
        if generated >= limits.max_total_tokens:
            trajectory.stop_reason = StopReason.MAX_TOKENS
            return
    parsed = any(action.kind == "tool" for turn in trajectory.turns for action in turn.actions)
    trajectory.stop_reason = StopReason.MAX_TURNS if parsed else StopReason.PARSE_ERROR


async def run_episodes(
    tasks: Iterable[tuple[Task, Path, int]], policy: Policy, sandbox: Sandbox, limits: RolloutLimits | None = None
) -> AsyncGenerator[Trajectory, None]:
    """Yield trajectories of (task, base_dir, sample) as they end, with at most `limits.concurrency` in flight.

    A UserError of one episode is raised after the trajectories that ended with it were yielded.
    """
    limits = limits or RolloutLimits()
    waiting: set[asyncio.Task[Trajectory]] = set()
    source = iter(tasks)
    exhausted = False
    try:
        while waiting or not exhausted:
            while not exhausted and len(waiting) < limits.concurrency:
                item = next(source, None)
                if item is None:
                    exhausted = True
                    break
                task, base_dir, sample = item
                waiting.add(asyncio.create_task(run_episode(task, base_dir, policy, sandbox, limits, sample)))
            if not waiting:
                break
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            failed = [finished for finished in done if finished.exception() is not None]
            for finished in done.difference(failed):
                yield finished.result()
            for finished in failed:
                finished.result()
    finally:
        for task_ in waiting:
            task_.cancel()
        if waiting:
            await asyncio.gather(*waiting, return_exceptions=True)
