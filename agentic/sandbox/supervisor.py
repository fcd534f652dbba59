"""Sandbox: starts the zygote and hands out sessions."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentic.sandbox.folder import remove_tree
from agentic.sandbox.limits import Limits, choose_level
from agentic.sandbox.session import Session
from agentic.sandbox.worker import ZygoteProcess


class Sandbox:
    """Async context manager; belongs to the event loop that enters it. Gold answers and keys stay on this side.

    Raises UserError for a level that is not available, and on entry when the zygote does not start.
    """

    def __init__(self, level: str = "auto", limits: Limits | None = None) -> None:
        self.level = choose_level(level)
        """Isolation level in force; every result carries it as `isolation`."""
        self.limits = limits or Limits()
        self._zygote: ZygoteProcess | None = None
        self._starting = asyncio.Lock()
        self._sessions: list[Session] = []
        self._count = 0

    async def __aenter__(self) -> Sandbox:
        await self._running_zygote()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def session(
        self, files: Mapping[str, Path] | None = None, prelude: str = "", seed: str | None = None
    ) -> Session:
        """A new session that sees a copy of each file under its name in its work folder, after running `prelude`.

        `seed` starts the random generators (default: the number of the session). Raises SandboxError when the prelude
        fails, UserError for a file that cannot be read.
        """
        zygote = await self._running_zygote()
        self._count += 1
        name = f"s{self._count}"
        session = Session(name, zygote, files or {}, prelude, seed or name, self.level, self.limits)
        try:
            await session.start()
        except BaseException:
            await session.close()
            raise
        self._sessions = [other for other in self._sessions if not other.closed]
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        """End all sessions and the zygote; remove every folder."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            await asyncio.gather(*(session.close() for session in self._sessions))
            self._sessions = []
            await self._end(zygote)

    async def _running_zygote(self) -> ZygoteProcess:
        async with self._starting:
            if self._zygote is not None and not self._zygote.alive:  # killed from outside; its sessions are lost
                await self._end(self._zygote)
                self._zygote = None
            if self._zygote is None:
                zygote = ZygoteProcess(Path(tempfile.mkdtemp(prefix="agentic-sandbox-")))
                try:
                    await zygote.start(self.limits.start_s)
                except BaseException:
                    await asyncio.to_thread(remove_tree, str(zygote.folder))
                    raise
                self._zygote = zygote
            return self._zygote

    async def _end(self, zygote: ZygoteProcess) -> None:
        await zygote.close()
        await asyncio.to_thread(remove_tree, str(zygote.folder))
