"""The replay policy plays what it is given, whatever the order in which episodes take their turns."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agentic.policy.base import Conversation, Reply
from agentic.policy.replay import ReplayPolicy, assistant_text, json_object
from agentic.records import Message, Task, ToolCall, ToolFunction
from agentic.tools.base import TOOLS
from agentic.tools.parse import parse_message, render_call


def conversation(task_id: str, turns: int = 0) -> Conversation:
    messages = [Message(role="user", content="q")]
    for _ in range(turns):
        messages += [Message(role="assistant", content="t"), Message(role="tool", content="o")]
    return Conversation(messages=messages, tools=list(TOOLS.values()), task_id=task_id)


def act(policy: ReplayPolicy, asked: Conversation) -> Reply:
    return asyncio.run(policy.act(asked, 10))


def call(name: str, arguments: str) -> ToolCall:
    return ToolCall(function=ToolFunction(name=name, arguments=arguments))


def test_turn_n_gets_script_n_in_any_order_and_then_nothing() -> None:
    policy = ReplayPolicy({"a": ["a0", "a1"], "b": ["b0"]})
    seen = [
        act(policy, conversation(*turn)).text for turn in [("a", 1), ("b", 0), ("a", 0), ("a", 2), ("b", 1), ("c", 0)]
    ]
    assert seen == ["a1", "b0", "a0", "", "", ""]


def test_a_callable_sees_the_conversation() -> None:
    policy = ReplayPolicy(lambda asked: f"{asked.task_id}:{len(asked.messages)}", name="echo")
    assert policy.name == "echo"
    assert act(policy, conversation("x", 1)).text == "x:3"


def test_empty_says_nothing() -> None:
    assert act(ReplayPolicy.empty(), conversation("a")) == Reply("")


def test_oracle_plays_the_assistant_messages_as_text() -> None:
    trajectory = [
        Message(role="assistant", content="Look.", tool_calls=[call("python_executor", '{"code": "print(\'订单\')"}')]),
        Message(role="tool", content="订单"),
        Message(role="assistant", content="The answer is 3."),
    ]
    tasks = [
        Task(id="t", question="q", expert_trajectory=trajectory),
        Task(id="u", question="q", answer="It is 4."),
    ]
    policy = ReplayPolicy.oracle(tasks)
    first = act(policy, conversation("t"))
    assert first.text == "Look.\n" + render_call("python_executor", {"code": "print('订单')"})
    assert first.finish == "stop"
    (action,) = parse_message(first.text, list(TOOLS.values()))
    assert (action.kind, action.arguments, action.repaired) == ("tool", {"code": "print('订单')"}, False)
    assert act(policy, conversation("t", 1)).text == "The answer is 3."
    assert act(policy, conversation("u")).text == "It is 4."


def test_broken_arguments_are_shown_to_the_parser_not_dropped() -> None:
    text = assistant_text(Message(role="assistant", tool_calls=[call("calculator", '{"expression": 1+')]))
    assert '{"expression": 1+' in text
    (action,) = parse_message(text, list(TOOLS.values()))
    assert action.kind == "invalid" or action.repaired


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.booleans(), st.none()), max_size=3))
def test_a_rendered_call_holds_its_arguments(arguments: dict[str, object]) -> None:
    import json

    text = assistant_text(Message(role="assistant", tool_calls=[call("calculator", json.dumps(arguments))]))
    assert text == render_call("calculator", arguments)


@given(st.text())
def test_json_object_never_raises(text: str) -> None:
    assert json_object(text) is None or text.strip().startswith("{")


def test_json_object_is_strict() -> None:
    for text in [
        "",
        "[]",
        '"x"',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": 1}}',
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
    ]:
        assert json_object(text) is None
    assert json_object(' {"a": 9007199254740993}') == {"a": 9007199254740993}
