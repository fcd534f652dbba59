"""The endpoint policy against a real HTTP server on loopback: whatever the server does ends in a Reply."""

from __future__ import annotations

import asyncio
import email.utils
import itertools
import json
import os
import socket
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from http_server import Scripted, ScriptedServer, chat_reply, error_reply
from hypothesis import given
from hypothesis import strategies as st

from agentic.errors import UserError
from agentic.model.chat import tools_text
from agentic.policy.base import Conversation, Reply
from agentic.policy.chat_api import ToolMode, api_messages, read_completion
from agentic.policy.endpoint import EndpointPolicy
from agentic.records import Message, ToolCall, ToolFunction
from agentic.tools.base import TOOLS
from agentic.tools.parse import parse_message, render_call

pytestmark = pytest.mark.endpoint

TOOL_LIST = list(TOOLS.values())
KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.lower().endswith("_proxy") or name in ("AGENTIC_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.delenv(name)


def user(text: str = "How many rows?") -> list[Message]:
    return [Message(role="system", content="You analyse data."), Message(role="user", content=text)]


def called(name: str, arguments: str, content: str = "", id: str | None = None) -> Message:
    call = ToolCall(id=id, function=ToolFunction(name=name, arguments=arguments))
    return Message(role="assistant", content=content, tool_calls=[call])


def ask(server: ScriptedServer, messages: list[Message] | None = None, sample: int = 0, **options: Any) -> Reply:
    """One turn from a fresh policy."""

    async def turn() -> Reply:
        policy = EndpointPolicy(options.pop("base_url", server.url), **{"backoff_s": 0.01, **options})
        try:
            return await policy.act(Conversation(messages or user(), TOOL_LIST, sample=sample), 64)
        finally:
            await policy.close()

    return asyncio.run(turn())


# ------------------------------------------------------------------------------------------ requests


def test_text_mode_tells_tools_calls_and_results_as_text() -> None:
    call = render_call("python_executor", {"code": "print(len(df))"})
    history = [
        *user(),
        called("python_executor", '{"code": "print(len(df))"}', content="Count."),
        Message(role="tool", content="4217", name="python_executor"),
    ]
    with ScriptedServer([chat_reply(call, tokens=12)]) as server:
        reply = ask(server, history, model="m", seed=5, sample=2)
    assert reply == Reply(call, tokens=12)
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer none"
    assert request.body == {
        "model": "m",
        "max_tokens": 64,
        "temperature": 0.0,
        "seed": 7,
        "messages": [
            {"role": "system", "content": "You analyse data.\n" + tools_text(TOOL_LIST)},
            {"role": "user", "content": "How many rows?"},
            {"role": "assistant", "content": "Count.\n" + call},
            {"role": "user", "content": "<tool_response>\n4217\n</tool_response>"},
        ],
    }


def test_native_mode_uses_the_tools_of_the_api() -> None:
    history = [
        *user(),
        called("python_executor", '{"code": "1"}'),
        Message(role="tool", content="1"),
        called("calculator", '{"expression": "1/0"}', id="own"),
        Message(role="tool", content="error: division by zero", tool_call_id="own"),
    ]
    answer = chat_reply(None, [("retriever", {"query": "毛利"}), ("calculator", {"expression": "2"})], "tool_calls")
    with ScriptedServer([answer]) as server:
        reply = ask(server, history, tool_mode="native")
    assert reply.text == render_call("retriever", {"query": "毛利"}) + "\n" + render_call(
        "calculator", {"expression": "2"}
    )
    assert reply.finish == "stop"
    body = server.requests[0].body
    assert body["tools"] == [tool.schema() for tool in TOOL_LIST]
    assert body["messages"][0]["content"] == "You analyse data."
    assert [m["tool_calls"][0]["id"] for m in body["messages"] if "tool_calls" in m] == ["call_0", "own"]
    assert [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"] == ["call_0", "own"]


def test_native_arguments_that_are_not_json_reach_the_parser() -> None:
    with ScriptedServer([chat_reply("Count.", [("python_executor", '{"code": "print(1')], "tool_calls")]) as server:
        reply = ask(server, tool_mode="native")
    assert reply.text.startswith("Count.\n<tool_call>") and '{"code": "print(1' in reply.text
    assert all(action.kind == "invalid" or action.repaired for action in parse_message(reply.text, TOOL_LIST))


@pytest.mark.parametrize("arguments", ["", None, {}])
def test_a_native_call_without_arguments_stays_a_call(arguments: Any) -> None:
    body = chat_reply(None, [("calculator", "x")])
    body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
    assert read_completion(json.dumps(body)) == Reply(render_call("calculator", {}), tokens=7)


def test_f11_a_malformed_call_earlier_leaves_the_history_valid() -> None:
    cases = Path(os.environ.get("AGENTIC_CASES", "../shared/cases")) / "files" / "B_tool_calls.jsonl"
    if not cases.exists():
        pytest.skip(f"no public failure cases at {cases}")
    for line in cases.read_text(encoding="utf-8").splitlines():
        raw = json.loads(line)["raw"]
        history = [
            *user(),
            Message(role="assistant", content=raw),
            Message(role="tool", content="the call is not valid JSON"),
            called("python_executor", raw),
            Message(role="tool", content="again"),
            called("calculator", '{"expression": "1"}'),
            Message(role="tool", content="1"),
        ]
        check_native(api_messages(history, TOOL_LIST, "native"))
        with ScriptedServer([chat_reply("1")]) as server:
            assert ask(server, history, tool_mode="native").text == "1"
        assert raw.encode("utf-8", "replace").decode() == server.requests[0].body["messages"][2]["content"]


def check_native(sent: list[dict[str, Any]]) -> None:
    """What strict servers demand: each call answered at once by its id, strict JSON objects as arguments, UTF-8."""
    json.dumps(sent, ensure_ascii=False, allow_nan=False).encode("utf-8")
    waiting: set[str] = set()
    for message in sent:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"], parse_constant=pytest.fail), dict)
            assert call["id"] not in waiting
            waiting.add(call["id"])
    assert not waiting
    assert all(a["role"] != "user" or b["role"] != "user" for a, b in itertools.pairwise(sent))


# Any text, lone surrogates too: what a model writes and a cell holds.
any_text = st.text(st.characters(), max_size=20)
ids = st.sampled_from([None, None, "call_0", "x", "y"])
arguments = st.one_of(
    any_text, st.sampled_from(['{"code": "1"}', '{"a": NaN}', '{"a": "\\ud83d"}', "[1]", "{}", '{"a": 1e999}'])
)
function = st.builds(ToolFunction, name=st.one_of(st.sampled_from(list(TOOLS)), any_text), arguments=arguments)
calls = st.lists(st.builds(ToolCall, id=ids, function=function), max_size=3)
message = st.one_of(
    st.builds(Message, role=st.sampled_from(["user", "assistant"]), content=any_text),
    st.builds(Message, role=st.just("assistant"), content=any_text, tool_calls=calls),
    st.builds(Message, role=st.just("tool"), content=any_text, tool_call_id=ids),
)


@given(st.lists(message, max_size=8), st.sampled_from(["text", "native"]))
def test_any_history_becomes_a_valid_request(history: list[Message], tool_mode: ToolMode) -> None:
    sent = api_messages(history, TOOL_LIST, tool_mode)
    check_native(sent)
    if tool_mode == "text":
        assert {m["role"] for m in sent} <= {"system", "user", "assistant"}
        assert not any("tool_calls" in m for m in sent)


# ------------------------------------------------------------------------------------------- retries


def test_f07_retry_after_is_honoured() -> None:
    limited = error_reply(429, "slow down", {"Retry-After": "0.3"})
    with ScriptedServer([limited, limited, chat_reply("ok")]) as server:
        started = time.monotonic()
        assert ask(server).text == "ok"
        assert time.monotonic() - started >= 0.6
    assert len(server.requests) == 3


@pytest.mark.slow
def test_retry_after_may_be_a_date() -> None:
    def limited(_: dict[str, Any]) -> Scripted:
        return error_reply(429, "slow", {"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True)})

    with ScriptedServer([limited, chat_reply("ok")]) as server:
        started = time.monotonic()
        assert ask(server).text == "ok"
        assert time.monotonic() - started >= 0.9  # dates have whole seconds


@pytest.mark.parametrize("value", ["soon", "-3", "nan", "inf", "Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 99 Foo"])
def test_an_unusable_retry_after_falls_back_to_backoff(value: str) -> None:
    with ScriptedServer([error_reply(503, "busy", {"Retry-After": value}), chat_reply("ok")]) as server:
        assert ask(server).text == "ok"


@pytest.mark.parametrize(
    "first", ["drop", *(error_reply(status, "later") for status in (408, 409, 429, 500, 502, 503))]
)
def test_passing_failures_are_retried(first: Any) -> None:
    async def turn() -> tuple[Reply, int]:
        policy = EndpointPolicy(server.url, backoff_s=0.01)
        reply = await policy.act(Conversation(user(), TOOL_LIST), 64)
        await policy.close()
        return reply, policy.retries

    with ScriptedServer([first, first, chat_reply("ok")]) as server:
        assert asyncio.run(turn()) == (Reply("ok", tokens=7), 2)
    assert server.requests[0].body == server.requests[2].body


def test_a_body_cut_short_is_a_dropped_connection() -> None:
    cut = Scripted(200, {"Content-Length": "5000", "Connection": "close"}, '{"choices": [')
    with ScriptedServer([cut, chat_reply("ok")]) as server:
        assert ask(server).text == "ok"


def test_f07b_exhaustion_keeps_the_cause() -> None:
    with ScriptedServer([error_reply(429, "quota of 5 requests a minute")], repeat=True) as server:
        reply = ask(server)
    assert reply == Reply(
        "", finish="error", error="HTTP 429 Too Many Requests after 5 retries: quota of 5 requests a minute"
    )
    assert len(server.requests) == 6


def test_a_server_that_always_drops_is_named() -> None:
    with ScriptedServer(["drop"], repeat=True) as server:
        reply = ask(server, max_retries=1)
    assert reply.error is not None
    assert reply.error.startswith(f"connection to {server.url} dropped after 1 retry: ")


def test_a_slow_server_times_out_with_the_limit_named() -> None:
    with ScriptedServer([Scripted(body=chat_reply("late"), delay_s=5)], repeat=True) as server:
        started = time.monotonic()
        reply = ask(server, timeout_s=0.2, max_retries=1)
        assert time.monotonic() - started < 3
    assert reply.finish == "error"
    assert reply.error == (
        f"no answer from {server.url} within 0.2 s after 1 retry: the server is overloaded or the time limit too short"
    )


def test_a_timeout_is_retried() -> None:
    with ScriptedServer([Scripted(body=chat_reply("late"), delay_s=5), chat_reply("ok")]) as server:
        assert ask(server, timeout_s=0.5).text == "ok"


def test_at_most_max_concurrency_requests_are_in_flight() -> None:
    async def turns() -> list[Reply]:
        policy = EndpointPolicy(server.url, max_concurrency=2)
        replies = await asyncio.gather(*(policy.act(Conversation(user(), []), 8) for _ in range(7)))
        await policy.close()
        return replies

    with ScriptedServer([Scripted(body=chat_reply("ok"), delay_s=0.05)], repeat=True) as server:
        assert [reply.text for reply in asyncio.run(turns())] == ["ok"] * 7
    assert server.max_in_flight == 2


# ------------------------------------------------------------------------------------ failures for good


@pytest.mark.parametrize(
    ("status", "message", "remedy"),
    [
        (400, "This model's maximum context length is 4096 tokens", ""),
        (401, "bad credentials", "AGENTIC_API_KEY"),
        (404, "The model `default` does not exist", "model name 'default'"),
        (422, "messages: field required", ""),
    ],
)
def test_refusals_fail_at_once_with_the_servers_message(status: int, message: str, remedy: str) -> None:
    with ScriptedServer([error_reply(status, message)]) as server:
        reply = ask(server)
    assert reply.finish == "error" and reply.error is not None
    assert reply.error.startswith(f"HTTP {status} ") and message in reply.error and remedy in reply.error
    assert "retr" not in reply.error
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "plain"}, "plain"),
        ({"detail": "fastapi"}, "fastapi"),
        ({"message": "flat"}, "flat"),
        ("just text", "just text"),
        ("", "the server gave no message"),
        ("<html><style>b{}</style><body>Bad <b>Gateway</b></body></html>", "Bad Gateway"),
        ({"error": {"message": "x" * 5000}}, "x" * 400 + " ..."),
    ],
)
def test_error_bodies_of_any_shape_are_read(body: Any, message: str) -> None:
    with ScriptedServer([Scripted(400, {}, body)]) as server:
        assert ask(server).error == f"HTTP 400 Bad Request: {message}"


