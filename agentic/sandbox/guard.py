"""Clear messages for what the kernel refuses: `os.system` would return 32512, a download an error deep in urllib.

Only words: code that takes this apart meets the system call filter, which says the same less clearly.
"""

from __future__ import annotations

import errno
import socket
import sys

NETWORK = "network is disabled in the sandbox"
PROGRAMS = "starting programs is disabled in the sandbox"

_EVENTS = {
    **dict.fromkeys(
        ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.connect", "socket.bind"), NETWORK
    ),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"), PROGRAMS),
}


def install() -> None:
    """Raise PermissionError with a plain sentence at Python's own audit events (PEP 578)."""
    reasons = _EVENTS

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event == "sys.addaudithook":
            raise RuntimeError  # the new hook is left out, silently: it could forbid everything, and nothing removes one
        reason = reasons.get(event)
        if reason is None and event == "socket.__new__" and arguments[1] not in (socket.AF_UNIX, -1):
            reason = NETWORK
        if reason is not None:
            raise PermissionError(errno.EPERM, reason)

    sys.addaudithook(refuse)


def is_refusal(exception: BaseException | None) -> bool:
    """Whether the sandbox refused something at the root of `exception`, however libraries wrapped it."""
    seen: set[int] = set()
    waiting: list[object] = [exception]
    while waiting and len(seen) < 50:
        one = waiting.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError) and one.errno in (errno.EPERM, errno.EACCES):
            return True
        waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return False
