"""How much memory sessions take, and whether one more fits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

SHARE = 0.7
"""Part of the memory that is free at the start which sessions may take together."""

NEW_SESSION_MB = 8.0
"""Reckoned for a session until it is measured: what one takes after a first cell with pandas."""

_UNMEASURED = 16
"""So few sessions are always let in: with Limits.memory_mb each they are the caller's choice."""

_WAIT_S = 0.2


def available_mb() -> float:
    """Free memory of the machine, or of the control group where that is less."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) / 1024
    with suppress(OSError, ValueError):  # no cgroup v2, or "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, (limit - int((group / "memory.current").read_text())) / (1 << 20))
    return free


def proportional_mb(pid: int) -> float:
    """PSS of a process: its own pages, and its part of those it shares. 0.0 when it is gone or not ours to look at."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


class Admission:
    """Lets sessions start while the sum of all fits a budget."""

    def __init__(self, budget_mb: float, pids: Callable[[], Iterable[int]]) -> None:
        """`pids`: the processes that count."""
        self.budget_mb = budget_mb
        self._pids = pids
        self._measured_mb = 0.0
        self._since = 0
        self._next = 0.0

    async def enter(self) -> None:
        """Returns when one more session fits; waits for others to end. With few sessions it never waits."""
        while len(list(self._pids())) >= _UNMEASURED and await self._estimate() > self.budget_mb:
            await asyncio.sleep(_WAIT_S)
        self._since += 1

    async def _estimate(self) -> float:
        """MB with one session more. Measuring takes about 0.3 ms a session, so it is kept below a twentieth of the time."""
        started = time.monotonic()
        if started >= self._next:
            self._since = 0
            pids = list(self._pids())
            self._measured_mb = await asyncio.to_thread(lambda: sum(map(proportional_mb, pids)))
            self._next = time.monotonic() + max(_WAIT_S, 20 * (time.monotonic() - started))
        return self._measured_mb + NEW_SESSION_MB * (self._since + 1)
