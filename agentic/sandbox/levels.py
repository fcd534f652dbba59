"""Which isolation level this machine gives, and why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from agentic.errors import UserError
from agentic.sandbox import landlock, seccomp
from agentic.sandbox.kernel import CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, capabilities
from agentic.sandbox.limits import LEVELS

VARIABLE = "AGENTIC_ISOLATION"
"""Environment variable that names the level which "auto" means."""

LOWEST_BY_DEFAULT = "L2"
"""Below it code can read whatever its user can: gold answers, other sessions, keys. Only taken when asked for by name."""

_TRUNCATE_ABI = 3
"""Landlock before it does not stop code from emptying any file that its user may write."""


@dataclass(frozen=True)
class Feature:
    """One thing that isolation rests on."""

    name: str
    present: bool
    why: str
    remedy: str | None = None
    """How to get it, when it is absent."""


@dataclass(frozen=True)
class Detection:
    level: str
    """Highest level this machine gives to this user."""
    features: tuple[Feature, ...]

    def lacking(self) -> str:
        """What stands in the way of the next level, in one line; empty at the highest."""
        return "; ".join(f"{f.name}: {f.why}" for f in self.features if not f.present)


@cache
def detect() -> Detection:
    """Ask the kernel; nothing about this process changes."""
    filtered = seccomp.available()
    version = landlock.abi()
    held = capabilities() if filtered else 0
    own_uid = filtered and may_change_user() and uid_range() is not None
    namespaces = bool(held >> CAP_SYS_ADMIN & 1)
    files = version >= (1 if own_uid else _TRUNCATE_ABI)
    features = (
        Feature(
            "system call filter",
            filtered,
            "seccomp filters can be installed"
            if filtered
            else "the kernel takes no seccomp filter, or the machine is neither x86-64 nor aarch64",
            None
            if filtered
            else "use Linux 4.14 or later with CONFIG_SECCOMP_FILTER; on macOS or Windows run in Docker",
        ),
        Feature(
            "Landlock",
            files,
            f"ABI {version}"
            + ("" if version else ", not offered by this kernel or hidden by the container")
            + ("" if files or not version else f"; without own user ids ABI {_TRUNCATE_ABI} is needed")
            + ("; signals to other processes are stopped by it" if version >= 6 else ""),
            None
            if files
            else "use Linux 6.2 or later with `landlock` in lsm=, and a container profile that allows its calls (Docker's does)",
        ),
        Feature(
            "own user id per session",
            own_uid,
            "the supervisor may change to other user ids"
            if own_uid
            else "needs root (CAP_SETUID, CAP_SETGID) and mapped user ids",
            None if own_uid else "run as root, for example inside a container",
        ),
        Feature(
            "empty network and IPC namespace",
            namespaces,
            "CAP_SYS_ADMIN is held" if namespaces else "needs CAP_SYS_ADMIN",
            None if namespaces else "run as root with CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN)",
        ),
    )
    level = "L0"
    if filtered:
        level = "L1"
        if files:
            level = "L3" if own_uid and namespaces else "L2"
    return Detection(level, features)


def may_change_user() -> bool:
    """Whether this process may give its children other user ids."""
    held = capabilities()
    return bool(held >> CAP_SETUID & 1 and held >> CAP_SETGID & 1)


def uid_range() -> tuple[int, int] | None:
    """(first, count) of user ids that nobody is likely to have and that this user namespace maps; None: too few."""
    try:
        with open("/proc/self/uid_map") as file:
            extents = [tuple(map(int, line.split())) for line in file]
    except OSError:
        return None
    inside, _, length = max(extents, key=lambda extent: extent[2])
    for first in (1 << 30, 1 << 20, 20_000):
        count = min(inside + length - first, 1 << 24)
        if first >= inside and count >= 1000:
            return first, count
    return None


def choose_level(level: str) -> str:
    """The level to enforce; "auto" is $AGENTIC_ISOLATION or the highest there is.

    Raises UserError for an unknown or unavailable level, and where the highest is below L2 and was not asked for by name.
    """
    if level == "auto":
        level = os.environ.get(VARIABLE) or level
    found = detect()
    if level == "auto":
        if LEVELS.index(found.level) < LEVELS.index(LOWEST_BY_DEFAULT):
            raise UserError(
                f"this machine isolates model-written code at {found.level} only ({found.lacking()}), where it can read what "
                f"you can read; see `agentic sandbox doctor`, or accept that with {VARIABLE}={found.level}"
            )
        return found.level
    if level not in LEVELS:
        raise UserError(f"unknown isolation level {level!r}; choose auto or one of {', '.join(LEVELS)}")
    if LEVELS.index(level) > LEVELS.index(found.level):
        raise UserError(
            f"isolation level {level} is not available here ({found.lacking()}); use {found.level} or auto, and see "
            "`agentic sandbox doctor`"
        )
    return level
