"""Sandbox: starts the zygote and hands out sessions."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agentic.sandbox.folder import remove_tree
from agentic.sandbox.levels import choose_level, may_change_user, uid_range
from agentic.sandbox.limits import Limits
from agentic.sandbox.memory import SHARE, Admission, available_mb
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
        self._admission = Admission(self.limits.sessions_mb or SHARE * available_mb(), self.pids)
        self._uids: tuple[int, int] | None = None
        if self.level != "L0" and may_change_user():
            self._uids = uid_range()
        self._first_uid = secrets.randbelow(1 << 24)
        """Sandboxes of one machine start at different places of the range."""

    async def __aenter__(self) -> Sandbox:
        await self._running_zygote()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def session(
        self, files: Mapping[str, Path] | None = None, prelude: str = "", seed: str | None = None
    ) -> Session:
        """A new session that sees a copy of each file under its name in its work folder, after running `prelude`.

        `seed` starts the random generators (default: the number of the session). Waits while the sessions that live
        take the memory budget (Limits.sessions_mb). Raises SandboxError when the prelude
        fails, UserError for a file that cannot be read.
        """
        zygote = await self._running_zygote()
        await self._admission.enter()
        self._count += 1
        name = f"s{self._count}"
        session = Session(name, zygote, files or {}, prelude, seed or name, self._next_uid(), self.limits)
        try:
            await session.start()
        except BaseException:
            await session.close()
            raise
        self._sessions = [other for other in self._sessions if not other.closed]
        self._sessions.append(session)
        return session

    def pids(self) -> list[int]:
        """Process ids of the zygote and of the live sessions."""
        return self._zygote.pids() if self._zygote is not None else []

    def _next_uid(self) -> int | None:
        """A user id that no other session of this sandbox has; None: sessions run as this user."""
        if self._uids is None:
            return None
        first, count = self._uids
        return first + (self._first_uid + self._count) % count

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
                folder = Path(tempfile.mkdtemp(prefix="agentic-sandbox-"))
                if self._uids is not None:
                    folder.chmod(0o711)  # sessions pass through it to their own folders, and cannot list it
                zygote = ZygoteProcess(folder, self.level)
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
