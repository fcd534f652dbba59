"""The session process: gives up what it does not need, then reads cells and answers them until its socket closes."""

from __future__ import annotations

import os
import random
import socket
import sys
import tempfile
from mmap import mmap
from typing import Any, NoReturn

from agentic.sandbox import guard
from agentic.sandbox.cell import Interpreter
from agentic.sandbox.harden import Preparation, confine
from agentic.sandbox.limits import Limits
from agentic.sandbox.protocol import FrameDecoder, encode
from agentic.sandbox.text import OutputRing

FAILED = 70
"""Exit code of a session that could not be set up."""


def main(
    channel: socket.socket,
    folder: str,
    output: str,
    seed: str,
    uid: int | None,
    preparation: Preparation,
    limits: Limits,
) -> NoReturn:
    """Runs in the forked child and never returns. `output` is the file behind the output buffer. It was made by the
    supervisor, which also removes it: a child must not bring it back after that."""
    try:
        ring = OutputRing(_map(output, OutputRing.size(limits.stdout_chars)), limits.stdout_chars)
    except FileNotFoundError:  # the session was given up before it began
        os._exit(FAILED)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile.tempdir = None
    sys.path.append(folder)
    _reseed(seed)
    confine(preparation, folder, uid, limits, channel.fileno())
    confined = preparation.level != "L0"
    if confined:
        guard.install()
    _serve(channel, Interpreter(folder, ring, limits, confined), preparation.level)


def _map(path: str, size: int) -> mmap:
    fd = os.open(path, os.O_RDWR)
    shared = mmap(fd, size)
    os.close(fd)
    return shared


def _reseed(seed: str) -> None:
    """Every session starts from its own seed, and the same one again when it is restored."""
    import numpy

    random.seed(seed)
    numpy.random.seed(random.getrandbits(32))
    random.seed(seed)


def _serve(channel: socket.socket, interpreter: Interpreter, level: str) -> NoReturn:
    decoder = FrameDecoder()
    channel.sendall(encode({"type": "hello", "level": level, "pid": os.getpid()}))
    while data := channel.recv(1 << 16):
        for request in decoder.feed(data):
            reply: dict[str, Any] = {"type": "result", "id": request["id"]}
            interpreter.forget(request["forgotten"])
            channel.sendall(encode(reply | interpreter.run(request["code"])))
    os._exit(0)
