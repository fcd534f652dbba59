"""Many trajectories at once, with processes that die at random: all answers are typed, and nothing is left.

AGENTIC_TEST_TRAJECTORIES sets the size of the slow test (default 2000), AGENTIC_TEST_SEED its chance, AGENTIC_TEST_SLOWDOWN
stretches the time limits on a loaded machine.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from agentic.records import ExecResult
from agentic.sandbox import Limits, Sandbox, SandboxError, Session

CONCURRENCY = 32
SLOWDOWN = float(os.environ.get("AGENTIC_TEST_SLOWDOWN", "1"))
LIMITS = Limits(soft_s=10 * SLOWDOWN, grace_s=0.5 * SLOWDOWN, memory_mb=256, folder_mb=16, folder_files=200, file_mb=8)
SHORT_S = 0.2
TABLE = "shop,sales\na,1\nb,2\na,3\n"

FIRST = "import os, time, threading\nn = 40\nframe = pd.read_csv('t.csv')\nframe.groupby('shop')['sales'].sum()['a']"
"""What each trajectory does before anything goes wrong: its names come back after every death."""

PLAIN = [
    ("n + 2", "42"),
    ("frame['sales'].sum()", "6"),
    ("frame.to_csv('out.csv'); len(open('out.csv').read()) > 10", "True"),
    ("[t.start() for t in [threading.Thread(target=time.sleep, args=(60,), daemon=True) for _ in range(3)]]; n", "40"),
    ("len([os.pipe() for _ in range(8)])", "8"),  # left open; five times of them fit a session
]
WILD = [
    ("1 / 0", {"error"}),
    ("os._exit(3)", {"killed"}),
    ("os.kill(os.getpid(), 9)", {"killed"}),
    ("import ctypes; ctypes.string_at(0)", {"killed"}),
    ("bytearray(2 << 30)", {"memory"}),
    ("print('x' * 100_000)", {"ok"}),
    ("os.closerange(3, 99); time.sleep(60)", {"killed"}),
    (
        "[os.write(int(f), b'\\xff' * 9) for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}') "
        "and os.readlink(f'/proc/self/fd/{f}').startswith('socket')]\ntime.sleep(60)",
        {"protocol_error"},
    ),
    ("open('/etc/passwd')", {"blocked", "ok", "error"}),
    ("for i in range(300): open(f'f{i}', 'w').close()", {"killed"}),
]
SLOW = [
    ("while True: pass", {"timeout"}),
    ("import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass", {"timeout"}),
]
STATES = {"kept", "restored", "lost"}


def children(parent: int) -> set[int]:
    """Processes that `parent` has, zombies included."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.add(int(entry.name))
            except OSError:  # it ended
                continue
    return found


class Soak:
    def __init__(self, sandbox: Sandbox, table: Path, chance: random.Random) -> None:
        self.sandbox = sandbox
        self.table = table
        self.chance = chance
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.finished = 0

    async def trajectory(self, number: int) -> None:
        session = await self.sandbox.session({"t.csv": self.table})
        try:
            self.expect(await session.run(FIRST), {"ok"}, "4", session.name)
            for _ in range(self.chance.randint(2, 5)):
                await self.step(session)
        finally:
            await session.close()
        with pytest.raises(SandboxError):
            await session.run("1")
        if session.folder.exists():
            self.wrong.append(f"{session.folder} is left")
        self.finished += 1

    async def step(self, session: Session) -> None:
        kind = self.chance.choices(("plain", "wild", "slow", "cancelled", "shot"), (10, 6, 1, 2, 2))[0]
        if kind == "plain":
            code, value = self.chance.choice(PLAIN)
            self.expect(await session.run(code), {"ok"}, value, session.name)
        elif kind == "cancelled":
            call = asyncio.create_task(session.run("time.sleep(60)"))
            await asyncio.sleep(self.chance.random() * 0.05)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            if not call.cancelled():
                self.wrong.append(f"{session.name}: a cancelled call went on: {call.result()}")
            self.seen["cancelled"] += 1
        elif kind == "shot":
            result = await session.run("os.getpid()")
            self.expect(result, {"ok"}, None, session.name)
            await self.shoot(session, int(result.value or "0"))
        else:
            code, statuses = self.chance.choice(WILD if kind == "wild" else SLOW)
            result = await session.run(code, SHORT_S * SLOWDOWN if kind == "slow" else None)
            self.expect(result, statuses, None, session.name)
        if self.chance.random() < 0.5:  # whatever happened, the names of the first cell are there
            self.expect(await session.run("n + frame['sales'].max()"), {"ok"}, "43", session.name)

    async def shoot(self, session: Session, pid: int) -> None:
        """SIGKILL from outside, while it runs a cell or between two."""
        if self.chance.random() < 0.5:
            call = asyncio.create_task(session.run("time.sleep(60)"))
            await asyncio.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            self.expect(await call, {"killed"}, None, session.name)
        else:
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(self.chance.random() * 0.02)
            # The news of the death may come before this cell or with it.
            self.expect(await session.run("n"), {"ok", "killed"}, None, session.name)

    def expect(self, result: ExecResult, statuses: set[str], value: str | None, name: str) -> None:
        self.seen[result.status] += 1
        self.seen[result.state] += 1
        fits = result.status in statuses and (value is None or result.value == value)
        if not fits or result.state not in STATES or result.isolation != self.sandbox.level:
            self.wrong.append(f"{name}: expected {statuses} {value}, got {result}")


async def soak(count: int, seed: int, table: Path) -> Counter[str]:
    table.write_text(TABLE)
    async with Sandbox(limits=LIMITS) as sandbox:
        warm = await sandbox.session()  # what is opened once for good is open now
        folder = warm.folder.parent
        await warm.close()
        zygote = sandbox.pids()[0]
        places = (Path("/proc/self/fd"), Path(f"/proc/{zygote}/fd"))
        gc.collect()
        before = [len(os.listdir(place)) for place in places]
        play = Soak(sandbox, table, random.Random(seed))
        numbers = iter(range(count))

        async def worker() -> None:
            for number in numbers:
                await play.trajectory(number)

        await asyncio.gather(*(worker() for _ in range(min(CONCURRENCY, count))))
        assert not play.wrong, "\n".join(play.wrong)
        assert play.finished == count
        deadline = time.monotonic() + 5 * SLOWDOWN
        while children(zygote) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert children(zygote) == set() and sandbox.pids() == [zygote]
        assert {path.name for path in folder.iterdir()} <= {"zygote.log"}
        gc.collect()
        assert [len(os.listdir(place)) for place in places] == before
        log = folder / "zygote.log"
        assert log.stat().st_size < 100_000
    assert not folder.exists() and not os.path.exists(f"/proc/{zygote}")
    return play.seen


def test_twenty_trajectories(tmp_path: Path) -> None:
    asyncio.run(soak(20, 7, tmp_path / "t.csv"))


@pytest.mark.slow
def test_two_thousand_trajectories(tmp_path: Path) -> None:
    count = int(os.environ.get("AGENTIC_TEST_TRAJECTORIES", "2000"))
    seed = int(os.environ.get("AGENTIC_TEST_SEED", "1"))
    seen = asyncio.run(soak(count, seed, tmp_path / "t.csv"))
    print(dict(seen))
    if count >= 500:
        assert {"ok", "error", "killed", "timeout", "memory", "protocol_error", "kept", "restored", "cancelled"} <= set(
            seen
        )
