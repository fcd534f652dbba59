"""Runs one cell in a session's namespace, with the habits of a notebook.

SystemExit: a code of None or 0 ends the cell early and counts as ok; any other code is an error. State is kept.
"""

from __future__ import annotations

import ast
import builtins
import faulthandler
import io
import linecache
import os
import re
import resource
import signal
import sys
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TextIO

from agentic.sandbox.guard import is_refusal
from agentic.sandbox.limits import Limits
from agentic.sandbox.text import OutputRing, RingWriter, Scrubber, cut

MESSAGE_CHARS = 2000
SHOWN_ITEMS = 1000
SHOWN_WARNINGS = 5
GLYPH_WARNING = "UserWarning: some characters are not drawn: this machine has no font for them"
LISTED_FILES = 50
SCANNED_FILES = 2000
SCANNED_DEPTH = 10


UNREADABLE = "(the exception has no readable message)"

Outcome = tuple[str, str | None, dict[str, Any] | None, list[str]]
"""Status, shown value, error, figures."""

_BUILTINS = dict(vars(builtins))
_RECURSION_LIMIT = sys.getrecursionlimit()


def _clear_away() -> None:
    """Undo what would break the next cell: replaced built-in functions, blocked signals, timers that end the process."""
    vars(builtins).update(_BUILTINS)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    faulthandler.cancel_dump_traceback_later()
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)


