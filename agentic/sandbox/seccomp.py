"""The system call filter of a session: a classic BPF program (kernel documentation, userspace-api/seccomp_filter)."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence
from itertools import groupby

from agentic.sandbox.kernel import ARCHITECTURE, PR_SET_SECCOMP, prctl
from agentic.sandbox.syscalls import ALLOWED, DENIED, FILTERED, IGNORED, numbers

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
"""LD|W|ABS, JMP|JEQ|K, JMP|JGE|K, ALU|AND|K, RET|K."""
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data; argument n is at 16 + 8n, low word first on both machines
_MODE_FILTER = 2

_CLONE_NAMESPACES = 0x7E020080
_CLONE_PTHREAD = 0x00050F00
"""VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: a thread that shares everything, as pthread_create makes it. One with descriptors
of its own would hide deleted files from the folder's quota."""
_AF_UNIX, _STREAM, _SOCKET_TYPE = 1, 1, 0xF
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS2."""
_SIGNALLING_FCNTLS = (8, 10, 15, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, F_NOTIFY: each makes the kernel send signals, to any process of the same user."""
_PRCTLS = (3, 15, 16, 21, 23, 39, 0x53564D41)
"""GET_DUMPABLE, SET_NAME, GET_NAME, GET_SECCOMP, CAPBSET_READ, GET_NO_NEW_PRIVS, SET_VMA."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


_YES: Instruction = (_RETURN, 0, 0, _ALLOW)
_NO = _refuse(errno.EPERM)


def _argument(index: int) -> Instruction:
    """Load the low word of an argument; the calls below read no more of it."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _one_of(index: int, values: Sequence[int], then: Instruction, otherwise: Instruction) -> list[Instruction]:
    body = [_argument(index)]
    for value in values:
        body += [(_EQUAL, 0, 1, value), then]
    return [*body, otherwise]


def _filtered(pid: int) -> dict[str, list[Instruction]]:
    """Bodies of the calls whose arguments decide. Each ends in a return."""
    own = [0, pid]
    return {
        # A thread, and no new namespace. A process would leave the reach of limits and of the kill.
        "clone": [
            _argument(0),
            (_AND, 0, 0, _CLONE_PTHREAD | _CLONE_NAMESPACES),
            (_EQUAL, 0, 1, _CLONE_PTHREAD),
            _YES,
            _NO,
        ],
        "clone3": [
            _refuse(errno.ENOSYS)
        ],  # its flags lie in memory, out of the filter's sight; libc falls back to clone
        "kill": _one_of(0, [pid], _YES, _NO),
        "tgkill": _one_of(0, [pid], _YES, _NO),
        "prlimit64": _one_of(0, own, _YES, _NO),
        "sched_setaffinity": _one_of(0, own, _YES, _NO),
        "prctl": _one_of(0, _PRCTLS, _YES, _NO),
        "ioctl": _one_of(1, _IOCTLS, _YES, _refuse(errno.ENOTTY)),
        "fcntl": _one_of(1, _SIGNALLING_FCNTLS, _NO, _YES),
        # asyncio wakes itself through one. A datagram socket could send to any socket file on the host.
        "socketpair": [
            _argument(0),
            (_EQUAL, 1, 0, _AF_UNIX),
            _NO,
            _argument(1),
            (_AND, 0, 0, _SOCKET_TYPE),
            (_EQUAL, 0, 1, _STREAM),
            _YES,
            _NO,
        ],
        "fallocate": _one_of(1, [0], _YES, _refuse(errno.EOPNOTSUPP)),  # other modes reserve past the file size limit
    }


def build(pid: int, architecture: str = ARCHITECTURE) -> list[Instruction]:
    """The program for process `pid`, the only one it may signal."""
    calls: dict[int, list[Instruction]] = {}
    for table, answer in ((ALLOWED, _YES), (IGNORED, _refuse(0)), (DENIED, _NO)):
        calls |= {number: [answer] for number in numbers(table, architecture).values()}
    calls |= {number: _filtered(pid)[name] for name, number in numbers(FILTERED, architecture).items()}
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[architecture]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    # Neighbours with one answer share a test (a number at or past the run's end goes on to the next): half the
    # length, and the kernel, which tries every number when a filter is installed, takes it in half the time.
    unknown = [_refuse(errno.ENOSYS)]
    for body, run in groupby(range(max(calls) + 1), key=lambda number: calls.get(number, unknown)):
        program += [(_AT_LEAST, len(body), 0, max(run) + 1), *body]
    return [*program, *unknown]


def assemble(program: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


_ANY_PID = 0x5EED1E57


class Template:
    """The program with a gap for the process id: building it in every child would cost it half a megabyte of memory."""

    def __init__(self) -> None:
        self._code = assemble(build(_ANY_PID))

    def for_process(self, pid: int) -> bytes:
        return self._code.replace(struct.pack("=I", _ANY_PID), struct.pack("=I", pid))


def install(code: bytes) -> None:
    """Put the filter on this process for good. Raises OSError; no_new_privs has to be set."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    prctl(PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program))


def available() -> bool:
    """Whether this kernel takes filters: a null program is refused as a bad address, not as an unknown request."""
    if ARCHITECTURE not in _AUDIT_ARCH:
        return False
    try:
        prctl(PR_SET_SECCOMP, _MODE_FILTER, 0)
    except OSError as error:
        return error.errno == errno.EFAULT
    return False
