"""Many episodes at once: each alternates between its policy and its environment, none waits for the slowest.

A policy that batches (hf) sees the waiting conversations together; a straggler closes as `deadline` and holds up nobody.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from agentic.data_analysis_env import Environment, EnvironmentLimits, task_tools
from agentic.policy.base import Conversation, Policy, Reply
from agentic.records import Action, Message, Observation, StopReason, Task, ToolCall, ToolFunction, Trajectory, Turn
from agentic.sandbox import Sandbox
from agentic.tools.parse import parse_message


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


def assistant_message(text: str, actions: list[Action]) -> Message:
    """How a turn enters the history: a strictly valid turn as tool_calls, anything else exactly as written."""
    calls = [action for action in actions if action.kind == "tool"]
    if not calls or len(calls) != len(actions) or any(action.repaired or action.flags for action in calls):
        return Message(role="assistant", content=text)
    return Message(
        role="assistant",
        content=text[: text.find("<tool_call>", text.rfind("</think>") + 1)].strip(),
        tool_calls=[
            ToolCall(
                id=f"call_{index}",
                function=ToolFunction(name=str(a.name), arguments=json.dumps(a.arguments, ensure_ascii=False)),
            )
            for index, a in enumerate(calls)
        ],
    )


async def run_episode(
    task: Task, base_dir: Path, policy: Policy, sandbox: Sandbox, limits: RolloutLimits | None = None, sample: int = 0
) -> Trajectory:
    """One episode to its end. Never raises for what the policy or the model's code does."""
    limits = limits or RolloutLimits()
    trajectory = Trajectory(
        task_id=task.id, sample=sample, policy=policy.name, policy_version=policy.version, isolation=sandbox.level
    )
    started = time.perf_counter()
    environment = Environment(sandbox, EnvironmentLimits())
    conversation = Conversation(messages=[], tools=task_tools(task), task_id=task.id, sample=sample)
    try:
        conversation.messages = await environment.reset(task, base_dir)
        try:
            async with asyncio.timeout(limits.deadline_s):
                await _turns(task, policy, environment, conversation, trajectory, limits)
        except TimeoutError:
            trajectory.stop_reason = StopReason.DEADLINE
    finally:
        await environment.close()
    trajectory.prompt_ids = list(conversation.prompt_ids)
    trajectory.completion_ids = list(conversation.completion_ids)
    trajectory.mask, trajectory.logprobs = list(conversation.mask), list(conversation.logprobs)
    trajectory.void = trajectory.answer is None and not any(
        action.kind == "tool" for turn in trajectory.turns for action in turn.actions
    )
    trajectory.wall_ms = (time.perf_counter() - started) * 1000
    environment.score(trajectory)
    return trajectory


async def _turns(
    task: Task,
    policy: Policy,
    environment: Environment,
    conversation: Conversation,
    trajectory: Trajectory,
    limits: RolloutLimits,
) -> None:
    generated = 0
    for _ in range(task.max_turns):
        asked = time.perf_counter()
        reply: Reply = await policy.act(conversation, limits.max_new_tokens)
        policy_ms = (time.perf_counter() - asked) * 1000
        if reply.finish == "error":
            trajectory.stop_reason, trajectory.error = StopReason.POLICY_ERROR, reply.error
            return
        generated += reply.tokens
        actions = parse_message(reply.text, conversation.tools, finish=reply.finish)
        turn = Turn(text=reply.text, actions=actions, generated_tokens=reply.tokens, policy_ms=policy_ms)
        trajectory.turns.append(turn)
        if actions[0].kind == "answer":
            trajectory.answer, trajectory.stop_reason = actions[0].answer, StopReason.ANSWERED
            return
        if reply.finish == "length":
            trajectory.stop_reason = StopReason.TRUNCATED
            return
        conversation.messages.append(assistant_message(reply.text, actions))
        for index, action in enumerate(actions):
            observation = await environment.step(action)
            turn.observations.append(observation)
            conversation.messages.append(tool_message(observation, index))
        if not reply.text.strip():
            trajectory.stop_reason = StopReason.VOID
            return
        if generated >= limits.max_total_tokens:
            trajectory.stop_reason = StopReason.MAX_TOKENS
            return
    parsed = any(action.kind == "tool" for turn in trajectory.turns for action in turn.actions)
    trajectory.stop_reason = StopReason.MAX_TURNS if parsed else StopReason.PARSE_ERROR


def tool_message(observation: Observation, index: int = 0) -> Message:
    """How an observation is told to the model."""
    return Message(role="tool", content=observation.text, name=observation.tool, tool_call_id=f"call_{index}")


async def run_episodes(
    tasks: Iterable[tuple[Task, Path, int]], policy: Policy, sandbox: Sandbox, limits: RolloutLimits | None = None
) -> AsyncIterator[Trajectory]:
    """Yield trajectories of (task, base_dir, sample) as they end, with at most `limits.concurrency` in flight."""
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
            for finished in done:
                yield finished.result()
    finally:
        for task_ in waiting:
            task_.cancel()
        if waiting:
            await asyncio.gather(*waiting, return_exceptions=True)
