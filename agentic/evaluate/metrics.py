"""From trajectories to the eight metrics with 95 % intervals. The denominator is always all tasks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentic.errors import UserError
from agentic.records import ObservationStatus, Record, StopReason, Task, Trajectory, Verdict
from agentic.reward.judge import Judge
from agentic.reward.trajectory import Preset, attempts, score_trajectory

METRICS = (
    "task_success",
    "answer_score",
    "tool_selection_f1",
    "schema_valid_rate",
    "exec_success_rate",
    "invalid_action_rate",
    "format_score",
    "avg_turns",
)
COST_METRICS = ("invalid_action_rate", "avg_turns")
"""Means over the trajectories there are: a missing one must not look cheap. All others count it as 0."""

ANSWER_METRICS = ("task_success", "answer_score")
MIN_CLUSTERS = 10
Failure = Literal["right", "wrong_answer", "unjudged", "model", "tool", "sandbox", "harness", "missing"]
Floats = NDArray[np.float64]


class Estimate(Record):
    mean: float
    low: float
    high: float
    """Ends of the 95 % interval."""
    method: Literal["bootstrap", "wilson"]
    """wilson: every question had the same result (0 or 1), where a bootstrap interval has no width."""


class CategorySummary(Record):
    tasks: int
    task_success: Estimate


class Summary(Record):
    tasks: int
    """The denominator."""
    trajectories: int
    samples: int
    """Trajectories per task; task_success is pass@1, the mean over them."""
    missing: list[str]
    """Ids of tasks with fewer trajectories than `samples`; what is missing counts as failed."""
    metrics: dict[str, Estimate]
    """By name of METRICS; only task_success and answer_score where no trajectory has turns, without them where no answer
    was judged."""
    clustering: str
    """What was resampled for the intervals."""
    stop_reasons: dict[str, int]
    failures: dict[str, int]
    """Trajectories by kind: right, wrong_answer, unjudged; without an answer by whose error: model, tool, sandbox, harness."""
    unjudged: int = 0
    """Free-text answers without a judgement. task_success and answer_score leave them out."""
    reward_preset: Preset = "ops"
    reward: float | None = None
    """Mean reward of the trajectories that were judged; None where no trajectory has turns."""
    categories: dict[str, CategorySummary]
    tokens_per_trajectory: float
    """Generated tokens."""
    wall_s_per_trajectory: float

    def to_json(self) -> dict[str, Any]:
        """Plain data for metrics.json."""
        return self.model_dump(mode="json")


def summarise(
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    *,
    seed: int = 0,
    resamples: int = 2000,
    preset: Preset = "ops",
    judge: Judge | None = None,
) -> Summary:
    """Score every trajectory against its task and summarise. Same seed, same intervals. Free text needs a `judge`.

    Raises UserError for no tasks, for a trajectory of an unknown task, and for two with one task and sample.
    """
    if not tasks:
        raise UserError("no tasks to evaluate; the task file is empty")
    by_task = _group(tasks, trajectories)
    samples = max((len(group) for group in by_task.values()), default=0) or 1
    values: Floats = np.zeros((len(tasks), len(METRICS)))
    weights: Floats = np.ones((len(tasks), len(METRICS)))
    failures: Counter[str] = Counter()
    rewards: list[float] = []
    for row, task in enumerate(tasks):
        group = by_task[task.id]
        judged = samples  # missing ones count as failed, unjudged ones do not
        for trajectory in group:
            reward, parts, verdict = score_trajectory(task, trajectory, preset, judge)
            values[row] += [parts[name] for name in METRICS]
            failures[failure_kind(trajectory, verdict)] += 1
            if verdict.unjudged:
                judged -= 1
            else:
                rewards.append(reward)
        failures["missing"] += samples - len(group)
        for column, name in enumerate(METRICS):
            count = len(group) if name in COST_METRICS else judged if name in ANSWER_METRICS else samples
            values[row, column] /= max(1, count)
            weights[row, column] = 1.0 if count else 0.0

    with_turns = any(trajectory.turns for trajectory in trajectories)
    shown = METRICS if with_turns else ANSWER_METRICS
    clusters, clustering = _clusters(tasks)
    estimates = _estimates(values, weights, clusters, seed, resamples)
    count = max(1, len(trajectories))
    return Summary(
        tasks=len(tasks),
        trajectories=len(trajectories),
        samples=samples,
        missing=[task.id for task in tasks if len(by_task[task.id]) < samples],
        metrics={name: estimates[METRICS.index(name)] for name in shown if weights[:, METRICS.index(name)].any()},
        clustering=clustering,
        stop_reasons=dict(sorted(Counter(str(t.stop_reason) for t in trajectories).items())),
        failures={kind: failures[kind] for kind in Failure.__args__ if failures[kind]},  # type: ignore[attr-defined]
        unjudged=failures["unjudged"],
        reward_preset=preset,
        reward=sum(rewards) / len(rewards) if rewards and with_turns else None,
        categories=_categories(tasks, values, weights, seed, resamples),
        tokens_per_trajectory=sum(turn.generated_tokens for t in trajectories for turn in t.turns) / count,
        wall_s_per_trajectory=sum(t.wall_ms for t in trajectories) / 1000 / count,
    )


def failure_kind(trajectory: Trajectory, verdict: Verdict) -> Failure:
    """Whose error it was. An answer that was given and is wrong is the model's answer, whatever went before."""
    if verdict.unjudged:
        return "unjudged"
    if verdict.correct:
        return "right"
    if trajectory.stop_reason == StopReason.SANDBOX_LOST:
        return "sandbox"
    if trajectory.stop_reason in {StopReason.POLICY_ERROR, StopReason.DEADLINE}:
        return "harness"
    if trajectory.stop_reason == StopReason.ANSWERED and (trajectory.answer or "").strip():
        return "wrong_answer"
    observed = [a.observation.status for a in attempts(trajectory.turns) if a.observation is not None]
    last = observed[-1] if observed else ObservationStatus.OK
    if last in {ObservationStatus.PROTOCOL_ERROR, ObservationStatus.KILLED}:
        return "sandbox"
    return "model" if last in {ObservationStatus.OK, ObservationStatus.INVALID_ACTION} else "tool"


