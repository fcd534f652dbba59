"""The data of one step on one process: rollouts with their advantages, expert tokens, weights over the whole step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from agentic.records import Trajectory
from agentic.reward.trajectory import attempts
from agentic.train.losses import LossType, token_weights
from agentic.train.rl_batch import CUT, Piece, micro_batches, sampled_logprobs, tokens_of
from agentic.train.rl_rollouts import Collected, Group
from agentic.train.rl_tasks import Expert, Order
from agentic.train.sums import Sums


@dataclass(frozen=True)
class Share:
    """This process's part of a step."""

    rank: int
    world: int
    prompts: int
    """Tasks of one step over all processes."""

    @property
    def slots(self) -> range:
        each = self.prompts // self.world
        return range(self.rank * each, (self.rank + 1) * each)


def build(
    step: int,
    gamma: float,
    collected: Collected | None,
    order: Order,
    expert: Expert,
    share: Share,
    loss_type: LossType,
    tokens_per_batch: int,
    gather: Callable[[list[Any]], list[Any]],
) -> tuple[list[Any], int, int]:
    """Micro-batches, and the trained tokens of expert and own trajectories over all processes.

    `collected` is None where the step is SFT alone. `gather` puts the lists of all processes one behind the other.
    """
    groups = collected.groups if collected else []
    own = [(trajectory, advantage) for group in groups for trajectory, advantage in group.trained]
    tasks = [group.source for group in groups] if collected else [order[step * share.prompts + s] for s in share.slots]
    shown = [tokens for task in tasks if (tokens := expert[task])] if gamma > 0 else []

    mine = (share.rank, [sum(trajectory.mask) for trajectory, _ in own], sum(tokens.trained for tokens in shown))
    everyone = sorted(gather([mine]))
    lengths = [length for _, theirs, _ in everyone for length in theirs]
    before = sum(len(theirs) for rank, theirs, _ in everyone if rank < share.rank)
    weights = token_weights(lengths, loss_type)[before : before + len(own)]
    expert_tokens = sum(count for _, _, count in everyone)

    pieces = [Piece(replace(tokens, key=key), 1.0 / expert_tokens) for key, tokens in enumerate(shown)]
    for (trajectory, advantage), weight in zip(own, weights, strict=True):
        if advantage:  # exactly average: no gradient, but counted in the weights of the others
            tokens = tokens_of(trajectory, len(pieces))
            pieces.append(Piece(tokens, weight, advantage, sampled_logprobs(trajectory)))
    return micro_batches(pieces, tokens_per_batch, seed=step), expert_tokens, sum(lengths)


def observe(collected: Collected, sums: Sums) -> None:
    """Add what is logged about a step's rollouts.

    Rewards, parts and lengths are those of the first attempts: what the tasks give as they come. Selection by dynamic
    sampling would flatter them.
    """
    for group in collected.first:
        for trajectory, reason in zip(group.trajectories, group.left_out, strict=True):
            sums.add("void", float(reason == "void"))
            sums.add("truncated", float(trajectory.stop_reason in CUT))
            sums.add("left_out/share", float(reason is not None))
            if reason in (None, "void", "truncated"):  # the policy's doing; failures of the harness say nothing
                _observe_trajectory(trajectory, sums)
        kept = [t.reward for t, why in zip(group.trajectories, group.left_out, strict=True) if why is None]
        rewards = [reward for reward in kept if reward is not None]
        if len(rewards) > 1:
            sums.add("reward_std", statistics.stdev(rewards))
        sums.add("signal", float(group.signal))
    for group in collected.groups:
        sums.add("kept_groups", float(group.signal))
    sums.add("retries", float(collected.retries), 0.0)
    for reason, count in collected.reasons.items():
        sums.add(f"left_out/{reason}", float(count), 0.0)


def _observe_trajectory(trajectory: Trajectory, sums: Sums) -> None:
    if trajectory.reward is not None:
        sums.add("reward", trajectory.reward)
    for name, value in trajectory.parts.items():
        sums.add(f"parts/{name}", value)
    sums.add("success", trajectory.parts.get("task_success", 0.0))
    sums.add("length", float(sum(turn.generated_tokens for turn in trajectory.turns)))
    calls = len(attempts(trajectory.turns))
    sums.add("calls", float(calls))
    if trajectory.answer is not None:
        sums.add("call_free", float(calls == 0))


def sample_rows(groups: Sequence[Group], step: int, count: int) -> list[dict[str, Any]]:
    """Rows of samples.jsonl: whole trajectories with their reward parts, from different groups first."""
    rows: list[dict[str, Any]] = []
    width = max((len(group.trajectories) for group in groups), default=0)
    for sample in range(width):
        for group in groups:
            if sample >= len(group.trajectories) or len(rows) >= count:
                continue
            one = group.trajectories[sample]
            rows.append(
                {
                    "step": step,
                    "task_id": one.task_id,
                    "sample": one.sample,
                    "policy_version": one.policy_version,
                    "reward": one.reward,
                    "advantage": group.advantages[sample],
                    "left_out": group.left_out[sample],
                    "stop_reason": str(one.stop_reason),
                    "answer": one.answer,
                    "parts": one.parts,
                    "turns": [
                        {"text": turn.text, "observations": [o.text for o in turn.observations]} for turn in one.turns
                    ],
                }
            )
    return rows


class Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
