"""The process every session is forked from: python -m agentic.sandbox.zygote CONTROL_FD PARENT_PID FOLDER LEVEL

It is exec'ed (never forked) by the supervisor, so it holds no gold answers, keys or device state. It stays single-threaded,
preloads what cells use, and then only forks, signals and reaps. Control messages are JSON datagrams (SOCK_SEQPACKET):
  in   {"type": "fork", "session", "folder", "output", "seed", "uid", "limits"} with one file descriptor (the session's socket)
       {"type": "signal", "session", "signal"}
  out  {"type": "ready"}, {"type": "exit", "session", "code"} (negative: the signal that ended it)
It ends, with all sessions, when the control socket closes or its parent dies, and removes FOLDER.
"""

from __future__ import annotations

import builtins
import functools
import gc
import io
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentic.sandbox import child, kernel
from agentic.sandbox.folder import remove_tree
from agentic.sandbox.harden import Preparation, prepare
from agentic.sandbox.limits import Limits
from agentic.sandbox.text import Scrubber

WARM_UP = """
import io
frame = pd.read_csv(io.StringIO("day,shop,sales\\n2024-01-01,a,1\\n2024-01-02,b,2.5"), parse_dates=["day"])
print(frame, frame.dtypes, frame.describe())
print(frame.groupby("shop")["sales"].sum().sort_values(ascending=False).round(2).to_string())
frame.merge(frame, on="shop").pivot_table(index="shop", values="sales_x", aggfunc="mean")
frame[frame["shop"].str.contains("a") & (frame["sales"] > 0)]
"""

SQLITE_STEPS = 100_000
"""Of sqlite's machine, between two looks at the clock: some milliseconds."""

CHINESE_FONTS = (
    "Noto Sans CJK",
    "Noto Sans SC",
    "Source Han Sans",
    "WenQuanYi",
    "Microsoft YaHei",
    "SimHei",
    "SimSun",
    "PingFang",
    "Heiti",
    "Sarasa",
    "LXGW",
    "AR PL",
    "Droid Sans Fallback",
    "Noto Serif CJK",
    "Arial Unicode",
)
"""Beginnings of the names of fonts with Chinese glyphs, best first."""


def chinese_fonts(names: set[str]) -> list[str]:
    """The best one of the fonts called `names`, or nothing.

    >>> chinese_fonts({"SimHei", "Noto Sans CJK JP", "Noto Sans CJK SC", "STIXGeneral"})
    ['Noto Sans CJK SC']
    """
    for start in CHINESE_FONTS:
        found = sorted((name for name in names if name.startswith(start)), key=lambda name: ("SC" not in name, name))
        if found:
            return found[:1]
    return []


def preload() -> None:
    """Import what cells use and run through it once, so that no session pays for it."""
    hooks: list[Callable[[], object]] = []
    register, os.register_at_fork = os.register_at_fork, _collector(hooks)  # type: ignore[assignment]
    import numpy
    import pandas

    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
        numpy.set_printoptions(legacy="1.25")  # a scalar is shown as 6, not as np.int64(6)
    for option, value in {"max_rows": 40, "min_rows": 20, "max_columns": 30, "width": 200, "max_colwidth": 80}.items():
        pandas.set_option(f"display.{option}", value)
    interruptible_sqlite()
    with suppress(ImportError):
        import agentic.sandbox.sql
        import agentic.tables.read  # noqa: F401
    stdout, sys.stdout = sys.stdout, io.StringIO()
    exec(compile(WARM_UP, "<warm-up>", "exec"), {"pd": pandas, "np": numpy})
    with suppress(ImportError):
        import matplotlib.pyplot as pyplot
        from matplotlib import font_manager

        # matplotlib takes each glyph from the first of these fonts that has it.
        names = {font.name for font in font_manager.fontManager.ttflist}
        pyplot.rcParams["font.family"] = ["DejaVu Sans", *chinese_fonts(names)]
        figure = pyplot.figure()
        figure.gca().set_title("warm-up")
        figure.savefig(io.BytesIO())
        pyplot.close("all")
    sys.stdout = stdout
    os.register_at_fork = register  # type: ignore[assignment]
    for hook in hooks:
        hook()
    sys.dont_write_bytecode = True  # what was loaded until here may be kept for the next start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # site's versions also close sys.stdin


def _collector(hooks: list[Callable[[], object]]) -> Callable[..., None]:
    """What modules want done in the child after a fork (matplotlib drops its open fonts) is done once, before any: kernel.fork
    runs no hooks, and every session would pay for them in memory."""

    def register_at_fork(*, after_in_child: Callable[[], object] | None = None, **others: object) -> None:
        if after_in_child is not None:
            hooks.append(after_in_child)

    return register_at_fork