NO_CHOICES: dict[str, Any] = {"choices": []}
NULL_CONTENT = chat_reply(None)
ERROR_IN_200 = {"error": {"message": "upstream is down", "code": 502}}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (NO_CHOICES, "no chat completion: choices"),
        (NULL_CONTENT, "empty: neither content nor tool calls"),
        (ERROR_IN_200, "upstream is down"),
        ("<html><body>Welcome to nginx</body></html>", "not JSON: Welcome to nginx"),
        ("{half", "not JSON"),
        ("", "not JSON"),
        ("[1]", "no chat completion"),
        (b"\xff\xfe\x00", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ({"choices": [{"message": None}]}, "choices.0.message"),
        (chat_reply("I cannot", finish_reason="content_filter"), "content filter"),
    ],
)
def test_a_200_that_is_no_completion_is_an_error_reply(body: Any, said: str) -> None:
    with ScriptedServer([Scripted(200, {}, body)]) as server:
        reply = ask(server)
    assert reply.finish == "error" and reply.text == ""
    assert reply.error is not None and said in reply.error


@pytest.mark.parametrize("content", ["half a sent", None])
def test_finish_reason_length(content: str | None) -> None:
    with ScriptedServer([chat_reply(content, finish_reason="length", tokens=64)]) as server:
        assert ask(server) == Reply(content or "", finish="length", tokens=64)


