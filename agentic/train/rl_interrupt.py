"""The event loop of the rollouts, and Ctrl-C: rollouts are given up at once, weights are saved, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from agentic.train.launch import say

T = TypeVar("T")


class Interrupted(Exception):
    """The rollouts of a step were given up; weights and optimizer are those after the step before."""


class RolloutLoop:
    """One event loop for the whole run: sandboxes live from step to step."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._task: asyncio.Task[Any] | None = None

    def run(self, work: Coroutine[Any, Any, T], may_cancel: bool = True) -> T:
        """The result; raises Interrupted when `cancel` was called meanwhile and `may_cancel` says it may."""

        async def main() -> T:
            self._task = asyncio.current_task() if may_cancel else None
            return await work

        try:
            return self._runner.run(main())
        except asyncio.CancelledError:
            raise Interrupted from None
        finally:
            self._task = None

    def cancel(self) -> bool:
        """Give up what runs, if it may be given up. Safe in a signal handler."""
        task = self._task
        if task is not None:
            self._runner.get_loop().call_soon_threadsafe(task.cancel)
        return task is not None

    def close(self) -> None:
        self._runner.close()


class Stoppable(Protocol):
    stop_requested: bool


@contextmanager
def stop_on_signal(loop: RolloutLoop, progress: Stoppable) -> Iterator[None]:
    """Ctrl-C and SIGTERM give up the rollouts, or finish the step, and save; a second one stops at once.

    With several processes every step is finished: not all of them may stand at the same place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1

    def stop(number: int, frame: Any) -> None:
        if progress.stop_requested:
            raise KeyboardInterrupt
        progress.stop_requested = True
        given_up = alone and loop.cancel()
        say("stopping: the rollouts are given up" if given_up else "stopping after this step (again to stop at once)")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
