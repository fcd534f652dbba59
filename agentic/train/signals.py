"""Ctrl-C in a training: the first one saves, the second one stops at once."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from agentic.train.launch import say


class Stoppable(Protocol):
    stop_requested: bool


@contextmanager
def stop_on_signal(progress: Stoppable, give_up: Callable[[], bool] | None = None) -> Iterator[None]:
    """Ctrl-C and SIGTERM finish the current step and save; a second one stops at once.

    `give_up` ends what the step waits for, if it may be ended, and says whether it did. Launchers answer Ctrl-C, which
    the trainers got as well, by a SIGTERM to each: one request, not two.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked, owner = math.inf, os.getpid()

    def stop(number: int, frame: Any) -> None:
        nonlocal asked
        if os.getpid() != owner:  # a forked tokenising worker: it ends with its trainer, or when that ends it
            return None if number == signal.SIGINT else os._exit(1)
        if time.monotonic() - asked > 2:
            raise KeyboardInterrupt
        if progress.stop_requested:
            return None
        asked = time.monotonic()
        progress.stop_requested = True
        given_up = give_up is not None and give_up()
        say("stopping: the rollouts are given up" if given_up else "stopping after this step (again to stop at once)")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