def test_nobody_listening_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with ScriptedServer([]) as server:
            reply = ask(server, base_url=url)
    assert reply.finish == "error" and reply.error is not None
    assert reply.error.startswith(f"cannot connect to {url}: ") and "base URL" in reply.error


def test_a_server_that_goes_away_and_comes_back_is_waited_for() -> None:
    """The address answered before, so a refused connection is a restart, not a wrong base URL."""

    async def turns() -> tuple[str, str]:
        with ScriptedServer([chat_reply("one")]) as server:
            policy = EndpointPolicy(server.url, backoff_s=0.1)
            first = await policy.act(Conversation(user(), TOOL_LIST), 64)
        waiting = asyncio.create_task(policy.act(Conversation(user(), TOOL_LIST), 64))
        await asyncio.sleep(0.1)
        with ScriptedServer([chat_reply("two")], port=server.port):
            second = await waiting
            await policy.close()
        return first.text, second.text

    assert asyncio.run(turns()) == ("one", "two")


def test_redirects_are_not_followed_but_named() -> None:
    with ScriptedServer([Scripted(308, {"Location": "https://example.invalid/v1/chat/completions"})]) as server:
        reply = ask(server)
    assert reply.error is not None and "https://example.invalid/v1" in reply.error


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000/v1", "localhost", "", "ftp://host/v1", "http://", "http://host:port/v1", "http://host/v1?key=x"],
)
def test_a_base_url_that_is_none_is_a_user_error(url: str) -> None:
    with pytest.raises(UserError, match="base URL"):
        EndpointPolicy(url)