def interruptible_sqlite() -> None:
    """A cell's own sqlite query comes back to Python now and then, where the time limit can end it: else only a kill could."""
    import sqlite3

    plain = sqlite3.connect

    @functools.wraps(plain)
    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = plain(*arguments, **options)
        connection.set_progress_handler(lambda: None, SQLITE_STEPS)
        return connection

    sqlite3.connect = sqlite3.dbapi2.connect = connect  # type: ignore[misc, assignment]


def fill_gaps() -> list[bytes]:
    """Objects in the holes that the imports left in every size of small object. Kept by the zygote, they make sessions
    allocate on pages of their own, together, and not one by one on pages that all share: half a megabyte less each."""
    return [bytes(size) for size in range(1, 480, 16) for _ in range(300)]


class Zygote:
    def __init__(self, control: socket.socket, folder: str, preparation: Preparation) -> None:
        self._control = control
        self._folder = folder
        self._preparation = preparation
        self._sessions: dict[int, str] = {}
        self._pids: dict[str, int] = {}
        self.filling: list[bytes] = []
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        kernel.ignore_stops()  # sessions are stopped after every cell; only their end matters here
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def serve(self) -> None:
        self._send({"type": "ready"})
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not self._stopped:
            for fd, _ in poll.poll():
                if fd == self._wake_read:
                    os.read(self._wake_read, 4096)
                    self._reap()
                else:
                    self._receive()
        self._shut_down()

    def _receive(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        if not data:
            self._stopped = True
            return
        message = json.loads(data)
        if message["type"] == "fork":
            self._fork(message, socket.socket(fileno=fds[0]))
        else:
            pid = self._pids.get(message["session"])
            if pid is not None:
                self._signal(pid, signal.Signals[message["signal"]])

    def _fork(self, message: dict[str, Any], channel: socket.socket) -> None:
        try:
            pid = kernel.fork()
        except OSError:  # too many processes, or no memory
            channel.close()
            self._send({"type": "exit", "session": message["session"], "code": child.FAILED})
            return
        if pid == 0:
            try:
                for number in (signal.SIGCHLD, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._control.close()
                limits = Limits(**message["limits"])
                places = (message["folder"], message["output"], message["seed"], message["uid"])
                child.main(channel, *places, self._preparation, limits)
            except BaseException:
                with suppress(BaseException):
                    traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(child.FAILED)
        channel.close()
        self._sessions[pid] = message["session"]
        self._pids[message["session"]] = pid

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """A signal to the session; SIGKILL goes to its whole process group. `pid` is not reaped yet, so it is not reused."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            if number == signal.SIGKILL:
                os.killpg(pid, number)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            session = self._sessions.pop(ended.si_pid, None)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            self._kill_orphans()
            if session is not None:
                del self._pids[session]
                code = os.waitstatus_to_exitcode(status)
                self._send({"type": "exit", "session": session, "code": code})

    def _kill_orphans(self) -> None:
        """Processes a session left behind are handed to the zygote (it is a subreaper); none outlives its session."""
        path = f"/proc/self/task/{os.getpid()}/children"
        if not os.path.exists(path):
            return
        with open(path) as file:
            for pid in map(int, file.read().split()):
                if pid not in self._sessions:
                    os.kill(pid, signal.SIGKILL)

    def _shut_down(self) -> None:
        for pid in self._sessions:
            self._signal(pid, signal.SIGKILL)
        self._control.close()
        while True:
            try:
                pid, _ = os.wait()
            except ChildProcessError:
                break
            self._sessions.pop(pid, None)
            self._kill_orphans()
        remove_tree(self._folder)

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # the supervisor is gone: the next read says so
            self._control.send(json.dumps(message).encode())


def main() -> None:
    gc.disable()  # nearly all that is imported stays: looking through it again and again is in vain
    control_fd, parent, folder, level = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    if os.getppid() == parent:  # else it died before the line above
        zygote = Zygote(control, folder, prepare(level, folder))
        preload()
        Scrubber(os.path.join(folder, "s0"))
        gc.collect()
        zygote.filling = fill_gaps()
        gc.freeze()
        gc.enable()
        zygote.serve()
    else:
        remove_tree(folder)
    os._exit(0)  # taking a hundred megabytes of objects apart one by one takes as long as a cell


if __name__ == "__main__":
    main()
