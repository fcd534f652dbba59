"""One zygote for all sandboxes of a test process. A test file that wants it names this module in `pytest_plugins`.

Starting a zygote imports pandas and matplotlib, a second of work; forking a session from it takes milliseconds. Commands
start one for themselves, as users want it. Under the fixture `shared_zygote` they get sessions from one that is there:
real processes, with the limits and the level of their own sandbox, in its own folder.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from agentic.sandbox import supervisor
from agentic.sandbox.folder import remove_tree
from agentic.sandbox.worker import ZygoteProcess


class SharedZygote(ZygoteProcess):
    """What a sandbox takes for its own zygote: one that earlier sandboxes have used, unless one of them still does."""

    idle: ClassVar[dict[str, ZygoteProcess]] = {}
    """By isolation level."""
    _own: ZygoteProcess

    async def start(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        if self.level not in self.idle:
            folder = Path(tempfile.mkdtemp(prefix="agentic-shared-"))
            folder.chmod(0o711)
            fresh = ZygoteProcess(folder, self.level)
            await fresh.start(timeout)
            loop.remove_reader(fresh._control)
            self.idle[self.level] = fresh
        self._own = self.idle.pop(self.level)
        self._process, self._control = self._own._process, self._own._control
        self.alive = True
        loop.add_reader(self._control, self._readable)
        self._ready.set_result(True)

    async def close(self) -> None:
        """End the sessions. Their ends are waited for: the next sandbox uses their names again."""
        for worker in list(self._workers.values()):
            worker.abandon()
        deadline = time.monotonic() + 10
        while self.alive and self._workers:
            assert time.monotonic() < deadline, f"sessions that do not end: {sorted(self._workers)}"
            await asyncio.sleep(0.002)
        if not self.alive:  # a test has killed it
            end(self._own)
            return
        self._lost()
        if self.level in self.idle:
            end(self._own)
        else:
            self.idle[self.level] = self._own


def end(zygote: ZygoteProcess) -> None:
    zygote._control.close()
    zygote._process.wait(10)
    remove_tree(str(zygote.folder))


@pytest.fixture(scope="session")
def _shared_zygotes() -> Iterator[None]:
    yield
    while SharedZygote.idle:
        end(SharedZygote.idle.popitem()[1])


@pytest.fixture(scope="module")
def shared_zygote(_shared_zygotes: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "ZygoteProcess", SharedZygote)
        yield
