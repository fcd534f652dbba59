"""The sandbox: notebook habits, limits, isolation between sessions, cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.errors import UserError
from agentic.records import ExecResult
from agentic.sandbox import Limits, Sandbox, SandboxError
from agentic.sandbox.cell import GLYPH_WARNING
from agentic.sandbox.folder import remove_tree
from agentic.sandbox.protocol import MAX_FRAME, FrameDecoder, FrameError, encode
from agentic.sandbox.reply import parse_reply
from agentic.sandbox.text import OutputRing, cut

CASES = Path(os.environ.get("AGENTIC_CASES", Path(__file__).parents[2] / "shared" / "cases"))
SECRET = "AGENTIC_TEST_API_KEY"
Run = Callable[[Coroutine[Any, Any, Any]], Any]

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """One event loop for the module, so that one sandbox serves all its tests."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def sandbox(run: Run) -> Iterator[Sandbox]:
    os.environ[SECRET] = "sk-secret"
    box = Sandbox()
    run(box.__aenter__())
    yield box
    run(box.close())
    del os.environ[SECRET]


@pytest.fixture(scope="module")
def open_sandbox(run: Run) -> Iterator[Sandbox]:
    """Level L0, where code may start programs and look around."""
    box = Sandbox(level="L0")
    run(box.__aenter__())
    yield box
    run(box.close())


async def cells(sandbox: Sandbox, *codes: str, timeout_s: float | None = None) -> list[ExecResult]:
    async with await sandbox.session() as session:
        return [await session.run(code, timeout_s) for code in codes]


def case(name: str) -> dict[str, Any]:
    path = CASES / "files" / "C_snippets.jsonl"
    if not path.exists():
        pytest.skip(f"no cases at {CASES}")
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return next(row for row in rows if row["id"] == name)


