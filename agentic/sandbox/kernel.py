"""The few system calls that Python does not wrap, on x86-64 and aarch64 Linux. Constants are those of the kernel's headers."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_CAP_AMBIENT = 4, 8, 22, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 2, 6, 7, 21
SA_NOCLDSTOP = 1
CLONE_NEWIPC, CLONE_NEWNET = 0x08000000, 0x40000000

ARCHITECTURE = platform.machine()
"""x86_64 or aarch64; on anything else no level above L0 is available."""

_CAPGET, _CAPSET = {"x86_64": (125, 126), "aarch64": (90, 91)}.get(ARCHITECTURE, (0, 0))
_CAPABILITY_VERSION = 0x20080522  # two 32-bit words per set
_libc = ctypes.CDLL(None, use_errno=True)
_libc_holding = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock during a call


def fork() -> int:
    """The C library's fork, for a process with one thread: 0 in the child, its id in the parent. Raises OSError.

    os.fork then also runs what modules have registered (new locks, new seeds), which a single-threaded process does not need
    and which writes to 1.4 MB of pages that the child would otherwise go on sharing.
    """
    pid = int(_libc_holding.fork())
    if pid < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return pid


class _SignalAction(ctypes.Structure):
    """struct sigaction of glibc and musl on x86-64 and aarch64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def ignore_stops() -> None:
    """Of SIGCHLD, whose handler stays: children that stop or continue raise it no longer. Raises OSError."""
    action = _SignalAction()
    number = int(signal.SIGCHLD)
    if _libc.sigaction(number, None, ctypes.byref(action)) == 0:
        action.flags |= SA_NOCLDSTOP
        if _libc.sigaction(number, ctypes.byref(action), None) == 0:
            return
    code = ctypes.get_errno()
    raise OSError(code, f"sigaction: {os.strerror(code)}")


def syscall(number: int, *arguments: object) -> int:
    """A raw system call; integers are passed as 64-bit values. Raises OSError."""
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def prctl(option: int, value: int, third: object = 0) -> None:
    """Raises OSError."""
    last = ctypes.c_ulong(third) if isinstance(third, int) else third
    if _libc.prctl(option, ctypes.c_ulong(value), last, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Raises OSError."""
    if _libc.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapWord(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def capabilities() -> int:
    """The permitted set of this process, as a bit mask."""
    words = (_CapWord * 2)()
    syscall(_CAPGET, ctypes.byref(_CapHeader(_CAPABILITY_VERSION, 0)), words)
    return int(words[0].permitted | words[1].permitted << 32)


def keep_capabilities(mask: int) -> None:
    """Give up every capability that is not in `mask`, for good together with no_new_privs."""
    words = (_CapWord * 2)()
    for index in range(2):
        part = mask >> 32 * index & 0xFFFFFFFF
        words[index] = _CapWord(part, part, 0)
    syscall(_CAPSET, ctypes.byref(_CapHeader(_CAPABILITY_VERSION, 0)), words)


def clear_ambient() -> None:
    """No capability survives an exec."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
