"""The session process: gives up what it does not need, then reads cells and answers them until its socket closes."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from mmap import mmap
from typing import Any, NoReturn

from agentic.sandbox.cell import Interpreter
from agentic.sandbox.limits import Limits
from agentic.sandbox.protocol import FrameDecoder, encode
from agentic.sandbox.text import OutputRing

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
FAILED = 70
"""Exit code of a session that could not be set up."""

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def main(channel: socket.socket, folder: str, output: str, seed: str, level: str, limits: Limits) -> NoReturn:
    """Runs in the forked child and never returns. `output` is the file behind the output buffer."""
    ring = OutputRing(_map(output, OutputRing.size(limits.stdout_chars)), limits.stdout_chars)
    _harden(folder, limits)
    _reseed(seed)
    _serve(channel, Interpreter(folder, ring, limits), level)


def _map(path: str, size: int) -> mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, size)
    shared = mmap(fd, size)
    os.close(fd)
    return shared


def _harden(folder: str, limits: Limits) -> None:
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile.tempdir = None
    sys.path.append(folder)
    mib = 1 << 20
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, size + limits.memory_mb * mib)
    _lower(resource.RLIMIT_FSIZE, limits.file_mb * mib)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_CPU, limits.cpu_s)
    _lower(resource.RLIMIT_CORE, 0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # /proc may be mounted read-only
        file.write("1000")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    null = os.open(os.devnull, os.O_RDWR)  # last: until here a failure is reported in the zygote's log
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def _reseed(seed: str) -> None:
    """Every session starts from its own seed, and the same one again when it is restored."""
    import numpy

    random.seed(seed)
    numpy.random.seed(random.getrandbits(32))
    random.seed(seed)


def _serve(channel: socket.socket, interpreter: Interpreter, level: str) -> NoReturn:
    decoder = FrameDecoder()
    channel.sendall(encode({"type": "hello", "level": level}))
    while data := channel.recv(1 << 16):
        for request in decoder.feed(data):
            reply: dict[str, Any] = {"type": "result", "id": request["id"]}
            channel.sendall(encode(reply | interpreter.run(request["code"])))
    os._exit(0)
