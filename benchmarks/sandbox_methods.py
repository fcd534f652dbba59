"""The ways to run an agent's cells that benchmarks/sandbox.py compares, behind one interface.

Most frameworks for agents use one of these. What each keeps between two cells is its `keeps`: a process, objects in this
process, or nothing (every call then runs the cells before it again).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import inspect
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

from agentic.sandbox import Limits, Sandbox, kernel
from agentic.sandbox.levels import detect
from agentic.sandbox.limits import LEVELS
from agentic.sandbox_commands import TYPICAL_CELL

CALL_S = 120
"""No measured call takes this long; past it the benchmark stops with an error."""


def replay(cells: list[str]) -> str:
    """Run all cells in a new namespace; the output of the last one."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    text = ""
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(cell, namespace)
        text = output.getvalue()
    return text


FRESH = (
    "import contextlib, io, json, sys\n"
    + inspect.getsource(replay)
    + "\nsys.stdout.write(replay(json.load(sys.stdin)))"
)
"""Program of a fresh interpreter: a JSON list of cells on stdin, the output of the last on stdout."""


class Session:
    """State of one trajectory. `run` may block the event loop: it is alone; `run_beside` may not."""

    async def run(self, code: str) -> str:
        """What the cell printed. Raises when it failed."""
        raise NotImplementedError

    async def run_beside(self, code: str) -> str:
        return await self.run(code)

    async def close(self) -> None:
        pass


class BlockingSession(Session):
    """Around a function that blocks."""

    def __init__(self, call: Callable[[str], str]) -> None:
        self._call = call

    async def run(self, code: str) -> str:
        return self._call(code)

    async def run_beside(self, code: str) -> str:
        return await asyncio.to_thread(self._call, code)


class Method:
    """How sessions are made. `open` once, then any number of `start`, then `close`."""

    name: str
    keeps: ClassVar[Literal["process", "objects", "nothing"]]
    slow: ClassVar[bool] = False
    """Takes a second or more a trajectory: measured less often."""

    def unavailable(self) -> str | None:
        """Why it cannot be measured here, with the remedy."""
        return None

    async def open(self, folder: Path) -> None:
        """`folder` holds sales.csv and is the working directory of this process."""

    async def start(self) -> Session:
        raise NotImplementedError

    async def close(self) -> None:
        pass

    def shared(self) -> list[int]:
        """Processes that all sessions rest on."""
        return []

    def pids(self) -> list[int]:
        """Processes of the live sessions."""
        return []


# --------------------------------------------------------------------------------------------------- ours


class OurSession(Session):
    def __init__(self, session: Any) -> None:
        self._session = session

    async def run(self, code: str) -> str:
        result = await self._session.run(code)
        if result.status != "ok":
            raise RuntimeError(f"{result.status}: {result.error}")
        return str(result.stdout)

    async def close(self) -> None:
        await self._session.close()


class Ours(Method):
    """agentic.sandbox at one level."""

    keeps = "process"

    def __init__(self, level: str) -> None:
        self.name = f"agentic {level}"
        self.level = level

    def unavailable(self) -> str | None:
        found = detect()
        if LEVELS.index(self.level) <= LEVELS.index(found.level):
            return None
        return f"not given by this machine: {found.lacking()}"

    async def open(self, folder: Path) -> None:
        self._files = {"sales.csv": folder / "sales.csv"}
        self._sandbox = Sandbox(self.level, Limits())
        await self._sandbox.__aenter__()

    async def start(self) -> Session:
        return OurSession(await self._sandbox.session(self._files))

    async def close(self) -> None:
        await self._sandbox.close()

    def shared(self) -> list[int]:
        return self._sandbox.pids()[:1]

    def pids(self) -> list[int]:
        return self._sandbox.pids()[1:]


# -------------------------------------------------------------------------------------- a process is kept


class KernelSession(Session):
    def __init__(self, manager: Any, client: Any, ended: Callable[[], None]) -> None:
        self._manager = manager
        self._client = client
        self._ended = ended

    async def run(self, code: str) -> str:
        printed: list[str] = []

        def keep(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = await self._client.execute_interactive(code, allow_stdin=False, output_hook=keep, timeout=CALL_S)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(reply["content"])
        return "".join(printed)

    async def close(self) -> None:
        self._client.stop_channels()
        await self._manager.shutdown_kernel(now=True)
        self._ended()


class IpyKernel(Method):
    """One Jupyter kernel per trajectory, as most notebook agents do."""

    name = "ipykernel"
    keeps = "process"
    slow = True

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("ipykernel") and importlib.util.find_spec("jupyter_client"):
            return None
        return "not installed: pip install ipykernel jupyter_client"

    async def open(self, folder: Path) -> None:
        os.environ.update(IPYTHONDIR=str(folder / "ipython"), JUPYTER_RUNTIME_DIR=str(folder / "jupyter"))
        self._folder = folder
        self._pids: list[int] = []

    async def start(self) -> Session:
        from jupyter_client import AsyncKernelManager

        manager = AsyncKernelManager()
        await manager.start_kernel(cwd=str(self._folder), stderr=subprocess.DEVNULL)  # warns about TCP
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=CALL_S)
        pid = int(manager.provisioner.pid)
        self._pids.append(pid)
        return KernelSession(manager, client, lambda: self._pids.remove(pid))

    def pids(self) -> list[int]:
        return list(self._pids)