def processes_of(folder: Path) -> list[int]:
    """Processes whose working directory is in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(str(folder)):
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# ------------------------------------------------------------------------------------------------ cases


def test_c01_exit_ends_the_cell_and_keeps_state(run: Run, sandbox: Sandbox) -> None:
    first, second = run(cells(sandbox, *case("C01")["steps"]))
    assert (first.status, first.stdout, first.error) == ("ok", "", None)
    assert second.stdout == "5\n"


def test_c01b_death_is_reported_and_the_next_cell_runs(run: Run, sandbox: Sandbox) -> None:
    first, second = run(cells(sandbox, *case("C01b")["steps"]))
    assert (first.status, first.state) == ("killed", "lost")
    assert first.error is not None and "exit code 3" in first.error.message
    assert (second.status, second.stdout, second.state) == ("ok", "1\n", "kept")


def test_c02_grandchildren_die_with_the_cell(run: Run, open_sandbox: Sandbox) -> None:
    async def play() -> None:
        async with await open_sandbox.session() as session:
            assert (await session.run(case("C02")["steps"][0], 0.5)).status == "timeout"
            detached = "subprocess.Popen(['sleep', '300'], start_new_session=True)\nimport os; os._exit(1)"
            result = await session.run(f"import subprocess\n{detached}")
            assert result.status == "killed"
            assert wait_until(lambda: len(processes_of(session.folder)) == 1)

    run(play())


def test_c02_no_programs_where_the_level_forbids_them(run: Run, sandbox: Sandbox) -> None:
    (result,) = run(cells(sandbox, case("C02")["steps"][0]))
    assert result.status == "blocked" and result.wall_ms < 1000
    assert result.error is not None and "starting programs is disabled in the sandbox" in result.error.message


def test_c03_timeout_keeps_output_and_state(run: Run, sandbox: Sandbox) -> None:
    before, result, after = run(cells(sandbox, "x = 5", *case("C03")["steps"], "x", timeout_s=0.4))
    assert (before.status, result.status, result.state) == ("ok", "timeout", "kept")
    assert "rows read: 10" in result.stdout
    assert result.error is not None and "0.4 s" in result.error.message and result.error.line == 2
    assert after.value == "5"


def test_c05_last_value_is_shown(run: Run, sandbox: Sandbox) -> None:
    (result,) = run(cells(sandbox, *case("C05")["steps"]))
    assert result.value == "6"


@needs_matplotlib
def test_c06_one_image_and_none_for_the_next_cell(run: Run, sandbox: Sandbox) -> None:
    async def play() -> None:
        async with await sandbox.session() as session:
            first, second = [await session.run(step) for step in case("C06")["steps"]]
            assert (first.status, first.stdout, first.value) == ("ok", "", None)
            assert (session.folder / first.figures[0]).read_bytes().startswith(b"\x89PNG")
            assert len(first.figures) == 1 and second.figures == [] and second.value == "2"
            saved = await session.run("plt.plot([1, 2])\nplt.savefig('mine.png')")
            assert saved.figures == ["mine.png"] and saved.value is None and saved.files_changed == []
            many = await session.run("for i in range(5):\n    plt.figure(); plt.plot([i])")
            assert len(many.figures) == 3 and "2 more figures" in many.stdout
            assert (await session.run("plt.plot([1]); plt.title('$\\\\frac$')")).status == "error"
            assert (await session.run("plt.get_fignums()")).value == "[]"

    run(play())


@needs_matplotlib
def test_c07_chinese_labels_are_drawn_or_warned_of_once(run: Run, sandbox: Sandbox) -> None:
    (result,) = run(cells(sandbox, *case("C07")["steps"]))
    assert result.status == "ok" and result.figures == ["t.png"]
    assert result.stdout == "" or result.stdout == GLYPH_WARNING + "\n"


def test_c08_input_is_at_its_end(run: Run, sandbox: Sandbox) -> None:
    (result,) = run(cells(sandbox, *case("C08")["steps"]))
    assert result.error is not None and result.error.type == "EOFError" and result.wall_ms < 1000


def test_c09_one_busy_loop_stalls_nobody(run: Run, sandbox: Sandbox) -> None:
    async def play() -> None:
        sessions = await asyncio.gather(*(sandbox.session() for _ in range(8)))
        started = time.monotonic()
        busy = asyncio.create_task(sessions[3].run(case("C09")["steps"][0], 1))
        others = await asyncio.gather(*(s.run("print(1)", 1) for s in sessions if s is not sessions[3]))
        assert [result.stdout for result in others] == ["1\n"] * 7
        assert not busy.done()
        assert (await busy).status == "timeout"
        assert time.monotonic() - started < 3
        await asyncio.gather(*(session.close() for session in sessions))

    run(play())


def test_c10_output_is_cut_in_the_middle(run: Run, sandbox: Sandbox) -> None:
    (result,) = run(cells(sandbox, *case("C10")["steps"]))
    assert result.status == "ok"
    assert result.stdout.startswith("0\n1\n") and result.stdout.endswith("199998\n199999\n")
    assert len(result.stdout) < sandbox.limits.stdout_chars + 100
    total = sum(len(f"{i}\n") for i in range(200000))
    assert result.dropped_chars == total - sandbox.limits.stdout_chars
    assert f"{result.dropped_chars} characters dropped" in result.stdout


def test_c11_error_has_the_users_line_and_no_host_path(run: Run, sandbox: Sandbox) -> None:
    codes = (
        *case("C11")["steps"],
        "1\n\npd.read_csv('no.csv')",
        "import traceback\n1 +",
        "import os; print(os.getcwd())",
    )
    key, missing, syntax, folder = run(cells(sandbox, *codes))
    assert (key.error.type, key.error.message, key.error.line) == ("KeyError", "'missing'", 2)
    assert (missing.error.type, missing.error.line) == ("FileNotFoundError", 3)
    assert (syntax.error.type, syntax.error.line) == ("SyntaxError", 2)
    assert folder.stdout == ".\n"
    (trace,) = run(
        cells(sandbox, "import traceback\ntry:\n    pd.DataFrame()['a']\nexcept KeyError:\n    traceback.print_exc()")
    )
    assert "KeyError" in trace.stdout and sys.prefix not in trace.stdout and "<python>" in trace.stdout


def test_c12_sessions_share_nothing(run: Run, sandbox: Sandbox) -> None:
    first, second = case("C12")["trajectories"]
    run(cells(sandbox, *first))
    (result,) = run(cells(sandbox, *second))
    assert result.stdout == "clean\nFalse\n"


def test_c13_a_warning_is_no_failure(run: Run, sandbox: Sandbox) -> None:
    (result,) = run(cells(sandbox, *case("C13")["steps"]))
    assert (result.status, result.stdout) == ("ok", "UserWarning: old api\n7\n")
    (many,) = run(cells(sandbox, "import warnings\nfor i in range(100): warnings.warn(f'{i}')\nprint(7)"))
    assert many.stdout.endswith("7\n") and many.stdout.count("\n") < 10


def test_c14_one_rule_for_system_exit(run: Run, sandbox: Sandbox) -> None:
    results = run(cells(sandbox, *case("C14")["steps"], "raise SystemExit(1)", "import sys; sys.exit('bad')"))
    assert [result.status for result in results] == ["ok", "error", "error"]
    assert results[2].error.message == "bad"


def test_c15_reset_with_a_failing_cell(run: Run, sandbox: Sandbox) -> None:
    async def play() -> None:
        first, second, third = case("C15")["steps"]
        async with await sandbox.session() as session:
            await session.run(first)
            await session.reset()
            assert (await session.run(second)).error.type == "ValueError"
            assert (await session.run(third)).error.type == "NameError"

    run(play())


# --------------------------------------------------------------------------------- files, prelude, state


def test_files_are_copies_and_the_prelude_sees_them(run: Run, sandbox: Sandbox, tmp_path: Path) -> None:
    table = tmp_path / "source.csv"
    table.write_text("a,b\n1,2\n3,4\n")

    async def play() -> None:
        async with await sandbox.session({"销售 1.csv": table}, "sales = pd.read_csv('销售 1.csv')") as session:
            assert (await session.run("sales['a'].sum()")).value == "4"
            changed = await session.run("sales.head(1).to_csv('销售 1.csv'); open('new.txt', 'w').close()")
            assert changed.files_changed == ["new.txt", "销售 1.csv"]
            restored = await session.run("import os; os.abort()")
            assert (restored.status, restored.state) == ("killed", "restored")
            assert restored.error is not None and "SIGABRT" in restored.error.message
            assert (await session.run("len(sales)")).value == "2"

    run(play())
    assert table.read_text() == "a,b\n1,2\n3,4\n"


def test_a_failing_prelude_is_an_exception_with_its_result(run: Run, sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="ZeroDivisionError") as caught:
        run(sandbox.session(prelude="1/0"))
    assert caught.value.result is not None and caught.value.result.status == "error"


def test_bad_files_are_user_errors(run: Run, sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        run(sandbox.session({"a.csv": tmp_path / "absent.csv"}))
    with pytest.raises(UserError, match="plain name"):
        run(sandbox.session({"../a.csv": tmp_path}))


def test_replay_runs_only_successful_cells_and_repeats_chance(run: Run, sandbox: Sandbox) -> None:
    codes = ("import random; x = [random.random(), np.random.rand()]", "x", "print('once'); y = 1; 1/0")
    results = run(cells(sandbox, *codes, "import os; os.kill(os.getpid(), 9)", "x", "y"))
    assert (results[3].state, results[3].stdout) == ("restored", "")
    assert results[4].value == results[1].value
    assert results[5].error.type == "NameError"


@pytest.mark.slow
def test_state_is_lost_when_replay_fails(run: Run, sandbox: Sandbox) -> None:
    async def play() -> list[ExecResult]:
        async with await sandbox.session() as session:
            deadline = time.time() + 2
            results = [await session.run(f"import os, time\nx = 1\nassert time.time() < {deadline}")]
            await asyncio.sleep(deadline - time.time())
            return results + [await session.run(code) for code in ("os._exit(0)", "x", "2")]

    first, killed, after, again = run(play())
    assert (first.status, killed.status, killed.state) == ("ok", "killed", "lost")
    assert after.error is not None and after.error.type == "NameError" and again.value == "2"


def test_death_between_cells_is_mended_before_the_next(run: Run, sandbox: Sandbox) -> None:
    async def play() -> None:
        async with await sandbox.session() as session:
            await session.run("x = 1")
            pid = await session.run("import os; os.getpid()")
            os.kill(int(pid.value or ""), signal.SIGKILL)
            await asyncio.sleep(0.3)
            result = await session.run("x")
            assert (result.value, result.state) == ("1", "restored")

    run(play())


def test_nothing_runs_between_cells(run: Run, sandbox: Sandbox) -> None:
    """What a cell leaves running is stopped with the session, and goes on when the next cell comes."""
    background = """
