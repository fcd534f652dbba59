"""A step's trajectories: groups of G samples of one task, their rewards and advantages, and which of them count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from agentic.policy.tokens import TokenPolicy
from agentic.records import Trajectory
from agentic.rollout import RolloutLimits, run_episode
from agentic.sandbox import Sandbox
from agentic.train.losses import AdvantageScale, group_advantages
from agentic.train.rl_batch import CUT, HARNESS, check_stream
from agentic.train.rl_tasks import Order, Source

T = TypeVar("T")
Episode = Callable[[TokenPolicy], Awaitable[T]]
Truncated = Literal["keep", "drop"]


class Sampler(Protocol):
    """Runs episodes with some weights."""

    version: str
    """Of the weights it samples with."""
    generated: int
    """Tokens sampled so far."""

    async def run(self, episodes: Sequence[Episode[T]], *, concurrency: int, seed: str, temperature: float) -> list[T]:
        """Results in the order of `episodes`. `seed` and a request's own key decide its random numbers."""
        ...


@dataclass
class Group:
    """The samples of one task."""

    source: int
    """Index of the task."""
    slot: int
    """Place in the step, over all processes."""
    attempt: int
    """0: the task that the order put here; from 1 on, one that took the place of a task without signal."""
    trajectories: list[Trajectory]
    left_out: list[str | None]
    """Why a trajectory leaves loss and baseline; None for those that stay."""
    advantages: list[float]
    signal: bool

    @property
    def trained(self) -> list[tuple[Trajectory, float]]:
        """Trajectories that carry the policy gradient, with their advantages."""
        if not self.signal:
            return []
        return [
            (trajectory, advantage)
            for trajectory, advantage, why in zip(self.trajectories, self.advantages, self.left_out, strict=True)
            if why is None and any(trajectory.mask)
        ]


def left_out(trajectory: Trajectory, version: str, truncated: Truncated) -> str | None:
    """Why a trajectory leaves loss and baseline, or None. A correct answer on the last allowed turn stays."""
    if trajectory.stop_reason in HARNESS:
        return str(trajectory.stop_reason)
    if trajectory.policy_version != version:
        return "stale"
    if trajectory.reward is None or not math.isfinite(trajectory.reward):
        return "unjudged"
    if trajectory.stop_reason in CUT:
        return "truncated" if truncated == "drop" else None
    return "void" if trajectory.void else None


def make_group(
    source: int,
    slot: int,
    attempt: int,
    trajectories: list[Trajectory],
    version: str,
    truncated: Truncated = "keep",
    scale: AdvantageScale = "group",
) -> Group:
    """Advantages over those that count; the others get 0 and leave mean and deviation alone."""
    reasons = [left_out(trajectory, version, truncated) for trajectory in trajectories]
    rewards = [math.nan if one.reward is None else one.reward for one in trajectories]
    advantages, silent = group_advantages(
        rewards, [0] * len(rewards), [reason is not None for reason in reasons], scale
    )
    return Group(source, slot, attempt, trajectories, reasons, advantages, signal=not silent)


@dataclass
class Collected:
    """What a step's rollouts gave."""

    groups: list[Group]
    """One a slot, in the order of the slots; where every attempt was without signal, the last one."""
    first: list[Group]
    """The groups of the first attempts: what the tasks give as they come, without selection."""
    retries: int
    """Groups that were sampled in place of one without signal."""
    all: list[Group] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for group in self.all for reason in group.left_out if reason)


@dataclass(frozen=True)
class Plan:
    """How the rollouts of every step are made."""

    num_generations: int
    temperature: float
    limits: RolloutLimits
    max_turns: int
    max_resamples: int
    truncated: Truncated
    scale: AdvantageScale
    seed: int


class Collector:
    """Makes the rollouts of a step on this process. Belongs to one event loop."""

    def __init__(
        self,
        sources: Sequence[Source],
        order: Order,
        sampler: Sampler,
        sandbox: Sandbox,
        plan: Plan,
        end_ids: Collection[int],
    ) -> None:
        self.sources, self.order, self.sampler, self.sandbox, self.plan = sources, order, sampler, sandbox, plan
        self.end_ids = end_ids

    async def collect(self, step: int, slots: range, prompts: int) -> Collected:
        """Groups of this process's slots of the step, of `prompts` over all processes.

        Where all rewards of a group are equal another task takes the slot, at most `max_resamples` times.
        """
        chosen = {slot: self.order[step * prompts + slot] for slot in slots}
        result = Collected([], [], 0)
        kept: dict[int, Group] = {}
        for attempt in range(self.plan.max_resamples + 1):
            groups = await self._sample(step, chosen, attempt)
            result.all += groups
            result.retries += len(groups) if attempt else 0
            kept |= {group.slot: group for group in groups}
            chosen = {
                group.slot: self.order.other(step, group.slot, attempt + 1) for group in groups if not group.signal
            }
            if not chosen:
                break
        result.first = [group for group in result.all if group.attempt == 0]
        result.groups = [kept[slot] for slot in slots]
        return result

    async def _sample(self, step: int, chosen: dict[int, int], attempt: int) -> list[Group]:
        """One group a slot; every request's random numbers follow from step, slot, attempt, sample and its place."""
        plan, size = self.plan, self.plan.num_generations
        episodes = [
            self.episode(index, (slot * (plan.max_resamples + 1) + attempt) * size + sample)
            for slot, index in chosen.items()
            for sample in range(size)
        ]
        found = await self.sampler.run(
            episodes,
            concurrency=plan.limits.concurrency,
            seed=f"{plan.seed}/{step}",
            temperature=plan.temperature,
        )
        return [
            make_group(
                index,
                slot,
                attempt,
                found[place * size : (place + 1) * size],
                self.sampler.version,
                plan.truncated,
                plan.scale,
            )
            for place, (slot, index) in enumerate(chosen.items())
        ]

    def episode(self, index: int, sample: int) -> Episode[Trajectory]:
        """One trajectory of a task, scored, and with its token stream checked."""
        source = self.sources[index]
        task = source.task.model_copy(update={"max_turns": min(source.task.max_turns, self.plan.max_turns)})

        async def run(policy: TokenPolicy) -> Trajectory:
            trajectory = await run_episode(task, source.base_dir, policy, self.sandbox, self.plan.limits, sample)
            check_stream(trajectory, self.end_ids)
            return trajectory

        return run
