"""One progress line for work that takes long: a bar on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 30.0
"""Seconds between two plain lines."""


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield report(done, total). Shows rate and remaining time on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    started = said = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            nonlocal said
            bar.update(task, completed=done, total=total)
            now = time.monotonic()
            if not console.is_terminal and done and now - said >= EVERY_S:
                said = now
                rate = done / (now - started)
                left = (total - done) / rate / 60
                print(f"{what}: {done} of {total}, {rate:.0f}/s, {left:.1f} min left", file=sys.stderr, flush=True)

        yield report
