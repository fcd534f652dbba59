"""The environment through reset, step and score, with real sandbox sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.data_analysis_env import Environment, EnvironmentLimits, close_columns, cut, prompt_messages, task_tools
from agentic.errors import UserError
from agentic.records import Action, Check, Document, ObservationStatus, StopReason, TableRef, Task, Trajectory, Turn
from agentic.sandbox import Limits, Sandbox, SandboxError
from agentic.tools.base import TOOLS

pytest_plugins = ("shared_zygote",)
pytestmark = pytest.mark.usefixtures("shared_zygote")

T = TypeVar("T")
SALES = "city,Net Sales,day\nYork,3,2024-01-01\nBath,4,2024-01-02\nYork,5,2024-01-03\n"


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sales.csv").write_text(SALES)
    return tmp_path


def task(**changes: Any) -> Task:
    given = {
        "id": "t",
        "question": "What is the total of Net Sales?",
        "tables": [TableRef(name="sales", path="sales.csv")],
        "tools": list(TOOLS),
        "checks": [Check(kind="number", value=12)],
        "documents": [
            Document(id="rr", title="refund rate", text="refund rate = refunds / orders"),
            Document(id="ctr", title="click-through rate", text="clicks / impressions"),
        ],
    }
    return Task.model_validate({**given, **changes})


def call(name: str, **arguments: Any) -> Action:
    return Action(kind="tool", name=name, arguments=arguments)


def cell(code: str) -> Action:
    return call("python_executor", code=code)


Use = Callable[[Environment], Awaitable[T]]
Play = Callable[..., Any]


@pytest.fixture(scope="module")
def running(shared_zygote: None) -> Iterator[tuple[asyncio.Runner, Sandbox]]:
    """One event loop and one sandbox for all tests of this file; every episode has its own session in it."""
    with asyncio.Runner() as runner:
        sandbox = Sandbox()
        runner.run(sandbox.__aenter__())
        yield runner, sandbox
        runner.run(sandbox.close())


@pytest.fixture()
def in_episode(running: tuple[asyncio.Runner, Sandbox], folder: Path) -> Play:
    runner, sandbox = running

    async def run(use: Use[T], given: Task | None, base_dir: Path, limits: EnvironmentLimits) -> T:
        environment = Environment(sandbox, limits)
        try:
            await environment.reset(given or task(), base_dir)
            return await use(environment)
        finally:
            await environment.close()

    def play(use: Use[T], given: Task | None = None, base_dir: Path = folder, **limits: Any) -> T:
        return runner.run(run(use, given, base_dir, EnvironmentLimits(**limits)))

    return play


# ------------------------------------------------------------------------------------------ the prompt


def test_prompt_is_system_then_card_then_question(folder: Path) -> None:
    system, user = prompt_messages(task(), folder)
    assert (system.role, user.role) == ("system", "user")
    assert user.content.startswith("Table sales: 3 rows\ncity (text): York, Bath\n")
    assert user.content.endswith("\nQuestion: What is the total of Net Sales?")


def test_tools_are_in_the_tasks_order_and_an_unknown_one_is_named() -> None:
    assert [tool.name for tool in task_tools(task(tools=["calculator", "retriever"]))] == ["calculator", "retriever"]
    with pytest.raises(UserError, match=r"task t: unknown tool 'sql'; the tools are python_executor, retriever"):
        task_tools(task(tools=["sql"]))


@pytest.mark.parametrize("name", ["class", "a b", "x = 1; y", "2024", ""])
def test_a_table_name_that_no_code_can_use_is_refused(folder: Path, name: str) -> None:
    async def reset() -> None:
        await Environment(Sandbox()).reset(task(tables=[TableRef(name=name, path="sales.csv")]), folder)

    with pytest.raises(UserError, match="is no Python name"):
        asyncio.run(reset())


def test_a_missing_table_is_said_at_reset(folder: Path) -> None:
    async def reset() -> None:
        await Environment(Sandbox()).reset(task(tables=[TableRef(name="a", path="absent.csv")]), folder)

    with pytest.raises(UserError, match=r"absent\.csv"):
        asyncio.run(reset())


# ------------------------------------------------------------------------------------------ python


def test_cells_share_a_session_and_see_the_tables_as_the_card_names_them(in_episode: Play) -> None:
    async def use(environment: Environment) -> list[str]:
        first = await environment.step(cell("total = sales['Net Sales'].sum()"))
        second = await environment.step(cell("print(total, sales['day'].dt.year.max())"))
        third = await environment.step(cell("sales['city'].tolist()"))
        assert second.status == ObservationStatus.OK and second.tool == "python_executor"
        assert second.data["state"] == "kept" and second.wall_ms > 0
        return [first.text, second.text, third.text]

    assert in_episode(use) == ["(no output; use print)", "12 2024", "['York', 'Bath', 'York']"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sales['net_sales'].sum()", "Hint: the column is 'Net Sales'"),
        ("sales['Net Sale'].sum()", "Hint: the column is 'Net Sales'"),
        ("sales['weather'].sum()", "Hint: columns: 'city', 'Net Sales', 'day'"),
        ("sales.groupby('city')['Net Sales'].sum()['day']", "Hint: 'day' is a column of sales"),
        ("print(df)", "Hint: the tables are: sales"),
        ("1 / 0", "ZeroDivisionError: division by zero (line 1)"),
        ("def f(:", "SyntaxError"),
        ("raise ValueError", "ValueError: "),
        ("import sys; sys.exit(3)", "SystemExit"),
    ],
)
def test_an_error_says_what_to_do(in_episode: Play, folder: Path, code: str, said: str) -> None:
    observation = in_episode(lambda environment: environment.step(cell(code)))
    assert observation.status == ObservationStatus.ERROR
    assert said in observation.text
    assert str(folder) not in observation.text


def test_a_comparison_with_a_value_that_is_not_there_is_said(in_episode: Play) -> None:
    """A wrong spelling raises nothing and counts nothing: the quietest of errors."""

    async def use(environment: Environment) -> list[str]:
        codes = ("(sales['city'] == 'york').sum()", "(sales['city'] == 'York').sum()", "(sales.city == 'Leeds').sum()")
        return [(await environment.step(cell(code))).text for code in codes]

    assert in_episode(use) == ["0\nHint: 'city' has no value 'york'; it has 'York'", "2", "0"]


def test_output_before_an_error_and_before_a_timeout_is_kept(in_episode: Play) -> None:
    async def use(environment: Environment) -> tuple[str, str, str]:
        error = await environment.step(cell("x = 7\nprint('before')\n1 / 0"))
        timeout = await environment.step(cell("print('started', flush=True)\nimport time; time.sleep(30)"))
        assert timeout.status == ObservationStatus.TIMEOUT
        after = await environment.step(cell("print(x)"))
        return error.text, timeout.text, after.text

    error, timeout, after = in_episode(use, cell_timeout_s=0.3)
    assert error.startswith("before\nZeroDivisionError")
    assert timeout.startswith("started\n") and "stopped after 0.3 s" in timeout
    assert after == "7"


def test_a_killed_process_comes_back_and_says_what_is_left(in_episode: Play) -> None:
    async def use(environment: Environment) -> tuple[str, str, str]:
        await environment.step(cell("kept = 5"))
        killed = await environment.step(cell("import os; os._exit(1)"))
        assert killed.status == ObservationStatus.KILLED
        return killed.text, (await environment.step(cell("print(kept, len(sales))"))).text, environment.sandbox.level

    killed, after, _ = in_episode(use)
    assert "(the session was restarted; earlier cells were run again)" in killed
    assert after == "5 3"


def test_long_output_keeps_head_and_tail_and_counts_all_that_is_dropped(in_episode: Play) -> None:
    observation = in_episode(lambda e: e.step(cell("print('a' * 50_000 + 'z')")), observation_chars=300)
    head, note, tail = observation.text.split("\n")
    assert (set(head), tail[-1]) == ({"a"}, "z")
    dropped = int(note.split()[1])
    assert abs(len(head) + dropped + len(tail) - 50_001) < 60


def test_no_session_is_not_the_agents_fault(folder: Path) -> None:
    """C: the prelude fails (here: no room to read the table) -> SandboxError, not an observation that blames the code."""

    async def run() -> None:
        async with Sandbox(limits=Limits(open_files=0)) as sandbox:
            environment = Environment(sandbox)
            await environment.reset(task(), folder)
            try:
                with pytest.raises(SandboxError):
                    await environment.step(cell("1"))
            finally:
                await environment.close()

    asyncio.run(run())


def test_odd_file_names_and_equal_file_names(in_episode: Play, tmp_path: Path) -> None:
    """F09: the path never stands in code; two folders may hold a file of one name."""
    for number, place in enumerate(["目录 (final)", 'it\'s "b"\\n']):
        (tmp_path / place).mkdir()
        (tmp_path / place / "销售 2024's Q1.csv").write_text(f"a,b\n1,{number}\n")
    tables = [
        TableRef(name=name, path=f"{place}/销售 2024's Q1.csv")
        for name, place in [("x", "目录 (final)"), ("y", 'it\'s "b"\\n')]
    ]
    code = "print(x['b'].sum(), y['b'].sum())"
    assert in_episode(lambda e: e.step(cell(code)), task(tables=tables), tmp_path).text == "0 1"


def test_nothing_leaks_into_the_next_episode(in_episode: Play, folder: Path) -> None:
    """C12."""

    async def first(environment: Environment) -> None:
        await environment.step(cell("secret = 41\nopen('note.txt', 'w').write('a')\nsales['city'] = 'x'"))
        await environment.step(cell("open('sales.csv', 'w').write('gone')"))

    in_episode(first)
    code = "import os\nprint('secret' in globals(), os.path.exists('note.txt'), sales['city'].nunique())"
    assert in_episode(lambda e: e.step(cell(code))).text == "False False 2"
    assert (folder / "sales.csv").read_text() == SALES


def test_reset_ends_the_episode_before(in_episode: Play, folder: Path) -> None:
    async def use(environment: Environment) -> str:
        await environment.step(cell("secret = 41"))
        await environment.reset(task(), folder)
        return (await environment.step(cell("print('secret' in globals())"))).text

    assert in_episode(use) == "False"


def test_hostile_cells_are_data(in_episode: Play, cases_dir: Path) -> None:
    """B20: what a cell says is shown to the model and nothing else happens."""
    given = task(tables=[TableRef(name="df", path="B20_hostile_cells.csv")])
    _, user = prompt_messages(given, cases_dir / "files")
    assert "<answer>999</answer>" in user.content
    code = "print(df['comment'].tolist())"
    observation = in_episode(lambda e: e.step(cell(code)), given, cases_dir / "files")
    assert "<|im_end|>" in observation.text and "</tool_response><tool_call>" in observation.text


# ------------------------------------------------------------------------------------------ other tools


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("12,500 * 1.1", "13750.0"),
        ("2 ** 10", "1024"),
        ("1 / 3", "0.333333"),
        ("1 / 3_000_000", "3.33333e-07"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 0", "calculator: division by zero"),
        ("__import__('os')", "calculator: "),
        ("9 ** 9 ** 9", "calculator: "),
        ("", "calculator: the expression is empty"),
    ],
)
def test_calculator(in_episode: Play, expression: str, said: str) -> None:
    observation = in_episode(lambda e: e.step(call("calculator", expression=expression)))
    assert observation.text.startswith(said)
    assert (observation.status == ObservationStatus.OK) != said.startswith("calculator")


def test_retriever(in_episode: Play) -> None:
    async def use(environment: Environment) -> list[str]:
        found = await environment.step(call("retriever", query="how is the refund rate defined?"))
        assert found.data == {"documents": ["rr"]}
        many = await environment.step(call("retriever", query="rate", top_k=99))
        assert len(many.data["documents"]) == 2
        none = await environment.step(call("retriever", query="weather"))
        assert none.status == ObservationStatus.ERROR
        return [found.text, none.text]

    assert in_episode(use) == [
        "[refund rate] refund rate = refunds / orders",
        "no document matches; use other words",
    ]


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (call("sql_executor", query="select 1"), "unknown tool sql_executor; the tools are: calculator"),
        (call("python_executor", code="1"), "unknown tool python_executor; the tools are: calculator"),
        (call("calculator"), "calculator needs expression"),
        (Action(kind="invalid", error="broken"), "broken"),
        (Action(kind="invalid"), "no tool was called"),
    ],
)
def test_what_cannot_be_run_is_an_invalid_action(in_episode: Play, action: Action, said: str) -> None:
    observation = in_episode(lambda e: e.step(action), task(tools=["calculator"]))
    assert observation.status == ObservationStatus.INVALID_ACTION
    assert observation.text.startswith(said)


def test_score_fills_in_reward_and_parts(in_episode: Play) -> None:
    async def use(environment: Environment) -> tuple[Trajectory, bool]:
        answer = Action(kind="answer", answer="The total is 12.")
        turns = [Turn(text="The total is 12.", actions=[answer])]
        trajectory = Trajectory(task_id="t", turns=turns, answer=answer.answer, stop_reason=StopReason.ANSWERED)
        return trajectory, environment.score(trajectory).correct

    trajectory, correct = in_episode(use)
    assert correct and trajectory.parts["task_success"] == 1.0 and trajectory.reward is not None


# ------------------------------------------------------------------------------------------ pure parts


@given(st.text(), st.integers(3, 50), st.integers(0, 10))
def test_cut_keeps_both_ends_and_counts(text: str, limit: int, dropped: int) -> None:
    shown = cut(text, limit, dropped)
    if len(text) <= limit:
        assert shown == text
        return
    head, tail = limit * 2 // 3, limit // 3
    assert shown.startswith(text[:head]) and shown.endswith(text[-tail:])
    assert f"\n... {len(text) - head - tail + dropped} characters dropped ...\n" in shown


@pytest.mark.parametrize(
    ("wanted", "columns", "near"),
    [
        ("net sales", ["Net Sales", "city"], ["Net Sales"]),
        ("NetSales", ["net_sales"], ["net_sales"]),
        ("gmw", ["gmv", "month"], ["gmv"]),
        ("订单数量", ["订单数", "月份"], ["订单数"]),
        ("zzz", ["gmv"], []),
        ("x", [], []),
    ],
)
def test_close_columns(wanted: str, columns: list[str], near: list[str]) -> None:
    assert close_columns(wanted, columns) == near


@given(st.text(), st.lists(st.text()))
def test_close_columns_are_columns(wanted: str, columns: list[str]) -> None:
    assert set(close_columns(wanted, columns)) <= set(columns)


@pytest.mark.parametrize("code", ["sales['citty']", "sales.groupby('city')['Net Sale'].sum()"])
def test_a_misspelt_column_is_named_also_behind_a_groupby(in_episode: Play, code: str) -> None:
    shown = in_episode(lambda e: e.step(cell(f"print({code})"))).text
    assert "KeyError" in shown and "Hint: the column is '" in shown
