"""One trajectory's Python: a namespace that lives from cell to cell, and comes back after its process was killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from agentic.errors import UserError
from agentic.records import ExecError, ExecResult
from agentic.sandbox.folder import measure, remove_tree, virtual_mb
from agentic.sandbox.limits import Limits
from agentic.sandbox.protocol import FrameError
from agentic.sandbox.reply import parse_reply
from agentic.sandbox.text import OutputRing, Scrubber, cut
from agentic.sandbox.worker import Died, Worker, ZygoteProcess, explain

FORGED = 1000
"""Characters by which a text may exceed its limit (notes in the gap, replaced paths) and still be honest."""

WATCH_S = 0.2
"""How often the work folder is measured while a cell runs."""

RESTORE_WAIT_S = 0.25
"""How long a result waits for its killed session to be restored."""

INTERRUPTS = 3
"""Times a cell is interrupted within its grace before its process is killed."""

State = Literal["kept", "restored", "lost"]


class SandboxError(Exception):
    """A session could not be set up. `result` is that of the prelude, when the prelude is the cause."""

    def __init__(self, message: str, result: ExecResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class FolderWatch:
    """Measures the work folder every WATCH_S while a cell runs, and kills the process whose folder is full. Most cells end
    before the first time, so a timer starts the task."""

    def __init__(self, session: Session, worker: Worker) -> None:
        self._session = session
        self._worker = worker
        self._task: asyncio.Task[None] | None = None
        self.found_full = False
        self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not await self._session.is_folder_full(self._worker, thorough=True):
            await asyncio.sleep(WATCH_S)
        self.found_full = True
        self._worker.abandon()

    def cancel(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


class Session:
    """Made by Sandbox.session(). One cell runs at a time; further calls wait.

    What `ExecResult.state` says about the namespace after the cell: kept; restored (the process was killed, a new one
    runs the prelude and every cell that had ended ok, so only what failed cells did is gone); lost (there was nothing
    to run again, or running it again failed: only the prelude's names are there). A history that takes longer than
    RESTORE_WAIT_S goes on being run after the result is there; should it fail then, the next result says lost.
    """

    def __init__(
        self,
        name: str,
        zygote: ZygoteProcess,
        files: Mapping[str, Path],
        prelude: str,
        seed: str,
        uid: int | None,
        limits: Limits,
    ) -> None:
        self.name = name
        self.folder = zygote.folder / name
        """Work folder, removed by close(). The code owns it: anything in it may be a link to anywhere."""
        self._zygote = zygote
        self._files = {_plain_name(key): Path(path) for key, path in files.items()}
        self._prelude = prelude
        self._seed = seed
        self._uid = uid
        self._limits = limits
        self._history: list[str] = []
        self._forgotten: set[str] = set()
        self.freezes = True
        """Whether the process is stopped between cells; trusted code leaves nothing running and may save the signals."""
        self._generation = 0
        self._worker: Worker | None = None
        self._leaving: Worker | None = None
        """Killed without waiting: it may still be writing to the folder."""
        self._restoring: asyncio.Task[State] | None = None
        self._lock = asyncio.Lock()
        self._folder_lock = threading.RLock()
        """Held by threads that fill or remove the folder: they go on when the call that began them is cancelled."""
        self.closed = False
        self._scrub = Scrubber(str(self.folder))

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def run(self, code: str, timeout_s: float | None = None) -> ExecResult:
        """Run one cell; `timeout_s` replaces the soft limit. What the code does is data: raises SandboxError only when
        the sandbox itself is lost. A cancelled call kills the process; the next call restores the session."""
        async with self._lock:
            if self.closed:
                raise SandboxError("the session is closed")
            state: State = "kept"
            if self._restoring is not None:
                state = "lost" if await self._restored() == "lost" else "kept"
            if self._worker is None or not self._worker.alive:  # it died between two cells
                state = await self._restore()
            result = await self._execute(code, self._limits.soft_s if timeout_s is None else timeout_s)
            if self._worker is None:
                self._restoring = asyncio.create_task(self._restore())
                await asyncio.wait([self._restoring], timeout=RESTORE_WAIT_S)
                if self._restoring.done():
                    return result.model_copy(update={"state": await self._restored()})
                return result.model_copy(update={"state": "restored"})
            if result.status == "ok":
                self._history.append(code)
            if self.freezes:
                self._worker.freeze()
            return result.model_copy(update={"state": state})

    def forget(self, names: Iterable[str]) -> None:
        """Unbind names before the next cell and drop the history: for trusted scripts that take turns in one session. What
        they changed in place stays changed."""
        self._forgotten |= set(names)
        self._history.clear()

    async def reset(self) -> None:
        """Forget every cell: a fresh process, files and prelude."""
        async with self._lock:
            if self._restoring is not None:
                await self._restored()
            self._history = []
            await self.start()

    async def close(self) -> None:
        """End the process and remove the work folder."""
        self.closed = True  # a run in progress sees its process die and does not restore it
        if self._worker is not None:
            self._worker.abandon()
        async with self._lock:
            if self._restoring is not None:
                self._restoring.cancel()
                await asyncio.wait([self._restoring])
                self._restoring = None
            await self._end()
            await _to_its_end(self._remove)

    async def start(self) -> None:
        """A fresh process with files and prelude. Raises SandboxError."""
        await self._end()
        self._generation += 1
        await _to_its_end(self._fill_folder)
        try:
            self._worker = await self._zygote.fork(
                f"{self.name}.{self._generation}", self.folder, self._seed, self._uid, self._limits
            )
        except (Died, FrameError):
            why = self._zygote.last_words() or "its process ended at once"
            raise SandboxError(f"the sandbox could not start a session: {why}") from None
        if self._worker.pid is not None:
            self._worker.looked_at_mb = virtual_mb(self._worker.pid)
        if self._prelude:
            result = await self._execute(self._prelude, self._limits.start_s)
            if result.status != "ok":
                error = result.error
                raise SandboxError(f"prelude: {error.type}: {error.message}" if error else "prelude failed", result)
        self._worker.freeze()

    async def _end(self) -> None:
        """Wait until no process of this session is left."""
        for worker in (self._leaving, self._worker):
            if worker is not None:
                await worker.kill()
        self._leaving = self._worker = None

    async def _restored(self) -> State:
        """The outcome of the restoring task, which is then forgotten. Raises SandboxError when there is no session to be had."""
        task, self._restoring = self._restoring, None
        assert task is not None
        return await task

    async def _restore(self) -> State:
        """Bring the session back by running its successful cells again, whole and in order."""
        if self.closed:
            return "lost"
        await self.start()
        deadline = time.monotonic() + self._limits.replay_s
        for code in self._history:
            left = deadline - time.monotonic()
            if self.closed or left <= 0 or (await self._execute(code, left)).status != "ok":
                self._history = []
                await self.start()
                return "lost"
        if self._worker is not None:
            self._worker.freeze()
        return "restored" if self._history else "lost"

    async def _execute(self, code: str, timeout: float) -> ExecResult:
        """Run a cell in the current process. On return `_worker` is None when the process had to go or is gone."""
        worker = self._worker
        assert worker is not None
        started = time.monotonic()
        watch = FolderWatch(self, worker)
        try:
            result = await self._converse(worker, code, timeout)
            if await self.is_folder_full(worker):
                await worker.kill()
                result = self._folder_full()
        except FrameError as error:
            await worker.kill()
            result = self._failed("protocol_error", "ProtocolError", str(error))
        except Died:
            ended = explain(await worker.wait_exit())
            result = self._folder_full() if watch.found_full else self._failed("killed", "SessionKilled", ended)
        except asyncio.CancelledError:
            worker.abandon()
            self._leaving, self._worker = worker, None
            raise
        finally:
            watch.cancel()
        if worker.closed:
            stdout, dropped = await asyncio.to_thread(self._read_output, worker.name)
            result = result.model_copy(update={"stdout": stdout, "dropped_chars": dropped})
            self._worker = None
        wall_ms = (time.monotonic() - started) * 1000
        return result.model_copy(update={"wall_ms": wall_ms, "isolation": self._zygote.level})

    async def is_folder_full(self, worker: Worker, thorough: bool = False) -> bool:
        """Measured thoroughly where a cell is slow, or its process has grown enough to hide files in mappings."""
        limits = self._limits
        virtual = virtual_mb(worker.pid) if worker.pid is not None else 0.0
        thorough = thorough or virtual > worker.looked_at_mb + limits.folder_mb / 4
        if thorough:
            worker.looked_at_mb = virtual
            size, count = await asyncio.to_thread(measure, str(self.folder), worker.pid, limits.folder_files)
        else:  # a thread would take longer than the few entries of an ordinary folder
            size, count = measure(str(self.folder), worker.pid, limits.folder_files, mapped=False)
        return size > limits.folder_mb << 20 or count > limits.folder_files

    def _folder_full(self) -> ExecResult:
        limits = self._limits
        what = f"the work folder grew past {limits.folder_mb} MB or {limits.folder_files} files"
        return self._failed("killed", "DiskQuota", what)

    async def _converse(self, worker: Worker, code: str, timeout: float) -> ExecResult:
        try:
            forgotten, self._forgotten = sorted(self._forgotten), set()
            request = await worker.send(code, timeout, forgotten)
        except FrameError as error:  # ours, not the session's
            return self._failed("error", "ValueError", f"code too long: {error}")
        message = await worker.receive(timeout)
        for attempt in range(INTERRUPTS):  # the first may end in a `finally` that loops
            if message is None:
                worker.interrupt(again=attempt > 0)
                message = await worker.receive(self._limits.grace_s / INTERRUPTS)
        if message is None:
            await worker.kill()
            return self._failed(
                "timeout", "TimeoutError", f"stopped after {timeout:g} s; it ignored the interrupt and was killed"
            )
        reply = parse_reply(message, request)
        fields = reply.model_dump(exclude={"type", "id"})
        if reply.status == "timeout" and reply.error is not None:
            fields["error"]["message"] = f"stopped after {timeout:g} s"
        # The session has cut its texts already; a forged answer is cut here.
        fields["stdout"] = cut(reply.stdout, self._limits.stdout_chars + FORGED)[0]
        fields["value"] = None if reply.value is None else cut(reply.value, self._limits.value_chars + FORGED)[0]
        fields["figures"] = [name for name in reply.figures if self._is_plain_file(name)]
        return ExecResult(**fields)

    def _is_plain_file(self, name: str) -> bool:
        """Not a link that the code has put in a figure's place: whoever shows figures reads them with our rights."""
        with suppress(OSError):
            return stat.S_ISREG((self.folder / name).lstat().st_mode)
        return False

    def _failed(
        self, status: Literal["error", "timeout", "killed", "protocol_error"], kind: str, message: str
    ) -> ExecResult:
        return ExecResult(status=status, error=ExecError(type=kind, message=message))

    def _read_output(self, worker: str) -> tuple[str, int]:
        """What the dead process had printed. The file was writable by hostile code, so only its bytes are used."""
        size = OutputRing.size(self._limits.stdout_chars)
        path = self._zygote.output(worker)
        data = path.read_bytes()[:size] if path.is_file() and path.stat().st_size == size else b""
        ring = OutputRing(bytearray(data.ljust(size, b"\0")), self._limits.stdout_chars)
        text, dropped = ring.read()
        path.unlink(missing_ok=True)
        return self._scrub(text), min(dropped, 1 << 53)

    def _fill_folder(self) -> None:
        """An empty work folder with a copy of every file.

        Copies, not links: code that overwrites its table must not reach the user's file or another session's, a restored
        session must see the file as it first was, and under Landlock the work folder alone then has to be readable.
        """
        with self._folder_lock:
            if self.closed:
                raise SandboxError("the session is closed")
            self._remove()
            self.folder.mkdir(mode=0o700)
            for name, path in self._files.items():
                try:
                    shutil.copyfile(path, self.folder / name)
                except OSError as error:
                    raise UserError(f"{path}: {error.strerror or error}; a session needs to read it") from None
                if self._uid is not None:
                    os.chown(self.folder / name, self._uid, self._uid)
            if self._uid is not None:
                os.chown(self.folder, self._uid, self._uid)

    def _remove(self) -> None:
        with self._folder_lock:
            if self.folder.is_dir():
                remove_tree(str(self.folder))
            for generation in range(self._generation + 1):
                with suppress(OSError):
                    self._zygote.output(f"{self.name}.{generation}").unlink()


async def _to_its_end(work: Callable[[], None]) -> None:
    """Run blocking work in a thread. A cancelled call ends with it, not before: whatever comes next on the same folder would
    meet it there."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at, so that nobody complains
        raise cancelled
    task.result()


def _plain_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UserError(f"file name {name!r} of a session: use a plain name without folders")
    return name
