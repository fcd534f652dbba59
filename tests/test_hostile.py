"""The hostile cells (hostile_cells.py): each ends in its typed outcome and in time, and touches nothing but its own session.

One sandbox serves all of them, at the highest level of the machine and user. AGENTIC_TEST_SLOWDOWN (default 1) stretches
every time limit on a loaded machine.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hostile_cells import CATALOGUE, Cell, introduction

import agentic
from agentic.records import Check, ExecResult
from agentic.reward.answer import compare
from agentic.sandbox import Limits, Sandbox, Session, levels

SLOWDOWN = float(os.environ.get("AGENTIC_TEST_SLOWDOWN", "1"))
LIMITS = Limits(grace_s=SLOWDOWN, memory_mb=256, file_mb=8, folder_mb=16, folder_files=300)
LATE_S = 1.5 * float(os.environ.get("AGENTIC_TEST_PATIENCE", "4"))
"""A cell ends at most this long after its soft limit: 1.5 s on a quiet machine (AGENTIC_TEST_PATIENCE=1), more on one whose
cores run the rest of the suite."""
ENOUGH_S = 15.0
"""Soft limit of steps that must not reach it."""
AT_ONCE = 8
PROBE = "agentic-hostile-probe"
PURELIB = sysconfig.get_paths()["purelib"]
PACKAGE = str(Path(agentic.__file__).parent)
PLACES = (PURELIB, sysconfig.get_paths()["stdlib"], PACKAGE, "/tmp", "/var/tmp", "/dev/shm", "/etc", "/sys/fs/cgroup")
"""Where cells try to leave a file called PROBE."""

pytestmark = [
    pytest.mark.skipif(
        levels.detect().level < "L2", reason=f"hostile cells run at L2 or above: {levels.detect().lacking()}"
    ),
]


@dataclass
class Outcome:
    results: list[ExecResult]
    walls: list[float]
    """Seconds of every step, restoring the session included."""
    check: ExecResult
    """Of a last cell that asks for the session's token and process id."""
    alive: bool
    """The session is the same process with state kept."""
    whole: bool
    """Its names are there."""
    harm: list[str] = field(default_factory=list)
    """What else was touched."""


