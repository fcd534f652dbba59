"""Limits of one session, and the isolation levels."""

from __future__ import annotations

from dataclasses import dataclass

MEANING = {
    "L0": "own process, resource limits, own work folder: stops accidents, not attacks",
    "L1": "L0 and no network, no other programs, no capabilities; files are open to it",
    "L2": "L1 and no files but the session's own",
    "L3": "L2 and an own user id and an empty network namespace per session",
}
"""What each isolation level gives, in words; docs/sandbox.md says what each is made of."""

LEVELS = tuple(MEANING)


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
    sessions_mb: int | None = None
    """All sessions of a sandbox together; None: 70 % of what is free at its start. More sessions wait until others end."""
    file_mb: int = 64
    """Size of one written file."""
    folder_mb: int = 256
    """Space of the work folder, files that are open and deleted included; measured while cells run."""
    folder_files: int = 10_000
    """Files and folders in the work folder."""
    open_files: int = 128
    threads: int = 64
    """Threads of the session; counted where it has its own uid."""
    cpu_s: int = 600
    """Processor time of the whole session."""
    stdout_chars: int = 8000
    """Output kept per cell, half from its head and half from its tail."""
    value_chars: int = 4000
    """Length of the shown value of the last expression."""
    figures: int = 3
    """Figures saved per cell."""
