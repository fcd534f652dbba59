"""`agentic eval --endpoint` against a real HTTP server on loopback: whatever the server does ends in trajectories.jsonl."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_server import Scripted, ScriptedServer, chat_reply, error_reply

from agentic import jsonl
from agentic.cli import main
from agentic.records import StopReason, Task, Trajectory
from agentic.tools.parse import render_call

pytest_plugins = ("built", "shared_zygote")
pytestmark = [pytest.mark.endpoint, pytest.mark.usefixtures("bare_environment", "shared_zygote")]
Body = dict[str, Any]


@pytest.fixture()
def rows(tmp_path: Path) -> Path:
    """Four tasks over one table; the right answer is always 3."""
    (tmp_path / "df.csv").write_text("a,b\n1,x\n2,y\n3,z\n")
    tasks = [
        Task.model_validate(
            {
                "id": f"t{number}",
                "question": f"How many rows are there ({number})?",
                "tables": [{"name": "df", "path": "df.csv"}],
                "expected_tools": ["python_executor"],
                "checks": [{"kind": "number", "value": 3}],
                "answer": "3",
            }
        )
        for number in range(4)
    ]
    jsonl.write(tmp_path / "tasks.jsonl", tasks)
    return tmp_path / "tasks.jsonl"


def evaluate(data: Path, out: Path, server: ScriptedServer, *options: str) -> dict[str, Trajectory]:
    assert main(["eval", f"--data={data}", f"--output_dir={out}", f"--endpoint={server.url}", *options]) == 0
    assert (out / "metrics.json").is_file() and (out / "bad_cases.jsonl").is_file()
    return {trajectory.task_id: trajectory for trajectory in jsonl.read(out / "trajectories.jsonl", Trajectory)}


def success(out: Path) -> float:
    found: float = json.loads((out / "metrics.json").read_text())["metrics"]["task_success"]["mean"]
    return found


def turn(body: Body) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


def number(body: Body) -> int:
    """Which of the four tasks a request is about."""
    return next(n for n in range(4) if f"({n})?" in body["messages"][1]["content"])


def agent(body: Body) -> Body:
    """Counts the rows, then answers with what it was told; natively where tools are offered so."""
    if turn(body):
        said = body["messages"][-1]["content"].replace("<tool_response>", "").replace("</tool_response>", "")
        return chat_reply(f"There are {said.strip()} rows.")
    code = {"code": "print(len(df))"}
    if "tools" in body:
        return chat_reply(None, [("python_executor", code)], "tool_calls")
    return chat_reply(render_call("python_executor", code))


@pytest.mark.parametrize("mode", [pytest.param("text", marks=pytest.mark.slow), "native"])
def test_calls_run_and_come_back_whatever_happens_on_the_way(rows: Path, tmp_path: Path, mode: str) -> None:
    """Every turn of three tasks meets it once: a rate limit, an overload, a dropped connection."""
    trouble: list[Any] = [
        error_reply(429, "slow down", {"Retry-After": "0"}),
        error_reply(500, "overloaded", {"Retry-After": "0"}),
        "drop",
    ]
    met: set[tuple[int, int]] = set()
    lock = threading.Lock()

    def server_in_trouble(body: Body) -> Any:
        key = (number(body), turn(body))
        with lock:
            first = key[0] < 3 and key not in met
            met.add(key)
        return trouble[key[0]] if first else agent(body)

    with ScriptedServer([server_in_trouble], repeat=True) as server:
        found = evaluate(rows, tmp_path / "run", server, f"--tool_mode={mode}", "--endpoint_model=org/m")
    assert success(tmp_path / "run") == 1.0 and len(server.requests) == 8 + 6
    assert {(t.stop_reason, t.error, t.policy) for t in found.values()} == {(StopReason.ANSWERED, None, "org/m")}
    assert {t.answer for t in found.values()} == {"There are 3 rows."}
    assert all([o.text for o in t.turns[0].observations] == ["3"] for t in found.values())
    assert all([turn.generated_tokens for turn in t.turns] == [7, 7] for t in found.values())
    second = next(request.body for request in server.requests if turn(request.body))
    roles = [message["role"] for message in second["messages"]]
    assert roles == ["system", "user", "assistant", "tool" if mode == "native" else "user"]
    if mode == "native":
        (call,) = second["messages"][2]["tool_calls"]
        assert call["id"] == second["messages"][3]["tool_call_id"]
        assert json.loads(call["function"]["arguments"]) == {"code": "print(len(df))"}
        assert [tool["function"]["name"] for tool in second["tools"]] == ["python_executor"]
    else:
        assert "python_executor" in second["messages"][0]["content"] and "tools" not in second


def test_trouble_that_stays_is_data_and_is_tried_again(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def server_that_refuses(body: Body) -> Any:
        if number(body) == 1:
            return error_reply(400, "context length exceeded")
        if number(body) == 2 and turn(body):
            return Scripted(200, {}, "<html>not the API</html>")
        return agent(body)

    run = tmp_path / "run"
    with ScriptedServer([server_that_refuses], repeat=True) as server:
        found = evaluate(rows, run, server)
    assert success(run) == 0.5
    assert {name: t.stop_reason for name, t in found.items()} == {
        "t0": StopReason.ANSWERED,
        "t1": StopReason.POLICY_ERROR,
        "t2": StopReason.POLICY_ERROR,
        "t3": StopReason.ANSWERED,
    }
    assert "HTTP 400 Bad Request: context length exceeded" in str(found["t1"].error)
    assert "not JSON" in str(found["t2"].error) and found["t2"].turns[0].observations[0].text == "3"
    assert found["t1"].answer is None and found["t1"].void
    assert json.loads((run / "metrics.json").read_text())["failures"] == {"right": 2, "harness": 2}
    assert "context length exceeded" in (run / "bad_cases.jsonl").read_text()
    # The server was mended: only what it had failed is asked again.
    with ScriptedServer([agent], repeat=True, port=server.port) as server:
        evaluate(rows, run, server)
    assert success(run) == 1.0 and {number(request.body) for request in server.requests} == {1, 2}
    assert "2 of 4 trajectories are already there, 2 to go" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_data_too(rows: Path, tmp_path: Path) -> None:
    with ScriptedServer([agent]) as server:
        pass
    found = evaluate(rows, tmp_path / "run", server)
    assert {t.stop_reason for t in found.values()} == {StopReason.POLICY_ERROR}
    assert all("cannot connect" in str(t.error) for t in found.values())


@pytest.mark.parametrize("mode", ["text", pytest.param("native", marks=pytest.mark.slow)])
def test_odd_turns_of_a_server_end_as_data(rows: Path, tmp_path: Path, mode: str) -> None:
    """A cut turn, a call of an unknown tool, broken arguments, an empty turn; each followed by nothing but itself."""
    odd: list[Callable[[], Body]] = [
        lambda: chat_reply('<tool_call>{"name": "python_exec', finish_reason="length"),
        lambda: chat_reply(None, [("sql_executor", {"query": "select 1"})], "tool_calls"),
        lambda: chat_reply(None, [("python_executor", '{"code": print(1)')], "tool_calls"),
        lambda: chat_reply(""),
    ]
    with ScriptedServer([lambda body: odd[number(body)]()], repeat=True) as server:
        found = evaluate(rows, tmp_path / "run", server, f"--tool_mode={mode}")
    assert [found[f"t{n}"].stop_reason for n in range(4)] == [
        StopReason.TRUNCATED,
        StopReason.PARSE_ERROR,
        found["t2"].stop_reason,
        StopReason.VOID,
    ]
    assert found["t2"].stop_reason in {StopReason.PARSE_ERROR, StopReason.MAX_TURNS}
    assert "python_executor(code)" in found["t1"].turns[0].observations[0].text
    assert success(tmp_path / "run") == 0.0


def test_a_slow_server_meets_the_deadline_and_holds_up_nobody(rows: Path, tmp_path: Path) -> None:
    def slow(body: Body) -> Any:
        return Scripted(200, {}, chat_reply("3"), delay_s=30.0 if number(body) == 0 else 0.0)

    with ScriptedServer([slow], repeat=True) as server:
        found = evaluate(rows, tmp_path / "run", server, "--deadline_s=1")
    assert [found[f"t{n}"].stop_reason for n in range(4)] == [StopReason.DEADLINE] + [StopReason.ANSWERED] * 3


def test_a_server_that_knows_the_experts_scores_everything(built: Path, tmp_path: Path) -> None:
    """Retriever, Python and calculator as native tools, for built tasks in both languages."""
    tasks = {task.question: task for task in jsonl.read(built / "test.jsonl", Task)}

    def expert(body: Body) -> Body:
        question = body["messages"][1]["content"].rsplit("Question: ", 1)[1]
        message = [m for m in tasks[question].expert_trajectory if m.role == "assistant"][turn(body)]
        calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]
        return chat_reply(message.content or None, calls, "tool_calls" if calls else "stop")

    with ScriptedServer([expert], repeat=True) as server:
        found = evaluate(built / "test.jsonl", tmp_path / "run", server, "--tool_mode=native")
    assert success(tmp_path / "run") == 1.0 and len(found) == 8
    summary = json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]
    assert summary["schema_valid_rate"]["mean"] == summary["format_score"]["mean"] == 1.0
