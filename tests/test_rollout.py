"""Whole episodes with scripted policies in real sandbox sessions: however one ends, it ends as a trajectory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import jsonl
from agentic.errors import UserError
from agentic.policy.base import Conversation, Policy, Reply
from agentic.policy.replay import ReplayPolicy, assistant_text
from agentic.records import Action, Check, Message, ObservationStatus, StopReason, TableRef, Task, Trajectory
from agentic.rollout import RolloutLimits, assistant_message, run_episode, run_episodes
from agentic.sandbox import Sandbox
from agentic.tools.base import TOOLS
from agentic.tools.parse import parse_message, render_call

ALL = list(TOOLS.values())
ROWS = render_call("python_executor", {"code": "print(len(df))"})
Run = Callable[..., dict[str, Trajectory]]


@dataclass
class Playing:
    """A policy for what replaying texts cannot show: replies of any kind, after a while, or an exception."""

    replies: Callable[[Conversation], Reply]
    wait_s: dict[str, float] = field(default_factory=dict)
    name: str = "playing"
    version: str = "0"
    in_flight: int = 0
    most: int = 0

    async def act(self, conversation: Conversation, max_new_tokens: int) -> Reply:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(self.wait_s.get(conversation.task_id, 0.0))
            return self.replies(conversation)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        """Nothing is held."""


def task(task_id: str = "t", **changes: Any) -> Task:
    given = {
        "id": task_id,
        "question": "How many rows are there?",
        "tables": [TableRef(name="df", path="df.csv")],
        "tools": list(TOOLS),
        "expected_tools": ["python_executor"],
        "checks": [Check(kind="number", value=3)],
        "max_turns": 3,
    }
    return Task.model_validate({**given, **changes})


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner) -> Iterator[Sandbox]:
    sandbox = Sandbox()
    runner.run(sandbox.__aenter__())
    yield sandbox
    runner.run(sandbox.close())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    (folder / "df.csv").write_text("a,b\n1,x\n2,y\n3,z\n")
    return folder


@pytest.fixture()
def play(runner: asyncio.Runner, sandbox: Sandbox, folder: Path) -> Run:
    async def run(policy: Policy, tasks: list[Task], base_dir: Path, limits: RolloutLimits) -> dict[str, Trajectory]:
        found = run_episodes(((task, base_dir, 0) for task in tasks), policy, sandbox, limits)
        return {trajectory.task_id: trajectory async for trajectory in found}

    def start(
        policy: Policy, tasks: list[Task] | None = None, base_dir: Path = folder, **limits: Any
    ) -> dict[str, Trajectory]:
        trajectories = runner.run(run(policy, tasks or [task()], base_dir, RolloutLimits(**limits)))
        for trajectory in trajectories.values():
            # Whatever happened, it is data: strict JSON that reads back, and no observation is empty.
            assert Trajectory.model_validate_json(jsonl.dumps(trajectory)) == trajectory
            assert all(observation.text for turn in trajectory.turns for observation in turn.observations)
            assert trajectory.reward is not None and trajectory.isolation == sandbox.level
        return trajectories

    return start


def scripted(*texts: str) -> ReplayPolicy:
    return ReplayPolicy({"t": texts})


def constant(**reply: Any) -> Playing:
    return Playing(lambda _: Reply(**reply))


# ------------------------------------------------------------------------------------------ how it ends


def test_answered(play: Run) -> None:
    trajectory = play(scripted(ROWS, "There are 3 rows."))["t"]
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWERED, "There are 3 rows.")
    assert [turn.text for turn in trajectory.turns] == [ROWS, "There are 3 rows."]
    assert [o.text for o in trajectory.turns[0].observations] == ["3"]
    assert trajectory.parts["task_success"] == 1.0 and not trajectory.void and trajectory.error is None
    assert trajectory.policy == "replay" and trajectory.wall_ms > 0


def test_max_turns_needs_a_call_and_parse_error_is_without_one(play: Run) -> None:
    calls = play(scripted(ROWS, ROWS, ROWS, "3"))["t"]
    assert (calls.stop_reason, len(calls.turns), calls.answer, calls.void) == (StopReason.MAX_TURNS, 3, None, False)
    noise = play(scripted(*["<tool_call>{}</tool_call>"] * 4))["t"]
    assert (noise.stop_reason, len(noise.turns), noise.void) == (StopReason.PARSE_ERROR, 3, True)
    assert {o.status for turn in noise.turns for o in turn.observations} == {ObservationStatus.INVALID_ACTION}


def test_void(play: Run) -> None:
    nothing = play(ReplayPolicy.empty())["t"]
    assert (nothing.stop_reason, nothing.void, len(nothing.turns)) == (StopReason.VOID, True, 1)
    later = play(scripted(ROWS, "  "))["t"]
    assert (later.stop_reason, later.void) == (StopReason.VOID, False)


@pytest.mark.parametrize("text", [ROWS, ROWS[:-20], "There are 3", "<think>how ma", ROWS + ROWS[:-9]])
def test_what_the_token_budget_cut_is_neither_run_nor_an_answer(play: Run, text: str) -> None:
    trajectory = play(constant(text=text, finish="length", tokens=256))["t"]
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.TRUNCATED, None)
    assert trajectory.turns[0].observations == [] and trajectory.turns[0].text == text
    assert trajectory.parts["task_success"] == 0.0


def test_max_tokens(play: Run) -> None:
    trajectory = play(constant(text=ROWS, tokens=60), max_total_tokens=100)["t"]
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TOKENS, 2)
    assert trajectory.turns[1].observations[0].text == "3"


def test_policy_error_keeps_its_cause(play: Run) -> None:
    trajectory = play(constant(text="", finish="error", error="HTTP 500: overloaded"))["t"]
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.POLICY_ERROR, "HTTP 500: overloaded")


def test_a_bug_in_one_episode_is_said_and_leaves_the_others(play: Run) -> None:
    def reply(conversation: Conversation) -> Reply:
        if conversation.task_id == "bad":
            raise KeyError("oops")
        return Reply("3")

    found = play(Playing(reply), [task("a"), task("bad"), task("b")])
    assert [found[name].stop_reason for name in ("a", "b")] == [StopReason.ANSWERED] * 2
    assert (found["bad"].stop_reason, found["bad"].error) == (
        StopReason.POLICY_ERROR,
        "internal error: KeyError: 'oops'",
    )


def test_a_timeout_of_the_policy_is_no_deadline(play: Run) -> None:
    def reply(_: Conversation) -> Reply:
        raise TimeoutError("mine")

    assert play(Playing(reply))["t"].stop_reason == StopReason.POLICY_ERROR


def test_a_straggler_closes_at_its_deadline_and_holds_up_nobody(play: Run) -> None:
    slow = Playing(lambda _: Reply("3"), wait_s={"slow": 60.0})
    found = play(slow, [task("slow"), *(task(f"q{i}") for i in range(6))], deadline_s=0.3, concurrency=2)
    assert found["slow"].stop_reason == StopReason.DEADLINE and 300 <= found["slow"].wall_ms < 5000
    assert all(found[f"q{i}"].stop_reason == StopReason.ANSWERED for i in range(6))
    assert list(found)[-1] == "slow"
    assert slow.most == 2


def test_a_cell_that_runs_past_the_deadline(play: Run) -> None:
    busy = render_call("python_executor", {"code": "while True: pass"})
    found = play(ReplayPolicy({"t": [busy], "u": [ROWS, "3"]}), [task(), task("u")], deadline_s=0.6)
    assert found["t"].stop_reason == StopReason.DEADLINE and found["t"].turns[0].observations == []
    assert found["u"].stop_reason == StopReason.ANSWERED


def test_a_lost_sandbox_ends_its_episode_and_the_next_one_gets_a_new_one(play: Run, sandbox: Sandbox) -> None:
    def act(conversation: Conversation) -> str:
        if conversation.task_id == "u":
            return ROWS if len(conversation.messages) == 2 else "3"
        # From outside, while the cell runs: its code has no way to reach the zygote.
        threading.Timer(0.5, lambda: os.kill(sandbox.pids()[0], signal.SIGKILL)).start()
        return render_call("python_executor", {"code": "while True: pass"})

    found = play(ReplayPolicy(act), [task(), task("u")], concurrency=1)
    assert (found["t"].stop_reason, found["t"].answer) == (StopReason.SANDBOX_LOST, None)
    assert "could not start a session" in str(found["t"].error)
    assert found["u"].stop_reason == StopReason.ANSWERED and found["u"].turns[0].observations[0].text == "3"


def test_a_prelude_that_fails_is_a_lost_sandbox(play: Run, tmp_path: Path) -> None:
    # A table named like the prelude's own reader: the second table cannot be read.
    (tmp_path / "df.csv").write_text("a\n1\n")
    hidden = task(tables=[TableRef(name="_read", path="df.csv"), TableRef(name="b", path="df.csv")])
    trajectory = play(scripted(ROWS, "3"), [hidden], tmp_path)["t"]
    assert trajectory.stop_reason == StopReason.SANDBOX_LOST
    assert str(trajectory.error).startswith("prelude: ")


def test_a_bad_task_is_the_users_to_mend(play: Run) -> None:
    with pytest.raises(UserError, match=r"absent\.csv"):
        play(scripted("3"), [task(tables=[TableRef(name="df", path="absent.csv")])])
    with pytest.raises(UserError, match="unknown tool 'sql'"):
        play(scripted("3"), [task(tools=["sql"])])


def test_leaving_early_ends_what_is_in_flight(runner: asyncio.Runner, sandbox: Sandbox, folder: Path) -> None:
    policy = Playing(lambda _: Reply("3"), wait_s={"slow": 60.0})

    async def first() -> str:
        found = run_episodes([(task(name), folder, 0) for name in ("fast", "slow")], policy, sandbox)
        trajectory = await anext(found)
        await found.aclose()
        return trajectory.task_id

    assert runner.run(first()) == "fast"
    assert policy.in_flight == 0


# ------------------------------------------------------------------------------------------ public failure cases


@pytest.fixture(scope="session")
def messages(cases_dir: Path) -> dict[str, str]:
    lines = (cases_dir / "files" / "B_tool_calls.jsonl").read_text("utf-8").splitlines()
    return {row["id"]: row["raw"] for row in map(json.loads, lines)}


def test_b11_a_self_written_result_is_ignored(play: Run, messages: dict[str, str]) -> None:
    trajectory = play(scripted(messages["B11"], "There are 3 rows."))["t"]
    assert [o.text for o in trajectory.turns[0].observations] == ["3"]
    assert trajectory.answer == "There are 3 rows." and trajectory.parts["task_success"] == 1.0
    assert trajectory.parts["tag_errors"] > 0


def test_b16_an_answer_marker_inside_code_does_not_end_the_episode(play: Run, messages: dict[str, str]) -> None:
    trajectory = play(scripted(messages["B16"], "3"))["t"]
    assert trajectory.turns[0].observations[0].text == "<answer>5</answer>" and trajectory.answer == "3"


def test_b17_the_first_answer_belongs_to_the_question(play: Run, messages: dict[str, str]) -> None:
    trajectory = play(scripted(messages["B17"]), [task(checks=[Check(kind="number", value=12)])])["t"]
    assert trajectory.answer == "12" and trajectory.parts["task_success"] == 1.0
    assert "run_on" in trajectory.turns[0].actions[0].flags and trajectory.parts["format_score"] < 1.0


def test_b20_only_assistant_text_is_parsed(play: Run, cases_dir: Path) -> None:
    seen: list[Conversation] = []

    def reply(conversation: Conversation) -> str:
        seen.append(conversation)
        cell = render_call("python_executor", {"code": "print(df['comment'].to_list())"})
        return cell if len(conversation.messages) == 2 else "There are 3 rows."

    hostile = task(tables=[TableRef(name="df", path="B20_hostile_cells.csv")])
    trajectory = play(ReplayPolicy(reply), [hostile], cases_dir / "files")["t"]
    assert "<answer>999</answer>" in trajectory.turns[0].observations[0].text
    assert len(trajectory.turns) == 2 and trajectory.answer == "There are 3 rows."
    assert [message.role for message in seen[-1].messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize("case", ["B01", "B02", "B03", "B05", "B07", "B08", "B09", "B10", "B19", "B21b", "B21c", "B22"])
def test_every_message_of_the_cases_leaves_a_history_that_goes_on(
    play: Run, messages: dict[str, str], case: str
) -> None:
    """F11: one malformed call does not spoil the next turn; stored arguments are JSON."""
    seen: list[Message] = []

    def reply(conversation: Conversation) -> str:
        seen[:] = conversation.messages
        return messages[case] if len(conversation.messages) == 2 else "3"

    trajectory = play(ReplayPolicy(reply))["t"]
    assert trajectory.answer == "3"
    assert all(isinstance(json.loads(c.function.arguments), dict) for m in seen for c in m.tool_calls or ())


def test_c12_episodes_do_not_see_each_other(play: Run) -> None:
    write = render_call("python_executor", {"code": "secret = 41\nopen('note.txt', 'w').write('a')"})
    look = render_call("python_executor", {"code": "import os\n'secret' in globals(), os.path.exists('note.txt')"})
    found = play(ReplayPolicy({"t": [write, "3"], "u": [look, "3"]}), [task(), task("u")], concurrency=1)
    assert found["u"].turns[0].observations[0].text == "(False, False)"


def test_a_lone_surrogate_is_written_and_run(play: Run) -> None:
    trajectory = play(scripted("\ud83d " + ROWS, "\ud83d 3 rows"))["t"]
    assert trajectory.turns[0].observations[0].text == "3" and trajectory.answer == "? 3 rows"


# ------------------------------------------------------------------------------------------ the history


def test_several_calls_are_answered_in_order_under_ids_of_their_own(play: Run) -> None:
    seen: list[Message] = []
    texts = [ROWS + "\n" + render_call("calculator", {"expression": "2*3"}), ROWS, "3"]

    def reply(conversation: Conversation) -> str:
        seen[:] = conversation.messages
        return texts[sum(message.role == "assistant" for message in conversation.messages)]

    trajectory = play(ReplayPolicy(reply))["t"]
    assert [o.text for o in trajectory.turns[0].observations] == ["3", "6"]
    ids = [call.id for message in seen for call in message.tool_calls or ()]
    assert ids == ["call_0", "call_1", "call_2"]
    assert ids == [message.tool_call_id for message in seen if message.role == "tool"]


def history(text: str) -> Message:
    return assistant_message(text, parse_message(text, ALL))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (ROWS, ""),
        ("Let me look.\n" + ROWS, "Let me look."),
        ("<think>count</think>\n" + ROWS, "<think>count</think>"),
        (f"<think>perhaps {ROWS}</think>\n{ROWS}", f"<think>perhaps {ROWS}</think>"),
        ("look " + render_call("python_executor", {"code": "print('</think>')"}), "look"),
        ('<tool_call>{"name": "functions.python_executor", "arguments": {"code": "1"}}</tool_call>', ""),
        ('<tool_call>{"name": "python_executor", "arguments": "{\\"code\\": \\"1\\"}"}</tool_call>', ""),
        ("So: " + ROWS + "\n" + ROWS, "So:"),
    ],
)
def test_strict_calls_enter_the_history_as_calls(text: str, content: str) -> None:
    message = history(text)
    assert message.content == content and message.tool_calls
    again = parse_message(assistant_text(message), ALL)
    assert [(a.name, a.arguments) for a in again] == [(a.name, a.arguments) for a in parse_message(text, ALL)]
    assert not any(action.flags for action in again)


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 3.",
        ROWS + "\n<tool_response>\n9\n</tool_response>",
        ROWS.removesuffix("</tool_call>"),
        "<tool_call>{'name': 'python_executor', 'arguments': {'code': '1'}}</tool_call>",
        ROWS + " and <tool_call>{broken</tool_call>",
    ],
)
def test_anything_else_stands_as_written(text: str) -> None:
    assert history(text) == Message(role="assistant", content=text)


@given(st.text(), st.lists(st.sampled_from([ROWS, render_call("calculator", {"expression": "1+1"})]), min_size=1))
def test_the_history_says_what_was_parsed(before: str, calls: list[str]) -> None:
    text = before + "\n".join(calls)
    actions: list[Action] = parse_message(text, ALL)
    said = parse_message(assistant_text(assistant_message(text, actions)), ALL)
    assert [(a.kind, a.name, a.arguments) for a in said] == [(a.kind, a.name, a.arguments) for a in actions]


def test_one_episode_alone(runner: asyncio.Runner, sandbox: Sandbox, folder: Path) -> None:
    trajectory = runner.run(run_episode(task(), folder, scripted(ROWS, "3"), sandbox, sample=2))
    assert (trajectory.sample, trajectory.answer) == (2, "3")