def test_the_full_completions_url_is_accepted() -> None:
    with ScriptedServer([chat_reply("ok")]) as server:
        assert ask(server, base_url=server.url + "/chat/completions/").text == "ok"
    assert server.requests[0].path == "/v1/chat/completions"


# ---------------------------------------------------------------------------------------- proxies, key


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks://127.0.0.1:9", "nonsense"])
def test_f06_local_calls_bypass_the_proxy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    with ScriptedServer([chat_reply("ok"), chat_reply("ok")]) as server:
        assert ask(server).text == "ok"
        assert ask(server, base_url=f"http://localhost:{server.port}/v1").text == "ok"


def test_remote_calls_use_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer([chat_reply("through the proxy")]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        assert ask(proxy, base_url="http://models.invalid/v1").text == "through the proxy"
    assert proxy.requests[0].path == "http://models.invalid/v1/chat/completions"


def test_an_unusable_proxy_for_a_remote_server_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    with pytest.raises(UserError, match="ALL_PROXY"):
        EndpointPolicy("http://models.invalid/v1")


def test_key_from_argument_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer([chat_reply("ok")], repeat=True) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "openai-key\n")
        ask(server)
        monkeypatch.setenv("AGENTIC_API_KEY", "agentic-key")
        ask(server)
        ask(server, api_key="own-key")
    assert [r.headers["authorization"] for r in server.requests] == [
        "Bearer openai-key",
        "Bearer agentic-key",
        "Bearer own-key",
    ]


def test_the_key_is_never_shown(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    echo = error_reply(401, f"Incorrect API key provided: {KEY}")
    with ScriptedServer(
        [echo, Scripted(200, {}, f"<p>{KEY}</p>"), Scripted(500, {}, f"Bearer {KEY}")], repeat=True
    ) as server:
        errors = [ask(server, api_key=KEY, max_retries=1).error or "" for _ in range(3)]
        with_login = server.url.replace("http://", f"http://user:{KEY}@")
        errors.append(ask(server, base_url=with_login, api_key=KEY, max_retries=0).error or "")
    assert all(errors) and server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[-1].headers["authorization"] == "Basic " + b64encode(f"user:{KEY}".encode()).decode()
    policy = EndpointPolicy(server.url, api_key=KEY)
    shown = capsys.readouterr()
    for text in (*errors, repr(policy), str(policy), shown.out, shown.err, caplog.text):
        assert KEY not in text


def test_a_key_no_header_can_carry_is_a_user_error() -> None:
    with pytest.raises(UserError, match="API key") as caught:
        EndpointPolicy("http://127.0.0.1:1/v1", api_key="sk-密钥")
    assert "sk-" not in str(caught.value)