class Interpreter:
    """One persistent namespace and what surrounds it. Lives in the session process."""

    def __init__(self, folder: str, ring: OutputRing, limits: Limits, confined: bool) -> None:
        """`confined`: a refused operation is the sandbox's doing, and its result says blocked."""
        self._folder = folder
        self._confined = confined
        self._ring = ring
        self._limits = limits
        self._scrub = Scrubber(folder)
        self._cells = 0
        self._running = False
        self._interrupted = False
        self._warnings = 0
        self._glyphs_missed = False
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module  # dataclasses and pickle look classes up here
        self._namespace = module.__dict__
        for short, name in (("pd", "pandas"), ("np", "numpy")):
            self._namespace[short] = sys.modules[name]
        self._figures = FigureKeeper(folder, limits.figures)
        self._files = dict(_scan(folder))
        self._handle_interrupts()
        warnings.showwarning = self._show_warning  # type: ignore[assignment]

    def forget(self, names: list[str]) -> None:
        for name in names:
            self._namespace.pop(name, None)

    def run(self, code: str) -> dict[str, Any]:
        """Run `code`. Returns the fields of an execution result that the session knows (worker.CellReply)."""
        self._cells += 1
        self._warnings = 0
        self._glyphs_missed = False
        self._interrupted = False
        self._ring.reset()
        self._handle_interrupts()  # again for every cell: code may have replaced it
        stdout = self._open_stdout()
        name = f"<cell {self._cells}>"
        started = time.process_time()
        outcome: Outcome = ("error", None, {"type": "Exception", "message": UNREADABLE, "line": None}, [])
        # The code's own exceptions end in _attempt; what gets out is one whose methods raise, or the time limit come meanwhile.
        with suppress(BaseException):
            try:
                self._running = True
                outcome = self._attempt(code, name)
            finally:
                self._running = False
        sys.setrecursionlimit(_RECURSION_LIMIT)  # here: a low one could forbid the call
        _clear_away()
        status, value, error, figures = outcome
        if self._interrupted:  # also when the code swallowed the interrupt: its time was over
            line = error["line"] if error else None
            status, value, error = "timeout", None, {"type": "TimeoutError", "message": "time limit", "line": line}
        with suppress(ValueError):  # the code closed it
            stdout.flush()
        printed, dropped = self._ring.read()
        return {
            "status": status,
            "stdout": self._scrub(printed),
            "dropped_chars": dropped,
            "value": None if value is None else self._scrub(value),
            "error": error,
            "figures": figures,
            "files_changed": self._changed_files(figures),
            "cpu_ms": (time.process_time() - started) * 1000,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }

    def _attempt(self, code: str, name: str) -> Outcome:
        """Whatever belongs to the code runs in here, its exceptions' own methods included, and can be interrupted."""
        try:
            try:
                value = self._run(code, name)
                return "ok", value, None, self._figures.save()
            finally:
                self._figures.forget()
        except MemoryError as exception:
            error = self._describe(exception, name)
            error["message"] = error["message"] or f"the cell needed more than {self._limits.memory_mb} MiB"
            return "memory", None, error, []
        except SystemExit as exception:
            if exception.code is None or (type(exception.code) is int and exception.code == 0):
                return "ok", None, None, []
            return "error", None, self._describe(exception, name), []
        except BaseException as exception:
            error = self._describe(exception, name)
            return "blocked" if self._confined and is_refusal(exception) else "error", None, error, []

    def _open_stdout(self) -> TextIO:
        """A new one for every cell: code may have closed or replaced the last."""
        raw = RingWriter(self._ring)
        stdout = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", line_buffering=True)  # type: ignore[type-var]
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = stdout  # type: ignore[misc, assignment]
        return stdout

    def _run(self, code: str, name: str) -> str | None:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "\d" in a plain string is no news to the model
            tree = ast.parse(code, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            body = compile(tree, name, "exec", dont_inherit=True)
            tail = compile(ast.Expression(last.value), name, "eval", dont_inherit=True) if last else None  # type: ignore[attr-defined]
        exec(body, self._namespace)
        if tail is None:
            return None
        value = eval(tail, self._namespace)
        if value is None or code.rstrip().endswith(";") or _is_drawing(value):
            return None
        self._namespace["_"] = value
        return cut(show(value, self._limits.value_chars), self._limits.value_chars)[0]

    def _handle_interrupts(self) -> None:
        for number in (signal.SIGINT, signal.SIGUSR2):  # the supervisor sends the second when the first has no effect
            signal.signal(number, self._interrupt)

    def _interrupt(self, signum: int, frame: object) -> None:
        if self._running:  # between cells there is nothing to interrupt
            self._interrupted = True
            raise KeyboardInterrupt

    def _show_warning(self, message: Warning | str, category: type[Warning], *place: object) -> None:
        text = f"{category.__name__}: {message}"
        if re.match(r"UserWarning: Glyph \d+ .* missing from font", text):
            if self._glyphs_missed:
                return  # matplotlib says it for every character
            self._glyphs_missed, text = True, GLYPH_WARNING
        self._warnings += 1
        if self._warnings <= SHOWN_WARNINGS:
            print(text)
        elif self._warnings == SHOWN_WARNINGS + 1:
            print("(more warnings not shown)")

    def _describe(self, exception: BaseException, name: str) -> dict[str, Any]:
        """Type, message and the deepest line of this cell that was running."""
        line = None
        trace = exception.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == name:
                line = trace.tb_lineno
            trace = trace.tb_next
        if isinstance(exception, SyntaxError) and exception.filename == name:
            line, message = exception.lineno, exception.msg
        else:
            try:
                message = str(exception)
            except Exception:
                message = UNREADABLE
        exception.__traceback__ = None  # frees the frames, and with them what a MemoryError left behind
        message = cut(self._scrub(message), MESSAGE_CHARS)[0]
        return {"type": type(exception).__name__[:200], "message": message, "line": line}

    def _changed_files(self, figures: list[str]) -> list[str]:
        before, self._files = self._files, dict(_scan(self._folder))
        changed = [path for path, stamp in self._files.items() if before.get(path) != stamp and path not in figures]
        return sorted(changed)[:LISTED_FILES]


def show(value: Any, limit: int) -> str:
    """repr as a notebook shows it, without building the whole repr of a huge string or container.

    >>> show([1, "a"], 100)
    "[1, 'a']"
    """
    kind = type(value)
    if kind in (str, bytes) and len(value) > 2 * limit:
        half = limit // 2
        return f"{value[:half]!r} ... {value[-half:]!r} ({len(value)} long)"
    if kind in (list, tuple, set, frozenset, dict) and len(value) > SHOWN_ITEMS:
        first = kind(islice(value.items() if kind is dict else value, SHOWN_ITEMS))
        return f"{first!r} ... ({len(value)} items)"
    return repr(value)


def _is_drawing(value: object) -> bool:
    """True for what plotting calls return: the figure is shown, its objects say nothing."""
    if type(value).__module__.partition(".")[0] == "matplotlib":
        return True
    if type(value).__name__ == "ndarray" and str(getattr(value, "dtype", "")) == "object":
        return any(_is_drawing(item) for item in islice(value.flat, 10))  # type: ignore[attr-defined]
    return isinstance(value, list | tuple) and any(_is_drawing(item) for item in islice(value, 10))


class FigureKeeper:
    """Saves the figures a cell leaves open and closes them; one that the code saved itself is not saved again."""

    def __init__(self, folder: str, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._count = 0
        self._own: dict[int, str] = {}
        if "matplotlib.pyplot" in sys.modules:
            self._wrap_savefig()

    def _wrap_savefig(self) -> None:
        figure_type = sys.modules["matplotlib.figure"].Figure
        self._savefig, own, folder = figure_type.savefig, self._own, self._folder
        original = self._savefig

        def savefig(figure: Any, fname: Any, *args: Any, **options: Any) -> None:
            original(figure, fname, *args, **options)
            if isinstance(fname, str | os.PathLike):
                own[id(figure)] = os.path.relpath(os.fspath(fname), folder)

        figure_type.savefig = savefig
        figure_type.show = lambda *args, **options: None
        vars(sys.modules["matplotlib.pyplot"])["show"] = figure_type.show

    def save(self) -> list[str]:
        """Names of this cell's PNG files in the work folder, at most `limit`."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return []
        names = [name for name in self._own.values() if re.fullmatch(r"[\w.-]+\.png", name)][: self._limit]
        opened = [pyplot.figure(number) for number in pyplot.get_fignums()]
        drawn = [figure for figure in opened if figure.axes and id(figure) not in self._own]
        room = self._limit - len(names)
        for figure in drawn[:room]:
            self._count += 1
            name = f"figure_{self._count}.png"
            self._savefig(figure, os.path.join(self._folder, name))
            names.append(name)
        if len(drawn) > room:
            print(f"({len(drawn) - room} more figures not saved: at most {self._limit} per cell)")
        return names

    def forget(self) -> None:
        """Close every figure, so that none reaches the next cell."""
        self._own.clear()
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and pyplot.get_fignums():
            pyplot.close("all")


def _scan(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Files below `folder` as (relative path, (modified ns, size)), at most SCANNED_FILES of them."""
    return islice(_walk(folder, "", 1), SCANNED_FILES)


def _walk(folder: str, prefix: str, depth: int) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # removed or made unreadable by the code
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth < SCANNED_DEPTH:
                yield from _walk(entry.path, f"{prefix}{entry.name}/", depth + 1)
        elif entry.is_file(follow_symlinks=False):
            stat = entry.stat(follow_symlinks=False)
            yield prefix + entry.name, (stat.st_mtime_ns, stat.st_size)