@dataclass
class Arena:
    """A sandbox, and all that hostile code must not reach."""

    sandbox: Sandbox
    sibling: Session
    sibling_state: str
    zygote: int
    gold: Path
    canary: Path
    mailbox: socket.socket
    secrets: list[str]
    names: dict[str, str | int]
    before: dict[str, object] = field(default_factory=dict)
    outcomes: dict[str, Outcome | BaseException] = field(default_factory=dict)

    async def play(self, cell: Cell) -> Outcome:
        session = await self.sandbox.session()
        try:
            first = await session.run(introduction(self.names), 20 * SLOWDOWN)
            assert first.status == "ok", first
            results, walls = [], []
            astray: list[str] = []
            for number, step in enumerate(cell.steps):
                if number == len(cell.steps) - 1:
                    await asyncio.sleep(cell.pause_s)
                started = time.monotonic()
                results.append(await session.run(step, soft_limit(cell, number)))
                walls.append(time.monotonic() - started)
                astray += [name for name in results[-1].figures + results[-1].files_changed if leads_out(session, name)]
            check = await session.run("(TOKEN, os.getpid())", ENOUGH_S * SLOWDOWN)
            pid = ast.literal_eval(first.value or "")[1]
            kept = all(result.state == "kept" for result in [*results, check])
            outcome = Outcome(
                results, walls, check, kept and os.path.exists(f"/proc/{pid}"), check.value == first.value
            )
        finally:
            await session.close()
        left = {pid} | {int(number) for number in re.findall(r"\d+", check.value or "")[1:2]}
        outcome.harm = [f"process {one} is left" for one in left if os.path.exists(f"/proc/{one}")]
        outcome.harm += [f"the file {name} is outside the work folder" for name in astray]
        outcome.harm += [f"told {secret}" for secret in self.secrets if secret in repr([*results, check])]
        outcome.harm += await self.damage(try_anew=not outcome.alive)
        return outcome

    def outside(self) -> dict[str, object]:
        """All files that the cells try to change."""
        about = self.gold.stat()
        files = {str(path): path.read_bytes() for path in self.canary.rglob("*") if path.is_file()}
        return {
            "gold": (
                self.gold.read_bytes(),
                about.st_mode,
                about.st_uid,
                about.st_nlink,
                about.st_ino,
                about.st_mtime_ns,
            ),
            "gold folder": (sorted(os.listdir(self.gold.parent)), self.gold.parent.stat().st_mode),
            "canary": files,
            "sibling's files": {path.name: path.read_bytes() for path in self.sibling.folder.iterdir()},
            "probes": [place for place in PLACES if any(PROBE in name for name in os.listdir(place))],
            "zygote": os.path.exists(f"/proc/{self.zygote}") and self.sandbox.pids()[0] == self.zygote,
        }

    async def damage(self, try_anew: bool) -> list[str]:
        """What is not as it was: files, the sibling's memory, the zygote, the supervisor's socket, new sessions (where
        not `try_anew`, the next cell's session is the proof)."""
        now = self.outside()
        found = [
            f"{name}: {self.before[name]!r} became {now[name]!r}" for name in now if now[name] != self.before[name]
        ]
        answer = await self.sibling.run("state, os.getpid()", 5 * SLOWDOWN)
        if (answer.value, answer.state) != (self.sibling_state, "kept"):
            found.append(f"sibling: {answer}")
        try:
            found.append(f"the host's socket got {self.mailbox.recv(100)!r}")
        except BlockingIOError:
            pass
        if try_anew:
            async with await self.sandbox.session() as fresh:
                if (await fresh.run("1 + 1", 5 * SLOWDOWN)).value != "2":
                    found.append("a new session does not work")
        return found

    async def play_all(self, cells: list[Cell]) -> None:
        """Those not played yet: one after the other, except the ones that wait for their time limit."""
        cells = [cell for cell in cells if cell.name not in self.outcomes]
        turn = asyncio.Semaphore(AT_ONCE)

        async def play(cell: Cell) -> None:
            try:
                self.outcomes[cell.name] = await self.play(cell)
            except Exception as exception:  # shown by the test of this cell
                self.outcomes[cell.name] = exception

        async def wait_and_play(cell: Cell) -> None:
            async with turn:
                await play(cell)

        for cell in cells:
            if not cell.timed:
                await play(cell)
        await asyncio.gather(*(wait_and_play(cell) for cell in cells if cell.timed))

    def children(self) -> set[int]:
        """Processes that the zygote has."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == self.zygote:
                        found.add(int(entry.name))
                except OSError:  # it ended
                    continue
        return found


def soft_limit(cell: Cell, step: int) -> float:
    return (cell.soft_s if "timeout" in cell.expect[step] else max(cell.soft_s, ENOUGH_S)) * SLOWDOWN


def leads_out(session: Session, name: str) -> bool:
    """Whether who opens this file of a result, as a user interface would, gets at something else."""
    return not (session.folder / name).resolve().is_relative_to(session.folder.resolve())


async def build(folder: Path) -> Arena:
    gold, canary = folder / "gold" / "gold.json", folder / "canary"
    words = {name: f"AGENTIC-{name}-{secrets.token_hex(16)}" for name in ("GOLD", "KEY", "SIBLING")}
    # Everyone may read and write all of it: only the sandbox stands before it.
    for place in (gold.parent, canary, canary / "site-packages"):
        place.mkdir()
        place.chmod(0o777)
    for path, text in (
        (gold, f'{{"answer": "{words["GOLD"]}"}}'),
        (canary / "canary.txt", "alive"),
        (canary / "site-packages" / "canary.py", "alive = True"),
    ):
        path.write_text(text)
        path.chmod(0o666)
    mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    mailbox.setblocking(False)
    mailbox.bind(str(folder / "log"))
    (folder / "log").chmod(0o777)
    os.environ["AGENTIC_TEST_KEY"] = words["KEY"]
    sandbox = await Sandbox(limits=LIMITS).__aenter__()
    sibling = await sandbox.session()
    planted = await sibling.run(
        f"import os; state = {words['SIBLING']!r}; os.umask(0); n = open('kept.txt', 'w').write(state); state, os.getpid()"
    )
    state = str(planted.value)
    zygote, sibling_pid = sandbox.pids()
    names: dict[str, str | int] = {
        "GOLD": str(gold), "GOLD_FOLDER": str(gold.parent), "CANARY": str(canary), "SIBLING": str(sibling.folder),
        "SIBLING_PID": sibling_pid, "ZYGOTE": zygote, "ZYGOTE_FOLDER": str(sibling.folder.parent),
        "SUPERVISOR": os.getpid(), "HOST_SOCKET": str(folder / "log"), "PURELIB": PURELIB, "PACKAGE": PACKAGE,
        "PROBE": PROBE,
    }  # fmt: skip
    arena = Arena(sandbox, sibling, state, zygote, gold, canary, mailbox, list(words.values()), names)
    arena.before = arena.outside()
    return arena


@pytest.fixture(scope="module")
def run() -> Iterator[Any]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def arena(run: Any) -> Iterator[Arena]:
    folder = Path(tempfile.mkdtemp(prefix="agentic-hostile-"))
    folder.chmod(0o755)
    built = run(build(folder))
    assert built.before["probes"] == [] and built.sandbox.level >= "L2"
    yield built
    run(built.sandbox.close())
    built.mailbox.close()
    del os.environ["AGENTIC_TEST_KEY"]
    shutil.rmtree(folder)


SAMPLE = 5
"""Of the cells that end at once, one in this many is played by default."""

CELLS = [
    pytest.param(cell, id=cell.name, marks=[pytest.mark.slow] * (cell.timed or number % SAMPLE != 0))
    for number, cell in enumerate(CATALOGUE)
]
"""The rest is marked slow: all together take most of a minute."""


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_ends_as_it_should_and_touches_nothing_else(run: Any, arena: Arena, cell: Cell) -> None:
    if cell.module and importlib.util.find_spec(cell.module) is None:
        pytest.skip(f"{cell.module} is not installed")
    run(arena.play_all([other for other in playable() if other.timed] if cell.timed else [cell]))
    outcome = arena.outcomes[cell.name]
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome.harm == []
    statuses = [result.status for result in outcome.results]
    assert all(status in expected for status, expected in zip(statuses, cell.expect, strict=True)), outcome.results
    last = outcome.results[-1]
    told = f"{last.stdout}\n{last.value or ''}\n" + (f"{last.error.type}: {last.error.message}" if last.error else "")
    assert re.search(cell.says, told), told[:1000]
    for result in outcome.results:
        assert result.isolation == arena.sandbox.level
        assert result.status == "ok" or result.error is not None
        assert len(result.model_dump_json()) < 200_000  # it can be written, and is bounded
    for step, wall in enumerate(outcome.walls):
        assert wall <= soft_limit(cell, step) + LATE_S * SLOWDOWN
    if cell.fate == "kept":
        assert outcome.alive and (outcome.whole or not cell.names), (outcome.results, outcome.check)
    elif cell.fate == "dead":
        assert not outcome.alive and outcome.check.status == "ok", (outcome.results, outcome.check)


def playable() -> list[Cell]:
    return [cell for cell in CATALOGUE if not cell.module or importlib.util.find_spec(cell.module)]


@pytest.mark.slow
def test_all_cells_together(run: Any, arena: Arena) -> None:
    """Targets of the sandbox: all of host, gold and siblings untouched, 88 % of the sessions alive with their state."""
    run(arena.play_all(playable()))
    outcomes = {name: outcome for name, outcome in arena.outcomes.items() if isinstance(outcome, Outcome)}
    assert len(outcomes) == len(playable()) >= 90
    assert run(arena.damage(try_anew=True)) == []
    ended = [name for name, outcome in outcomes.items() if not outcome.alive]
    share = 1 - len(ended) / len(outcomes)
    print(f"{len(outcomes)} hostile cells at {arena.sandbox.level}, {share:.1%} leave their session alive")
    assert {name: outcome.harm for name, outcome in outcomes.items() if outcome.harm} == {}
    assert share >= 0.88, "\n".join(ended)
    assert arena.children() == {arena.names["SIBLING_PID"]}
    verdict = compare("it is 1", [Check(kind="number", value=7)])
    assert not verdict.correct and verdict.score == 0.0  # whatever cells did to their own answer checker


def test_names_of_cells_are_unique() -> None:
    assert len({cell.name for cell in CATALOGUE}) == len(CATALOGUE)


NOBODY = 65534


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_the_same_as_an_unprivileged_user() -> None:
    """At L2, where sessions have the user id of their supervisor. It may read past file modes, as only root may reach
    an interpreter in root's home; what it may do beside that is nothing."""
    home = Path(tempfile.mkdtemp(prefix="agentic-nobody-"))
    shutil.chown(home, NOBODY, NOBODY)
    rights = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all,+dac_read_search"]
    rights += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
    pytest_call = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-s",
        "-m",
        "",
        __file__,
    ]
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop(levels.VARIABLE, None)
    try:
        ended = subprocess.run(
            ["setpriv", *rights, *pytest_call], env=environment, cwd=home, capture_output=True, text=True, timeout=600
        )
    finally:
        shutil.rmtree(home)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    figures = [line for line in ended.stdout.splitlines() if "hostile cells at L2" in line]
    print(*figures)
    assert len(figures) == 1
