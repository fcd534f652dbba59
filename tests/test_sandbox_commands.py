"""`agentic sandbox doctor` and `agentic sandbox bench`, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.cli import main
from agentic.sandbox import levels
from agentic.sandbox_commands import memory_of, percentile

pytest_plugins = ("shared_zygote",)

ROOT = Path(__file__).resolve().parents[1]
HIGHEST = levels.detect().level
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


Here = Callable[..., tuple[int, str, str]]


@pytest.fixture()
def here(shared_zygote: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """The same as `agentic`, without a process of its own."""

    def call(*arguments: str, isolation: str | None = None) -> tuple[int, str, str]:
        monkeypatch.delenv(levels.VARIABLE, raising=False)
        if isolation is not None:
            monkeypatch.setenv(levels.VARIABLE, isolation)
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def agentic(*arguments: str, before: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `agentic ARGUMENTS`; `before`: a program that runs it."""
    values = {name: value for name, value in os.environ.items() if name != levels.VARIABLE}
    values |= {"PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, "-m", "agentic.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=values, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def doctor() -> tuple[int, dict]:
    code, out, err = agentic("sandbox", "doctor", "--json")
    assert out, err
    return code, json.loads(out)


def test_doctor_gives_level_reasons_and_remedies(doctor: tuple[int, dict]) -> None:
    code, report = doctor
    assert report["level"] == HIGHEST and code == (0 if HIGHEST >= "L2" else 1)
    assert report["enough"] == (HIGHEST >= "L2")
    assert {feature["needed_for"] for feature in report["features"]} == {"L1", "L2", "L3"}
    for feature in report["features"]:
        assert feature["why"] and (feature["present"] or feature["remedy"])
        if feature["needed_for"] <= HIGHEST:
            assert feature["present"]


def test_doctor_tries_the_level_in_a_session(doctor: tuple[int, dict]) -> None:
    trial = doctor[1]["trial"]
    assert trial["works"] and trial["error"] is None
    assert len(trial["refused"]) == int(HIGHEST[1]) and all(trial["refused"].values())


def test_doctor_says_which_level_is_in_force_and_why(here: Here) -> None:
    code, out, _ = here("sandbox", "doctor", isolation="L0")
    assert f"level     {HIGHEST}: " in out and "in force  L0 (AGENTIC_ISOLATION=L0)" in out
    assert code == (0 if HIGHEST >= "L2" else 1)
    _, out, _ = here("sandbox", "doctor", isolation="L9")
    assert "in force  none: unknown isolation level 'L9'" in out


@pytest.mark.slow
@root_only
@pytest.mark.skipif(HIGHEST < "L3", reason="this machine gives less than L3 to root")
def test_doctor_without_the_right_to_namespaces_names_the_remedy() -> None:
    code, out, _ = agentic("sandbox", "doctor", before=("setpriv", "--bounding-set", "-sys_admin"))
    assert code == 0 and "level     L2: " in out
    assert "no        L3 needs empty network and IPC namespace: needs CAP_SYS_ADMIN" in out
    assert "to get it: run as root with CAP_SYS_ADMIN" in out


@root_only
@pytest.mark.skipif(HIGHEST < "L2", reason="this machine has no Landlock")
def test_doctor_as_another_user() -> None:
    # The interpreter may lie under /root: the one capability that is left lets nobody find it, and gives no level.
    keep = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    before = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *keep)
    code, out, err = agentic("sandbox", "doctor", "--json", before=before)
    assert code == 0, out + err
    report = json.loads(out)
    assert report["level"] == report["in_force"] == "L2" and report["trial"]["works"]
    lacking = {feature["name"] for feature in report["features"] if not feature["present"]}
    assert lacking == {"own user id per session", "empty network and IPC namespace"}


@pytest.mark.slow
def test_bench_measures_the_level_it_is_told() -> None:
    code, out, err = agentic("sandbox", "bench", "--sessions", "2", "--level", "L0", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["level"], report["sessions"]) == ("L0", 2)
    for name, count in (("session_start_ms", 2), ("trivial_cell_ms", 20), ("trajectory_ms", 2)):
        assert report[name]["count"] == count and 0 < report[name]["p50"] <= report[name]["p99"]
    assert report["trajectory_ms"]["p50"] > report["session_start_ms"]["p50"]
    idle, used = report["session_mb"]["idle"], report["session_mb"]["after_a_pandas_cell"]
    assert 0 < idle["private"] < used["private"] < used["proportional"]


@pytest.mark.slow
def test_bench_prints_a_table_at_the_level_in_force(here: Here) -> None:
    code, out, err = here("sandbox", "bench", "--sessions", "1")
    if HIGHEST < "L2":
        assert code == 2 and "AGENTIC_ISOLATION" in err
        return
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith(f"level {HIGHEST}, 1 sessions; ")
    assert [line[:13] for line in lines[1:4]] == ["session start", "trivial cell ", "5-cell trajec"]
    assert all(line.endswith(" MB proportional") for line in lines[4:])


def test_bench_refuses_what_it_cannot_do(here: Here) -> None:
    code, _, err = here("sandbox", "bench", "--sessions", "0")
    assert code == 2 and "--sessions 0: at least one session is needed" in err
    code, _, err = agentic("sandbox")
    assert code == 2 and "sandbox doctor, sandbox bench" in err


def test_memory_of_a_process_that_is_gone() -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    assert memory_of(done.pid) is None
    own = memory_of(os.getpid())
    assert own is not None and 1 < own.private <= own.proportional


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentiles_lie_between_the_ends_and_keep_their_order(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert min(values) <= found <= max(values)
    assert percentile(values, 0) == min(values) and percentile(values, 1) == max(values)
    assert percentile(values, share / 2) <= found * (1 + 1e-9)
