"""Both dialects through the real environment: the same tasks, the same scores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentic.data_analysis_env import prompt_messages
from agentic.policy.base import Conversation
from agentic.policy.replay import ReplayPolicy
from agentic.records import (
    Check,
    Document,
    Message,
    ObservationStatus,
    StopReason,
    TableRef,
    Task,
    ToolCall,
    ToolFunction,
)
from agentic.rollout import RolloutLimits, run_episode
from agentic.sandbox import Sandbox
from agentic.tools.base import TOOLS
from agentic.tools.dialect import in_react, shown_tools

pytest_plugins = ("shared_zygote",)
pytestmark = pytest.mark.usefixtures("shared_zygote")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "t.csv").write_text("g,x\na,1\nb,2\n", encoding="utf-8")
    return Task(
        id="t",
        question="What is the total x?",
        tables=[TableRef(name="df", path="t.csv")],
        tools=["python_executor", "retriever"],
        documents=[Document(id="d", title="total", text="total = sum")],
        expected_tools=["python_executor"],
        answer="The answer is 3.",
        checks=[Check(kind="number", value=3)],
    )


def play(task: Task, folder: Path, texts: list[str]) -> tuple[list[Message], object]:
    seen: list[Message] = []

    def script(conversation: Conversation) -> str:
        seen[:] = conversation.messages
        return texts[sum(message.role == "assistant" for message in conversation.messages)]

    async def episode() -> object:
        async with Sandbox() as sandbox:
            return await run_episode(task, folder, ReplayPolicy(script), sandbox, RolloutLimits(dialect="react"))

    return seen, asyncio.run(episode())


def test_react_episode(task: Task, tmp_path: Path) -> None:
    texts = [
        '<think>look it up</think><tool_call>{"name": "retriever", "arguments": {"query": "total"}}</tool_call>',
        "<think>now sum</think>\n<code>\n```python\nprint(df['x'].sum())\n```\n</code>",
        "<answer>The answer is 3.</answer>",
    ]
    messages, trajectory = play(task, tmp_path, texts)
    assert trajectory.stop_reason == StopReason.ANSWERED
    assert trajectory.parts["task_success"] == 1.0
    assert messages[3].role == "tool" and "total = sum" in messages[3].content
    assert messages[5] == Message(role="user", content="<interpreter>\n3\n</interpreter>")
    assert messages[4].content == texts[1], "the history is what was written"
    assert "<interpreter>" in messages[0].content and "python_executor" not in messages[0].content


def test_prose_is_no_answer_in_react(task: Task, tmp_path: Path) -> None:
    _, trajectory = play(task, tmp_path, ["The answer is 3."] * 6)
    assert trajectory.answer is None and trajectory.parts["task_success"] == 0.0
    assert trajectory.turns[0].observations[0].status == ObservationStatus.INVALID_ACTION


def test_expert_in_react_keeps_code_and_weights() -> None:
    code = "d = df[df['g'] == 'a']\nprint(d['x'].sum())"
    call = ToolCall(function=ToolFunction(name="python_executor", arguments=json.dumps({"code": code})))
    expert = [
        Message(role="assistant", tool_calls=[call], weight=0),
        Message(role="tool", name="python_executor", content="1"),
        Message(role="assistant", content="It is 1."),
    ]
    shown = in_react(expert)
    assert shown[0].weight == 0 and f"```python\n{code}\n```" in shown[0].content and shown[0].tool_calls is None
    assert shown[1].role == "user" and "<interpreter>\n1" in shown[1].content
    assert shown[2].content == "<answer>It is 1.</answer>"
    assert [tool.name for tool in shown_tools(list(TOOLS.values()), "react")] == [
        "retriever",
        "calculator",
        "sql_executor",
    ]


def test_prompts_differ_by_dialect_only_in_the_system_text(task: Task, tmp_path: Path) -> None:
    plain, react = prompt_messages(task, tmp_path), prompt_messages(task, tmp_path, dialect="react")
    assert plain[1] == react[1] and plain[0] != react[0]