def _group(tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    by_task: dict[str, list[Trajectory]] = {task.id: [] for task in tasks}
    if len(by_task) != len(tasks):
        repeated = next(id for id, count in Counter(task.id for task in tasks).items() if count > 1)
        raise UserError(f"two tasks have the id {repeated}; ids must be unique")
    seen: set[tuple[str, int]] = set()
    for trajectory in trajectories:
        key = (trajectory.task_id, trajectory.sample)
        if trajectory.task_id not in by_task:
            raise UserError(
                f"trajectory of unknown task {trajectory.task_id}; pass the task file that it was made from"
            )
        if key in seen:
            raise UserError(f"two trajectories of task {trajectory.task_id}, sample {trajectory.sample}; keep one")
        seen.add(key)
        by_task[trajectory.task_id].append(trajectory)
    return by_task


# ----------------------------------------------------------------------------------------------- intervals


def _clusters(tasks: Sequence[Task]) -> tuple[list[Any], str]:
    """One label per task. Questions over one set of tables are not independent, so they are resampled together."""
    labels: list[Any] = [tuple(sorted(ref.path for ref in task.tables)) or task.id for task in tasks]
    count = len(set(labels))
    if count >= MIN_CLUSTERS:
        return labels, f"{count} table sets"
    return list(range(len(tasks))), f"{len(tasks)} questions (only {count} table sets, too few to resample)"


def _estimates(values: Floats, weights: Floats, clusters: Sequence[Any], seed: int, resamples: int) -> list[Estimate]:
    """Weighted means and intervals of the columns of values (tasks x metrics), resampling whole clusters."""
    labels = {label: index for index, label in enumerate(dict.fromkeys(clusters))}
    index = np.array([labels[label] for label in clusters])
    sums: Floats = np.zeros((len(labels), values.shape[1]))
    counts: Floats = np.zeros_like(sums)
    np.add.at(sums, index, values * weights)
    np.add.at(counts, index, weights)
    draws = np.random.default_rng(seed).multinomial(len(labels), np.full(len(labels), 1 / len(labels)), size=resamples)
    total = draws @ counts
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = np.where(total > 0, (draws @ sums) / total, 0.0)
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    estimates = []
    for column, name in enumerate(METRICS[: values.shape[1]]):
        n = int(weights[:, column].sum())
        mean = float(sums[:, column].sum() / n) if n else 0.0
        if name != "avg_turns" and mean in (0.0, 1.0):
            bounds = wilson(mean, n)
            estimates.append(Estimate(mean=mean, low=bounds[0], high=bounds[1], method="wilson"))
        else:
            estimates.append(Estimate(mean=mean, low=float(low[column]), high=float(high[column]), method="bootstrap"))
    return estimates


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % Wilson interval of a proportion over n questions; (0, 1) without any."""
    if n == 0:
        return 0.0, 1.0
    z2 = 1.959964**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def _categories(
    tasks: Sequence[Task], values: Floats, weights: Floats, seed: int, resamples: int
) -> dict[str, CategorySummary]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, task in enumerate(tasks):
        rows[str(task.metadata.get("category", "uncategorised"))].append(row)
    return {
        name: CategorySummary(
            tasks=len(members),
            task_success=_estimates(values[members, :1], weights[members, :1], members, seed, resamples)[0],
        )
        for name, members in sorted(rows.items())
        if weights[members, 0].any()
    }
