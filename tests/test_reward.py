"""The reward of whole trajectories: its parts, and that it cannot be raised without a right answer (case E12)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.data_analysis_env import PRESETS, WEIGHTS
from agentic.errors import UserError
from agentic.records import Action, Check, Observation, ObservationStatus, StopReason, Task, Trajectory, Turn
from agentic.reward.trajectory import HIGHEST, LOWEST, Preset, score_trajectory

TASK = Task(
    id="t",
    question="What is the mean gmv?",
    tools=["retriever", "python_executor", "calculator"],
    expected_tools=["python_executor"],
    checks=[Check(kind="number", value=12.5)],
    max_turns=12,
)
RIGHT, WRONG = "The mean is 12.5.", "The mean is 13.5."


def call(code: str, status: str = "ok", name: str = "python_executor", repaired: bool = False) -> Turn:
    kind = "invalid" if status == "invalid_action" else "tool"
    action = Action.model_validate(
        {"kind": kind, "name": name, "arguments": {"code": code}, "repaired": repaired, "raw": code}
    )
    return Turn(text=code, actions=[action], observations=[Observation(status=ObservationStatus(status), text="seen")])


def episode(*turns: Turn, answer: str | None = RIGHT, flags: tuple[str, ...] = ()) -> Trajectory:
    closing = (
        [] if answer is None else [Turn(text=answer, actions=[Action(kind="answer", answer=answer, flags=list(flags))])]
    )
    stop = StopReason.MAX_TURNS if answer is None else StopReason.ANSWERED
    return Trajectory(task_id="t", turns=[*turns, *closing], answer=answer, stop_reason=stop)


def reward(*turns: Turn, answer: str | None = RIGHT, flags: tuple[str, ...] = ()) -> float:
    return score_trajectory(TASK, episode(*turns, answer=answer, flags=flags))[0]


def test_parts_of_a_clean_episode() -> None:
    value, parts, verdict = score_trajectory(TASK, episode(call("print(1)")))
    assert verdict.correct
    assert parts == {
        "task_success": 1.0,
        "answer_score": 1.0,
        "tool_selection_f1": 1.0,
        "schema_valid_rate": 1.0,
        "exec_success_rate": 1.0,
        "invalid_action_rate": 0.0,
        "format_score": 1.0,
        "avg_turns": 2.0,
        "turn_efficiency": pytest.approx(10 / 11),
        "repetition": 0.0,
        "tag_errors": 0.0,
        "unfinished": 0.0,
    }
    assert value == HIGHEST  # 2.5 + 1.2 + 0.8 + 0.6 + 0.6 + 0.4 + 0.2 * 10/11 is clipped


def test_rates_count_what_was_observed() -> None:
    turns = [call("a"), call("b", "error"), call("c", "invalid_action"), call("d", repaired=True), call("a")]
    _, parts, _ = score_trajectory(TASK, episode(*turns))
    assert parts["schema_valid_rate"] == pytest.approx(3 / 5)  # a repaired call runs but is not schema-valid
    assert parts["exec_success_rate"] == pytest.approx(3 / 4)  # a refused call did not run
    assert parts["invalid_action_rate"] == pytest.approx(1 / 5)
    assert parts["repetition"] == pytest.approx(1 / 5)
    assert parts["format_score"] == pytest.approx(4 / 6)


def test_no_call_earns_no_execution_or_schema_credit() -> None:
    value, parts, _ = score_trajectory(TASK, episode())
    assert parts["schema_valid_rate"] == parts["exec_success_rate"] == parts["tool_selection_f1"] == 0.0
    assert value < reward(call("a"))


def test_public_case_e12(cases_dir: Path) -> None:
    lines = (cases_dir / "files" / "E_training.jsonl").read_text(encoding="utf-8").splitlines()
    case = next(json.loads(line) for line in lines if json.loads(line)["id"] == "E12")
    many_wrong, one_right, none_right = (
        reward(*(call(str(i)) for i in range(row["calls"])), answer=RIGHT if row["answer_ok"] else WRONG)
        for row in case["rows"]
    )
    assert one_right > none_right > many_wrong


def test_tag_errors_and_unfinished_cost() -> None:
    clean = reward(call("a"), answer=WRONG)
    assert reward(call("a"), answer=WRONG, flags=("run_on",)) < clean - 0.3
    assert reward(call("a"), answer=None) < clean - 0.4


def test_empty_and_void() -> None:
    value, parts, verdict = score_trajectory(TASK, Trajectory(task_id="t"))
    assert verdict.score == parts["format_score"] == parts["turn_efficiency"] == 0.0
    assert value == pytest.approx(-0.5)


CALLS = st.builds(
    call,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["ok", "error", "timeout", "invalid_action"]),
    st.sampled_from(TASK.tools),
    st.booleans(),
)


@given(st.lists(CALLS, max_size=8), CALLS, st.lists(st.sampled_from(TASK.tools), max_size=3))
def test_an_extra_call_never_raises_the_reward_of_a_wrong_answer(
    turns: list[Turn], extra: Turn, expected: list[str]
) -> None:
    task = TASK.model_copy(update={"expected_tools": expected})
    before, _, _ = score_trajectory(task, episode(*turns, answer=WRONG))
    after, _, _ = score_trajectory(task, episode(*turns, extra, answer=WRONG))
    if len(turns) >= max(1, len(expected)):
        assert after <= before + 1e-12
    assert LOWEST <= after <= HIGHEST


@given(st.lists(CALLS, max_size=8))
def test_right_beats_wrong_with_the_same_calls(turns: list[Turn]) -> None:
    assert reward(*turns, answer=RIGHT) > reward(*turns, answer=WRONG)


@pytest.mark.parametrize(
    ("answer", "flags", "expected"),
    [
        (RIGHT, (), 1.0),
        (RIGHT + " " * (640 - len(RIGHT)), (), 0.75),
        (RIGHT + " " * 2000, (), 0.5),
        (WRONG, (), 0.0),
        (RIGHT, ("unclosed_tag",), -0.1),
        (None, (), -0.1),
        ("", (), -0.1),
    ],
)
def test_paper_preset(answer: str | None, flags: tuple[str, ...], expected: float) -> None:
    value, _, _ = score_trajectory(TASK, episode(call("a"), answer=answer, flags=flags), "paper")
    assert value == pytest.approx(expected)


# ------------------------------------------------------------------------------------------ the specification


def test_the_published_weights_parts_and_presets() -> None:
    """scoring.md, "Trajectory reward": users compare with these numbers."""
    assert WEIGHTS == {
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
    assert (LOWEST, HIGHEST) == (-3.0, 5.0)
    assert PRESETS == get_args(Preset) == ("ops", "paper")
    with pytest.raises(UserError, match="unknown reward preset 'papre'; the presets are ops, paper"):
        score_trajectory(TASK, episode(), "papre")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(WEIGHTS))
def test_the_reward_is_the_weighted_sum_of_its_parts(name: str) -> None:
    """One part at a time, over episodes that differ in it, against the plain formula."""
    for turns in ([], [call("a")], [call("a", "error")], [call("a"), call("a")], [call("a", "invalid_action")]):
        for flags in ((), ("run_on",), ("run_on", "unclosed_tag")):
            value, parts, _ = score_trajectory(TASK, episode(*turns, flags=flags))
            rest = sum(weight * parts[part] for part, weight in WEIGHTS.items() if part != name)
            assert value == pytest.approx(min(5.0, max(-3.0, rest + WEIGHTS[name] * parts[name])))


def test_both_ends_are_clipped() -> None:
    many = tuple(["run_on"] * 40)
    assert reward(call("a"), answer=WRONG, flags=many) == LOWEST
    assert reward(call("a")) == HIGHEST


@pytest.mark.parametrize("length", [0, 255, 256, 257, 640, 1023, 1024, 1025, 5000])
def test_paper_length_between_256_and_1024(length: int) -> None:
    answer = RIGHT.ljust(length, ".") if length else RIGHT
    value, _, verdict = score_trajectory(TASK, episode(call("a"), answer=answer), "paper")
    assert verdict.correct
    expected = 1.0 if len(answer) <= 256 else 0.5 if len(answer) >= 1024 else 1 - 0.5 * (len(answer) - 256) / 768
    assert value == pytest.approx(expected)


# ------------------------------------------------------------------------------------------ games

DUMP = "\n".join(f"r{i}  {i / 2}" for i in range(40))  # 12.5 is in there
GAMES: dict[str, Trajectory] = {
    "no call, empty answer": episode(answer=""),
    "no call, never answers": episode(answer=None),
    "dumps the table": episode(call("print(df)"), answer=DUMP),
    "lists many numbers": episode(call("a"), answer=", ".join(str(i / 2) for i in range(40))),
    "repeats the question": episode(call("a"), answer=TASK.question),
    "many calls": episode(*(call(f"print({i})") for i in range(11)), answer=WRONG),
    "the same call again and again": episode(*(call("print(1)") for _ in range(11)), answer=WRONG),
    "never answers": episode(*(call(f"print({i})") for i in range(12)), answer=None),
    "answers inside reasoning": episode(call("a"), answer="<think>The mean is 12.5.</think>"),
    "a range": episode(call("a"), answer="between 1 and 100, around 12.5 to 13"),
    "hedges": episode(call("a"), answer="either 12.5 or 13.5"),
    "every unit": episode(call("a"), answer="12.5 kg = 12500 g"),
    "answers with code": episode(call("a"), answer="print(12.5)"),
    "answers with a call": episode(call("a"), answer='<tool_call>{"name": "calculator"} 12.5</tool_call>'),
    "answers with JSON": episode(call("a"), answer='{"mean": 12.5, "median": 11, "max": 40}'),
}


@pytest.mark.parametrize("name", GAMES)
def test_games_are_wrong_and_worth_less_than_an_honest_wrong_answer(name: str) -> None:
    value, parts, verdict = score_trajectory(TASK, GAMES[name])
    assert not verdict.correct and parts["task_success"] == parts["answer_score"] == 0.0, verdict.reason
    assert value <= reward(call("a"), answer=WRONG) + 1e-9
    assert value < reward(call("a"), answer=RIGHT) - 2
    assert score_trajectory(TASK, GAMES[name], "paper")[0] <= 0.0


@given(st.lists(CALLS, max_size=6), st.booleans())
def test_scoring_changes_and_runs_nothing(turns: list[Turn], right: bool) -> None:
    trajectory = episode(*turns, answer=RIGHT if right else WRONG)
    before = trajectory.model_dump_json()
    assert score_trajectory(TASK, trajectory) == score_trajectory(TASK, trajectory)
    assert trajectory.model_dump_json() == before


REFUSED = st.builds(
    call, st.sampled_from(["a", "b", "c"]), st.just("invalid_action"), st.sampled_from(TASK.tools), st.booleans()
)


@given(st.lists(REFUSED, max_size=5))
def test_refused_calls_earn_nothing(turns: list[Turn]) -> None:
    _, parts, _ = score_trajectory(TASK, episode(*turns, answer=WRONG))
    assert parts["schema_valid_rate"] == parts["exec_success_rate"] == parts["tool_selection_f1"] == 0.0
    assert reward(*turns, answer=WRONG) <= reward(answer=WRONG) + 1e-9