import threading, time
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
"""

    async def play() -> None:
        async with await sandbox.session() as session:
            await session.run(background)
            before = int((await session.run("ticks")).value or "")
            await asyncio.sleep(1)
            after = int((await session.run("ticks")).value or "")
            later = int((await session.run("time.sleep(1); ticks")).value or "")
            assert after - before < 20 < later - after

    run(play())


@pytest.mark.parametrize("run_query", ["connection.execute(endless).fetchall()", "pd.read_sql(endless, connection)"])
def test_a_cells_own_sqlite_query_is_interrupted(run: Run, sandbox: Sandbox, run_query: str) -> None:
    endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) as m from t"
    code = f"import sqlite3\nkept, endless = 1, {endless!r}\nconnection = sqlite3.connect(':memory:')\n{run_query}"
    after = "kept, connection.execute('select 2').fetchall()"
    result, next_one = run(cells(sandbox, code, after, timeout_s=0.5))
    assert (result.status, result.state, next_one.value) == ("timeout", "kept", "(1, [(2,)])")


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: None"])
def test_code_with_a_handler_of_its_own_is_interrupted_all_the_same(run: Run, sandbox: Sandbox, handler: str) -> None:
    code = f"import signal\nx = 1\nsignal.signal(signal.SIGINT, {handler})\nwhile True: pass"
    result, after = run(cells(sandbox, code, "x", timeout_s=0.3))
    assert (result.status, result.state, after.value) == ("timeout", "kept", "1")


@pytest.mark.slow
def test_an_ignored_interrupt_ends_in_a_kill_with_the_output(run: Run, sandbox: Sandbox) -> None:
    stubborn = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nprint('here')\nwhile True: pass"
    started = time.monotonic()
    before, result, after = run(cells(sandbox, "x = 1", stubborn, "x", timeout_s=0.3))
    assert time.monotonic() - started < 0.3 + 1 + 1
    assert (before.status, result.status, result.state, result.stdout) == ("ok", "timeout", "restored", "here\n")
    assert after.value == "1"


def test_a_swallowed_interrupt_is_still_a_timeout(run: Run, sandbox: Sandbox) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nexcept: print('caught')"
    result, after = run(cells(sandbox, code, "2", timeout_s=0.3))
    assert (result.status, result.state, result.stdout, after.value) == ("timeout", "kept", "caught\n", "2")


def test_a_cancelled_call_leaves_a_session_that_restores(run: Run, sandbox: Sandbox) -> None:
    async def play() -> None:
        async with await sandbox.session() as session:
            await session.run("x = 1")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.run("while True: pass"), 0.2)
            result = await session.run("x")
            assert (result.value, result.state) == ("1", "restored")

    run(play())


def test_a_call_cancelled_while_its_session_is_restored(run: Run, sandbox: Sandbox, tmp_path: Path) -> None:
    """Files are copied by a thread, which a cancelled call leaves running: the next call must not meet it in the folder."""
    for number in range(20):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * (1 << 20))
    files = {path.name: path for path in sorted(tmp_path.iterdir())}

    async def play() -> tuple[list[ExecResult], bool]:
        async with await sandbox.session(files) as session:
            pid = int((await session.run("import os; n = 40; os.getpid()")).value or 0)
            results = []
            for wait_s in (0, 0.001, 0.004, 0.01, 0.03):
                os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.05)
                call = asyncio.create_task(session.run("1"))
                await asyncio.sleep(wait_s)
                call.cancel()
                await asyncio.wait([call])
                results.append(await session.run("n, sum(os.path.getsize(name) for name in os.listdir()) >> 20"))
                pid = int((await session.run("os.getpid()")).value or 0)
        return results, session.folder.exists()

    results, left = run(play())
    assert [result.value for result in results] == ["(40, 20)"] * 5
    assert "lost" not in {result.state for result in results} and not left


def test_a_blocked_event_loop_makes_no_timeouts(run: Run, sandbox: Sandbox) -> None:
    async def play() -> None:
        async with await sandbox.session() as session:
            call = asyncio.create_task(session.run("7", 0.3))
            await asyncio.sleep(0.01)
            time.sleep(0.5)
            assert (await call).status == "ok"

    run(play())


# ---------------------------------------------------------------------------------------- limits, values


def test_memory(run: Run, sandbox: Sandbox) -> None:
    array, text, after = run(cells(sandbox, "x = 1; np.ones(2 * 10**8)", "y = 'a' * (2 * 10**9)", "x"))
    assert (array.status, text.status, after.value) == ("memory", "memory", "1")
    assert text.error is not None and "1024 MiB" in text.error.message


def test_rlimits(run: Run, sandbox: Sandbox) -> None:
    big, files = run(
        cells(
            sandbox,
            "f = open('big', 'wb')\nfor _ in range(65): f.write(bytes(1 << 20))",
            "fs = [open('f') for _ in range(999)]",
        )
    )
    assert big.error.type == "OSError" and "File too large" in big.error.message
    assert files.error.type in ("OSError", "FileNotFoundError")
    (status,) = run(cells(sandbox, "print(open('/proc/self/status').read(), open('/proc/self/oom_score_adj').read())"))
    assert "NoNewPrivs:\t1" in status.stdout and status.stdout.strip().endswith("1000")


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1;", None),
        ("x = 1", None),
        ("# nothing", None),
        ("", None),
        ("[np.float64(1.5), 2]", "[1.5, 2]"),
        ("'销售'", "'销售'"),
        ("(yes := True)", "True"),
        ("pd.Series([True])", "0    True\ndtype: bool"),
    ],
)
def test_values(run: Run, sandbox: Sandbox, code: str, value: str | None) -> None:
    (result,) = run(cells(sandbox, code))
    assert (result.status, result.value) == ("ok", value)


def test_large_values_are_bounded(run: Run, sandbox: Sandbox) -> None:
    codes = ("'x' * 10**8", "list(range(10**6))", "pd.DataFrame({'a': range(10**5)})", "dict.fromkeys(range(10**5))")
    results = run(cells(sandbox, *codes))
    assert all(r.status == "ok" and len(r.value) < sandbox.limits.value_chars + 100 for r in results), results
    assert "100000 rows" in results[2].value


def test_notebook_definitions(run: Run, sandbox: Sandbox) -> None:
    code = "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\nimport pickle\npickle.loads(pickle.dumps(P(1)))"
    define, use = run(cells(sandbox, code, "P(2)"))
    assert (define.value, use.value) == ("P(a=1)", "P(a=2)")


def test_code_can_break_its_own_stdout_only(run: Run, sandbox: Sandbox) -> None:
    closed, after = run(cells(sandbox, "import sys\nprint('a')\nsys.stdout.close()", "print('b')"))
    assert (closed.status, after.stdout) == ("ok", "b\n")
    odd, raw = run(cells(sandbox, r"print('\ud800é')", "import sys; sys.stdout.buffer.write(b'\\xff'); print(1)"))
    assert odd.stdout == "?é\n" and raw.stdout.endswith("1\n")


# ------------------------------------------------------------------------------------- hostile, boundaries


def test_forged_frames_end_in_protocol_error(run: Run, sandbox: Sandbox) -> None:
    sockets = "import os, stat\nfds = [f for f in range(3, 64) if os.path.exists(f'/proc/self/fd/{f}') and stat.S_ISSOCK(os.fstat(f).st_mode)]\n"
    garbage = sockets + "for f in fds: os.write(f, b'\\xff' * 8)\nwhile True: pass"
    forged = (
        sockets
        + 'body = b\'{"type": "result", "id": 2, "reward": 1}\'\nfor f in fds: os.write(f, len(body).to_bytes(4, \'big\') + body)'
    )
    results = run(cells(sandbox, "x = 1", garbage, "x", forged, "x"))
    assert [r.status for r in results] == ["ok", "protocol_error", "ok", "protocol_error", "ok"]
    assert results[1].state == "restored" and results[4].value == "1"


def test_closing_every_descriptor_is_a_death(run: Run, sandbox: Sandbox) -> None:
    result, after = run(cells(sandbox, "import os, time\nos.closerange(0, 200)\ntime.sleep(60)", "1"))
    assert (result.status, after.value) == ("killed", "1")


def test_the_environment_holds_no_secrets(run: Run, sandbox: Sandbox, open_sandbox: Sandbox) -> None:
    own = "import os\nprint(dict(os.environ), open('/proc/self/environ').read())"
    (result,) = run(cells(sandbox, own))
    assert result.status == "ok" and "sk-secret" not in result.stdout and SECRET not in result.stdout
    code = "import os\nprint(dict(os.environ), open('/proc/self/environ').read(), open(f'/proc/{os.getppid()}/environ').read())"
    (result,) = run(cells(open_sandbox, code))
    assert result.status == "ok" and "sk-secret" not in result.stdout and SECRET not in result.stdout
    assert {"'MPLBACKEND': 'Agg'", "'OMP_NUM_THREADS': '1'"} <= set(result.stdout.strip("{").split(", "))


def test_sessions_are_forked_from_a_single_thread(run: Run, open_sandbox: Sandbox) -> None:
    (result,) = run(cells(open_sandbox, "import os; len(os.listdir(f'/proc/{os.getppid()}/task'))"))
    assert result.value == "1"


def test_too_long_code_is_an_error(run: Run, sandbox: Sandbox) -> None:
    result, after = run(cells(sandbox, "#" * (MAX_FRAME + 1), "#" * (MAX_FRAME // 2) + "\n1"))
    assert (result.status, after.value) == ("error", "1")


def test_result_carries_level_and_measures(run: Run, sandbox: Sandbox) -> None:
    (result,) = run(cells(sandbox, "sum(range(10**5))"))
    assert (
        result.isolation == sandbox.level and result.cpu_ms >= 0 and result.wall_ms > 0 and 10 < result.peak_mb < 1000
    )


# -------------------------------------------------------------------------------------------- cleanup


def test_sessions_leave_nothing(run: Run, sandbox: Sandbox) -> None:
    async def play() -> Path:
        session = await sandbox.session()
        await session.run(
            "import os\nos.makedirs('d/e'); open('d/e/f', 'w').close(); os.chmod('d/e', 0)\nos.symlink('/', 'root')"
        )
        await session.close()
        with pytest.raises(SandboxError, match="closed"):
            await session.run("1")
        return session.folder

    folder = run(play())
    before = {path.name for path in folder.parent.iterdir()}  # sessions of skipped tests may be there
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        folder = run(play())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not folder.exists() and processes_of(folder) == []
    left = {path.name for path in folder.parent.iterdir()}
    assert left <= before


def test_a_session_given_up_while_it_starts_leaves_nothing(run: Run, sandbox: Sandbox, tmp_path: Path) -> None:
    """Its process, and the thread that copies its files, may come after the removal of the folder."""
    (tmp_path / "big.csv").write_bytes(bytes(16 << 20))

    zygote = sandbox.pids()[0]
    folder = Path(os.readlink(f"/proc/{zygote}/cwd"))
    before = {path.name for path in folder.iterdir()}

    async def play() -> None:
        for number in range(12):
            starting = asyncio.create_task(
                sandbox.session({"big.csv": tmp_path / "big.csv"} if number % 3 == 0 else {})
            )
            if number % 3 == 0:
                await asyncio.sleep(0.002)  # the file is being copied
            else:
                os.kill(zygote, signal.SIGSTOP)
                await asyncio.sleep(0.02)  # the order to fork waits for the zygote
            starting.cancel()
            asyncio.get_running_loop().call_later(0.03, os.kill, zygote, signal.SIGCONT)  # giving up waits for its end
            await asyncio.gather(starting, return_exceptions=True)
            await asyncio.sleep(0.03)
        await (await sandbox.session()).close()  # after all that came before

    run(play())
    assert wait_until(lambda: {path.name for path in folder.iterdir()} <= before)
    time.sleep(0.05)
    assert {path.name for path in folder.iterdir()} <= before


def test_deeply_nested_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # on ext4 a thousand rmdir take seconds
    folder = tempfile.mkdtemp(dir=memory)
    make = "import os\nos.symlink(os.sys.argv[1], 'link')\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", make, str(tmp_path)], cwd=folder, check=True)
    remove_tree(folder)
    assert not os.path.exists(folder) and (tmp_path / "kept").exists()


@pytest.mark.slow
def test_own_limits_and_a_lost_zygote(run: Run) -> None:
    async def play() -> None:
        async with Sandbox(limits=Limits(soft_s=0.3, stdout_chars=20, value_chars=10)) as box:
            session = await box.session()
            assert (await session.run("while True: pass")).status == "timeout"
            result = await session.run("print('a' * 100)\n'b' * 100")
            assert result.dropped_chars == 81 and len(result.value or "") < 60
            folder = session.folder.parent
            result = await session.run("import os; print(os.getppid())")
            call = asyncio.create_task(session.run("while True: pass", 10))
            await asyncio.sleep(0.05)
            os.kill(int(result.stdout), signal.SIGKILL)
            with pytest.raises(SandboxError):
                await call
            fresh = await box.session()
            assert (await fresh.run("1")).value == "1"
            assert not folder.exists() and processes_of(folder) == []
        assert not fresh.folder.parent.exists() and processes_of(fresh.folder.parent) == []

    run(play())


PARENT = """
import asyncio, threading, time
from agentic.sandbox import Sandbox
async def main():
    sandbox = await Sandbox().__aenter__()
    session = await sandbox.session()
    task = asyncio.create_task(session.run("while True: pass"))
    await asyncio.sleep(0.1)
    print(session.folder.parent, flush=True)
    await task
thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
thread.start()
thread.join()
"""


def test_nothing_outlives_a_killed_parent() -> None:
    root = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root}
    ) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().strip())
        assert folder.is_dir() and len(processes_of(folder)) == 2
        parent.kill()
    assert wait_until(lambda: not processes_of(folder) and not folder.exists())


def test_a_parent_with_busy_threads(run: Run, sandbox: Sandbox) -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=lambda: stop.wait(5)) for _ in range(4)]
    for thread in threads:
        thread.start()
    results = run(cells(sandbox, "1", "import threading; threading.active_count()"))
    stop.set()
    assert [result.value for result in results] == ["1", "1"]


# ------------------------------------------------------------------------------------------- properties

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
payloads = st.dictionaries(st.text(max_size=9), scalars | st.lists(scalars, max_size=3), max_size=3)


@given(st.lists(payloads, max_size=4), st.data())
def test_decoder_does_not_care_how_the_stream_is_split(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    seen = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        seen += decoder.feed(stream[start:end])
    assert seen == messages


@given(st.binary(max_size=200))
def test_decoder_never_fails_otherwise_than_with_frame_error(data: bytes) -> None:
    for body in (data, len(data).to_bytes(4, "big") + data):
        with contextlib.suppress(FrameError):
            for message in FrameDecoder().feed(body):
                parse_reply(message, 1)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"NaN", b'{"a": Infinity}', b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"{} {}"]
)
def test_decoder_refuses(body: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(len(body).to_bytes(4, "big") + body)


def test_decoder_refuses_a_long_frame_before_it_arrives() -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed((MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(FrameError):
        encode({"a": "x" * MAX_FRAME})


@given(st.text(max_size=60), st.integers(1, 30))
def test_cut_keeps_both_ends(text: str, limit: int) -> None:
    kept, dropped = cut(text, limit)
    if len(text) <= limit:
        assert (kept, dropped) == (text, 0)
    else:
        assert dropped == len(text) - limit
        assert kept.startswith(text[: limit - limit // 2]) and kept.endswith(text[len(text) - limit // 2 :])
        assert f"[{dropped} characters dropped]" in kept


@settings(max_examples=300)
@given(st.lists(st.text(max_size=60), max_size=12), st.integers(1, 12))
def test_ring_keeps_what_cut_keeps(parts: list[str], limit: int) -> None:
    parts = [part.encode("utf-8", "replace").decode() for part in parts]
    ring = OutputRing(bytearray(OutputRing.size(limit)), limit)
    ring.write(b"from the last cell" * 9)
    ring.reset()
    for part in parts:
        ring.write(part.encode())
    expected = cut("".join(parts), limit)
    assert ring.read() == expected
    assert OutputRing(ring.buffer, limit).read() == expected


@given(st.binary(max_size=300))
def test_ring_reads_any_bytes(data: bytes) -> None:
    size = OutputRing.size(9)
    text, dropped = OutputRing(bytearray(data[:size].ljust(size, b"\0")), 9).read()
    assert len(text) < 100 and dropped >= 0