# ------------------------------------------------------------------------------ kept inside this process


class Smolagents(Method):
    """smolagents' interpreter of syntax trees, in this process; not a security boundary by its own documentation."""

    name = "smolagents local"
    keeps = "objects"

    def unavailable(self) -> str | None:
        return None if importlib.util.find_spec("smolagents") else "not installed: pip install smolagents"

    async def open(self, folder: Path) -> None:
        import smolagents.local_python_executor  # noqa: F401  # its import is no part of a session's start

    async def start(self) -> Session:
        from smolagents.local_python_executor import LocalPythonExecutor

        executor = LocalPythonExecutor(additional_authorized_imports=["pandas"])
        executor.send_tools({})
        return BlockingSession(lambda code: str(executor(code).logs))

    def shared(self) -> list[int]:
        return [os.getpid()]


# ---------------------------------------------------------------------------------- nothing is kept


class Replaying(Method):
    """Runs all cells so far in a new process for every call."""

    keeps = "nothing"

    def call(self, cells: list[str]) -> str:
        raise NotImplementedError

    async def start(self) -> Session:
        cells: list[str] = []

        def run(code: str) -> str:
            cells.append(code)
            return self.call(cells)

        return BlockingSession(run)


class FreshPython(Replaying):
    name = "fresh python + replay"
    slow = True
    command: ClassVar[list[str]] = [sys.executable, "-c", FRESH]

    def call(self, cells: list[str]) -> str:
        done = subprocess.run(self.command, input=json.dumps(cells), capture_output=True, text=True, timeout=CALL_S)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-1000:])
        return done.stdout


class Bubblewrap(FreshPython):
    """The same in new namespaces with a read-only view of the machine."""

    name = "bubblewrap + python + replay"
    box: ClassVar[list[str]] = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/"]
    box_end: ClassVar[list[str]] = ["--dev", "/dev", "--proc", "/proc"]
    command: ClassVar[list[str]] = [*box, *box_end, *FreshPython.command]

    def unavailable(self) -> str | None:
        if not shutil.which("bwrap"):
            return "not installed: apt-get install bubblewrap"
        tried = subprocess.run([*self.box, *self.box_end, "true"], capture_output=True, text=True)
        return None if tried.returncode == 0 else f"does not run here: {tried.stderr.strip()}"


def serve(path: str, kind: str) -> None:
    """A small parent with pandas loaded and warm that forks for every connection: os.fork or multiprocessing.Process.

    A process of its own: the benchmark's is large by then, and a fork of it would be slower than it has to be.
    """
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    replay([TYPICAL_CELL])
    gc.collect()
    gc.freeze()
    context = multiprocessing.get_context("fork")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL if kind == "process" else signal.SIG_IGN
    )  # ignored: reaped by the kernel
    while True:
        channel = listener.accept()[0]
        if kind == "process":
            context.Process(target=_answer, args=(channel,), daemon=True).start()  # joins those that have ended
        elif os.fork() == 0:
            try:
                _answer(channel)
            finally:
                os._exit(0)
        channel.close()


def _answer(channel: socket.socket) -> None:
    with channel, channel.makefile("rb") as stream:
        channel.sendall(replay(json.loads(stream.read())).encode())


class ForkPerCall(Replaying):
    """A fork of a parent that has pandas loaded, for every call."""

    name = "fork per call + replay"
    kind: ClassVar[str] = "fork"

    async def open(self, folder: Path) -> None:
        self._path = str(folder / f"{self.kind}.socket")
        command = [sys.executable, __file__, self._path, self.kind]
        self._parent = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._parent.stdout is not None
        if self._parent.stdout.readline() != b"ready\n":
            raise RuntimeError("the parent of the forks did not start")

    def call(self, cells: list[str]) -> str:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(CALL_S)
            channel.connect(self._path)
            channel.sendall(json.dumps(cells).encode())
            channel.shutdown(socket.SHUT_WR)
            with channel.makefile("rb") as stream:
                text = stream.read().decode()
        return text

    async def close(self) -> None:
        self._parent.kill()
        self._parent.communicate()

    def shared(self) -> list[int]:
        return [self._parent.pid]


class ProcessPerCall(ForkPerCall):
    """One multiprocessing.Process (started by fork) for every call."""

    name = "multiprocessing + replay"
    kind = "process"


def all_methods() -> list[Method]:
    others = [Smolagents(), ForkPerCall(), ProcessPerCall(), IpyKernel(), FreshPython(), Bubblewrap()]
    return [*map(Ours, LEVELS), *others]


if __name__ == "__main__":
    serve(*sys.argv[1:])
