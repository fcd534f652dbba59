"""The supervisor's end: the zygote process and the session processes it forks. Nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from agentic.errors import UserError
from agentic.sandbox.limits import Limits
from agentic.sandbox.protocol import FrameDecoder, FrameError, encode
from agentic.sandbox.text import OutputRing
from agentic.sandbox.variables import clean_environment

LOG = "zygote.log"

FORKS_IN_FLIGHT = 16
"""More would not be faster, and could fill the control socket."""


class Died(Exception):
    """The session's process ended, or closed its socket."""


class Worker:
    """One session process: its socket, and the news of its end."""

    def __init__(self, name: str, zygote: ZygoteProcess, channel: socket.socket) -> None:
        self.name = name
        self._zygote = zygote
        self._channel = channel
        self._decoder = FrameDecoder()
        self._inbox: deque[dict[str, Any]] = deque()
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self.pid: int | None = None
        """Process id, valid until `exit_code` is set."""
        self.looked_at_mb = 0.0
        """Address space when its mappings were last read."""
        self._frozen = False
        self._handle = -1
        self.exit_code: asyncio.Future[int | None] = self._loop.create_future()
        """Set by the zygote's report: >= 0 an exit status, < 0 minus a signal, None when the zygote itself is gone."""
        self._loop.add_reader(channel, self._readable)

    def _readable(self) -> None:
        try:
            data = self._channel.recv(1 << 16)
            if not data:
                raise Died
            self._inbox.extend(self._decoder.feed(data))
            if len(self._inbox) > 1:
                raise FrameError("more than one answer")
        except BlockingIOError:
            return
        except FrameError as error:
            self._failure = error
        except (Died, OSError):
            self._failure = Died()
        if self._failure is not None:
            self._loop.remove_reader(self._channel)
        self._news.set()

    def ended(self, code: int | None) -> None:
        """The zygote reports the end of the process: `code` becomes `exit_code`."""
        if self._failure is None:
            self._readable()  # a last answer may be waiting
        if self._failure is None:  # no end of stream either: something the session started still holds the socket
            self._failure = Died()
            self._loop.remove_reader(self._channel)
        self.exit_code.set_result(code)
        self._drop_handle()
        self._news.set()

    @property
    def closed(self) -> bool:
        """True after kill or abandon."""
        return self._channel.fileno() < 0

    @property
    def alive(self) -> bool:
        """False once the process has ended, closed its socket or sent something that was not asked for."""
        return self._failure is None and not self._inbox and not self.exit_code.done()

    async def receive(self, timeout: float) -> dict[str, Any] | None:
        """The next message, or None after `timeout` seconds. Raises Died or FrameError."""
        # A message that arrived is looked at before the clock: a loop that was busy elsewhere makes no timeouts. News may be
        # a part of a message.
        deadline = self._loop.time() + timeout
        while not self._inbox and self._failure is None and (left := deadline - self._loop.time()) > 0:
            self._news.clear()
            with suppress(TimeoutError):  # asyncio.wait_for of Python 3.11 can swallow a cancellation
                async with asyncio.timeout(left):
                    await self._news.wait()
        if isinstance(self._failure, FrameError):
            raise self._failure
        if self._inbox:
            return self._inbox.popleft()
        if self._failure is not None:
            raise self._failure
        return None

    async def send(self, code: str, timeout: float, forgotten: Sequence[str] = ()) -> int:
        """Send a cell, and names to unbind before it; returns the request's number. Raises FrameError (too large), Died."""
        self._requests += 1
        data = encode({"type": "run", "id": self._requests, "code": code, "forgotten": list(forgotten)})
        if self._frozen:
            self._frozen = False
            self._signal("SIGCONT")
        try:
            with suppress(BlockingIOError):  # a cell fits the socket's buffer as a rule
                data = data[self._channel.send(data) :]
            if data:
                async with asyncio.timeout(timeout):
                    await self._loop.sock_sendall(self._channel, data)
        except (OSError, TimeoutError):
            raise Died from None
        return self._requests

    def started(self, pid: int) -> None:
        """The process says its id, before it runs any of the code. Raises Died when it has ended since."""
        self.pid = pid
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:
            raise Died from None
        except OSError:  # kernels before 5.3, or no descriptor left
            pass

    def _signal(self, number: Literal["SIGINT", "SIGUSR2", "SIGSTOP", "SIGCONT"]) -> None:
        """Through the process's handle, which no later process can inherit; the zygote need not wake up for it. All of them
        take one way, or an interrupt could come after the next cell has begun."""
        if self._handle < 0:
            self._zygote.signal(self.name, number)
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.Signals[number])

    def _drop_handle(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def freeze(self) -> None:
        """Stop the process until the next `send`: what a cell left running takes no time from others."""
        if self.alive:
            self._frozen = True
            self._signal("SIGSTOP")

    def interrupt(self, again: bool = False) -> None:
        """End the cell, not the process. `again`: the first had no effect; code may have a handler of its own for it."""
        self._signal("SIGINT")
        if again:
            self._signal("SIGUSR2")
        self._signal("SIGCONT")  # it may have stopped itself

    async def kill(self) -> int | None:
        """Kill the process group and wait for its end; returns the exit code (see `exit_code`)."""
        self.abandon()
        if not self.exit_code.done():
            await asyncio.wait([self.exit_code], timeout=5)
        return self.exit_code.result() if self.exit_code.done() else None

    def abandon(self) -> None:
        """Kill without waiting."""
        if not self.closed:
            self._loop.remove_reader(self._channel)
            self._channel.close()
        self._drop_handle()
        if self._failure is None:
            self._failure = Died()
            self._news.set()
        if not self.exit_code.done():
            self._zygote.signal(self.name, "SIGKILL")

    async def wait_exit(self) -> int | None:
        """After Died: why. A process that only closed its socket is killed."""
        if not self.exit_code.done():
            await asyncio.wait([self.exit_code], timeout=0.5)
        return await self.kill()


class ZygoteProcess:
    """The exec'ed zygote and its control socket."""

    def __init__(self, folder: Path, level: str) -> None:
        self.folder = folder
        self.level = level
        self._workers: dict[str, Worker] = {}
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._slots = asyncio.Semaphore(FORKS_IN_FLIGHT)
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.alive = False

    async def start(self, timeout: float) -> None:
        """Call once, from the thread that runs the event loop (the zygote ends with that thread). Execs the zygote and wait until it can fork. Raises UserError with its last words when it cannot."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs, (self.folder / LOG).open("wb") as stderr:
            # Popen execs through vfork: safe from a parent with threads, and nothing of its memory is copied.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "agentic.sandbox.zygote",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    str(self.folder),
                    self.level,
                ],
                env=clean_environment(self.folder),
                cwd=self.folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        self.alive = True
        asyncio.get_running_loop().add_reader(self._control, self._readable)
        done, _ = await asyncio.wait([self._ready], timeout=timeout)
        if not done or not self._ready.result():
            why = self.last_words() or f"no answer after {timeout:g} s"
            await self.close()
            raise UserError(f"the sandbox did not start: {why}; try `agentic doctor`")

    def _readable(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        message = json.loads(data)
        if message["type"] == "ready":
            self._ready.set_result(True)
        elif worker := self._workers.pop(message["session"], None):
            worker.ended(message["code"])

    def _lost(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        asyncio.get_running_loop().remove_writer(self._control)
        while self._unsent:
            for fd in self._unsent.popleft()[1]:
                os.close(fd)
        self.alive = False
        if not self._ready.done():
            self._ready.set_result(False)
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.ended(None)

    def last_words(self) -> str:
        """Last line on the stderr of the zygote and of sessions that could not be set up."""
        log = self.folder / LOG
        lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def fork(self, name: str, folder: Path, seed: str, uid: int | None, limits: Limits) -> Worker:
        """A new session process, hardened and waiting. Raises Died or FrameError when it does not come up."""
        async with self._slots:
            if not self.alive:
                raise Died
            output = str(self.output(name))
            _make_output(output, OutputRing.size(limits.stdout_chars))
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            worker = Worker(name, self, ours)
            self._workers[name] = worker
            message = {
                "type": "fork",
                "session": name,
                "folder": str(folder),
                "output": output,
                "seed": seed,
                "uid": uid,
            }
            try:
                with theirs:
                    self._send(message | {"limits": asdict(limits)}, [theirs.fileno()])
                hello = await worker.receive(limits.start_s)
                # Said before any of the code runs, so it can be believed.
                if hello is None or hello.get("type") != "hello" or hello.get("level") != self.level:
                    raise FrameError("the session did not say hello")
                worker.started(int(hello["pid"]))
            except BaseException:
                await worker.kill()  # to its end: it may not have made its output file yet, which the session removes
                raise
            return worker

    def pids(self) -> list[int]:
        """Process ids of the zygote and of its live sessions."""
        return [self._process.pid, *(worker.pid for worker in self._workers.values() if worker.pid is not None)]

    def output(self, name: str) -> Path:
        """File behind a session's output buffer."""
        return self.folder / f"{name}.out"

    def signal(self, name: str, number: Literal["SIGINT", "SIGUSR2", "SIGKILL", "SIGSTOP", "SIGCONT"]) -> None:
        """Through the zygote: it knows which process ids are still its own."""
        self._send({"type": "signal", "session": name, "signal": number}, [])

    def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        """In order, and never blocking: what the socket has no room for (hundreds of sessions closing at once) waits."""
        if not self.alive:
            return
        data = json.dumps(message).encode()
        if self._unsent or not self._sent(data, fds):
            self._unsent.append((data, [os.dup(fd) for fd in fds]))
            asyncio.get_running_loop().add_writer(self._control, self._flush)

    def _sent(self, data: bytes, fds: list[int]) -> bool:
        try:
            socket.send_fds(self._control, [data], fds)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):  # `_lost` is about to be called
            pass
        return True

    def _flush(self) -> None:
        while self._unsent and self._sent(*self._unsent[0]):
            for fd in self._unsent.popleft()[1]:
                os.close(fd)
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._control)

    async def close(self) -> None:
        """End the zygote and every session, and wait for it."""
        if self.alive:
            self._lost()
        self._control.close()
        try:
            await asyncio.to_thread(self._process.wait, 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


def _make_output(path: str, size: int) -> None:
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.truncate(size)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; a session needs this file for what its code prints") from None


def explain(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "the sandbox process was lost"
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"the Python process was killed by {names.get(-code, f'signal {-code}')}"
    return f"the Python process ended with exit code {code}"
