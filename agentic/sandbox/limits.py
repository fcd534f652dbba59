"""Limits of one session, and the isolation levels."""

from __future__ import annotations

from dataclasses import dataclass

from agentic.errors import UserError

LEVELS = ("L0", "L1", "L2", "L3")
"""L0: own process, rlimits, no_new_privs, own work folder; stops accidents, not attacks. L1: + seccomp. L2: + Landlock.
L3: + empty network and IPC namespace, own uid."""

HIGHEST = "L0"
"""Highest level this version can enforce."""


@dataclass(frozen=True)
class Limits:
    """What one session may use. Sizes are MiB, times are seconds, texts are characters."""

    soft_s: float = 10.0
    """Wall time of a cell; then it is interrupted and the session keeps its state."""
    grace_s: float = 1.0
    """Time to end after the interrupt; then the process group is killed."""
    start_s: float = 60.0
    """Start of the zygote, and each run of a session's prelude."""
    replay_s: float = 30.0
    """All replayed cells together after a kill; past it the state counts as lost."""
    memory_mb: int = 1024
    """Address space on top of the preloaded interpreter."""
    file_mb: int = 64
    """Size of one written file."""
    open_files: int = 128
    cpu_s: int = 600
    """Processor time of the whole session."""
    stdout_chars: int = 8000
    """Output kept per cell, half from its head and half from its tail."""
    value_chars: int = 4000
    """Length of the shown value of the last expression."""
    figures: int = 3
    """Figures saved per cell."""


def choose_level(level: str) -> str:
    """The level to enforce; "auto" is the highest there is. Raises UserError for an unknown or unavailable level."""
    if level == "auto":
        return HIGHEST
    if level not in LEVELS:
        raise UserError(f"unknown isolation level {level!r}; choose auto or one of {', '.join(LEVELS)}")
    if LEVELS.index(level) > LEVELS.index(HIGHEST):
        raise UserError(f"isolation level {level} is not available here; use {HIGHEST} or auto")
    return level
