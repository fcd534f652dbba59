"""The event loop of the rollouts, which Ctrl-C may end: weights and optimizer are then those after the step before."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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
