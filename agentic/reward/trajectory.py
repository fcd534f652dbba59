"""The reward of a whole trajectory from what was observed during the episode; nothing is executed again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from agentic.errors import UserError
from agentic.records import Action, Observation, ObservationStatus, StopReason, Task, Trajectory, Turn, Verdict
from agentic.reward.answer import compare
from agentic.reward.judge import Judge

Preset = Literal["ops", "paper"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

WEIGHTS: dict[str, float] = {
    "task_success": 2.5,
    "answer_score": 1.2,
    "tool_selection_f1": 0.8,
    "schema_valid_rate": 0.6,
    "exec_success_rate": 0.6,
    "format_score": 0.4,
    "turn_efficiency": 0.2,
    "invalid_action_rate": -0.8,
    "tag_errors": -0.3,
    "repetition": -1.0,
    "unfinished": -0.5,
}
"""Preset `ops`. `tag_errors` is a count, the others are in [0, 1]; `avg_turns` is logged and carries no weight."""

LOWEST, HIGHEST = -3.0, 5.0

TAG_FLAGS = frozenset(
    {
        "unclosed_tag",
        "missing_tag",
        "missing_fence",
        "several_blocks",
        "text_after_call",
        "run_on",
        "self_written_result",
        "answer_after_call",
        "unclosed_reasoning",
        "call_inside_unclosed_reasoning",
    }
)
"""Flags of the parser that count as tag errors."""


@dataclass(frozen=True)
class Attempt:
    """A call the model tried to make, and what came of it (None: the episode closed before it ran)."""

    action: Action
    observation: Observation | None

    @property
    def refused(self) -> bool:
        observation = self.observation
        return self.action.kind == "invalid" or (
            observation is not None and observation.status == ObservationStatus.INVALID_ACTION
        )


def attempts(turns: Sequence[Turn]) -> list[Attempt]:
    """Every action that is no answer, with its observation, in order."""
    found: list[Attempt] = []
    for turn in turns:
        calls = [action for action in turn.actions if action.kind != "answer"]
        observations: list[Observation | None] = [*turn.observations]
        observations += [None] * (len(calls) - len(observations))
        found += [Attempt(action, observation) for action, observation in zip(calls, observations, strict=False)]
    return found


def score_trajectory(
    task: Task, trajectory: Trajectory, preset: Preset = "ops", judge: Judge | None = None
) -> tuple[float, dict[str, float], Verdict]:
    """Reward, its parts, and the verdict on the answer. Where the verdict is unjudged, the reward means nothing.

    ops: WEIGHTS over the parts, clipped to [-3, 5]. For a wrong answer it is the lowest reward over every stage of the
    episode from the expected number of calls on, so a further call can only lower it.
    paper: right 1, falling linearly to 0.5 between 256 and 1,024 answer characters; wrong 0; malformed -0.1.
    """
    if preset not in PRESETS:
        raise UserError(f"unknown reward preset {preset!r}; the presets are {', '.join(PRESETS)}")
    verdict = compare(trajectory.answer, task.checks, task.question, judge)
    parts = trajectory_parts(task, trajectory.turns, trajectory.stop_reason, verdict)
    if preset == "paper":
        return _paper(trajectory, parts, verdict), parts, verdict
    stages = [parts]
    if not verdict.correct:
        calls = len(attempts(trajectory.turns))
        for kept in range(max(1, len(task.expected_tools)), calls):
            turns = first_calls(trajectory.turns, kept)
            stages.append(trajectory_parts(task, turns, trajectory.stop_reason, verdict))
    return min(_weighted(stage) for stage in stages), parts, verdict


def record_score(task: Task, trajectory: Trajectory, preset: Preset = "ops", judge: Judge | None = None) -> Verdict:
    """Write reward and parts into the trajectory. An unjudged answer has no reward, so that no loss can count it as wrong."""
    reward, trajectory.parts, verdict = score_trajectory(task, trajectory, preset, judge)
    trajectory.reward = None if verdict.unjudged else reward
    return verdict


def _weighted(parts: dict[str, float]) -> float:
    total = sum(weight * parts[name] for name, weight in WEIGHTS.items())
    return min(HIGHEST, max(LOWEST, total))


def _paper(trajectory: Trajectory, parts: dict[str, float], verdict: Verdict) -> float:
    if (
        parts["unfinished"]
        or parts["tag_errors"]
        or parts["invalid_action_rate"]
        or not (trajectory.answer or "").strip()
    ):
        return -0.1
    if not verdict.correct:
        return 0.0
    return 1.0 - 0.5 * min(1.0, max(0.0, (len(trajectory.answer or "") - 256) / (1024 - 256)))


def trajectory_parts(task: Task, turns: Sequence[Turn], stop_reason: StopReason, verdict: Verdict) -> dict[str, float]:
    """All parts by name. A trajectory without calls has schema_valid_rate and exec_success_rate 0."""
    calls = attempts(turns)
    ran = [call for call in calls if not call.refused and call.observation is not None]
    strict = [call for call in calls if not call.refused and not call.action.repaired]
    ok = [call for call in ran if call.observation and call.observation.status == ObservationStatus.OK]
    tidy = [turn for turn in turns if _well_formed(turn)]
    return {
        "task_success": float(verdict.correct),
        "answer_score": verdict.score,
        "tool_selection_f1": _f1({str(c.action.name) for c in calls if not c.refused}, set(task.expected_tools)),
        "schema_valid_rate": _share(len(strict), len(calls)),
        "exec_success_rate": _share(len(ok), len(ran)),
        "invalid_action_rate": _share(sum(call.refused for call in calls), len(calls)),
        "format_score": _share(len(tidy), len(turns)),
        "avg_turns": float(len(turns)),
        "turn_efficiency": _efficiency(len(turns), task.max_turns),
        "repetition": _repetition(calls),
        "tag_errors": float(sum(f in TAG_FLAGS for turn in turns for a in turn.actions for f in a.flags)),
        "unfinished": float(stop_reason != StopReason.ANSWERED),
    }


def first_calls(turns: Sequence[Turn], kept: int) -> list[Turn]:
    """The same episode with only its first `kept` calls; turns left without an action are dropped, answers stay."""
    cut: list[Turn] = []
    for turn in turns:
        actions: list[Action] = []
        for action in turn.actions:
            if action.kind == "answer":
                actions.append(action)
            elif kept > 0:
                actions.append(action)
                kept -= 1
        if actions:
            calls = sum(action.kind != "answer" for action in actions)
            cut.append(turn.model_copy(update={"actions": actions, "observations": turn.observations[:calls]}))
    return cut


def _well_formed(turn: Turn) -> bool:
    return bool(turn.actions) and not any(a.kind == "invalid" or a.repaired or a.flags for a in turn.actions)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _f1(used: set[str], expected: set[str]) -> float:
    """1 when no tool is expected and none used; otherwise over the sets of names."""
    if not used and not expected:
        return 1.0
    return 2 * len(used & expected) / (len(used) + len(expected))


def _efficiency(turns: int, max_turns: int) -> float:
    """1 for one turn, falling linearly to 0 when all turns are used; 0 without any turn."""
    if turns == 0:
        return 0.0
    return 1.0 if max_turns <= 1 else max(0.0, 1 - (turns - 1) / (max_turns - 1))


def _repetition(calls: Sequence[Attempt]) -> float:
    """Share of the calls that repeat an earlier one word for word."""
    seen = {
        json.dumps([c.action.name, c.action.arguments], sort_keys=True, default=str) if c.action.name else c.action.raw
        for c in calls
    }
    return _share(len(calls) - len(seen), len(calls))
