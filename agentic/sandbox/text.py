"""Bounded text: head-and-tail cutting, the output buffer that outlives a killed process, host paths out of messages."""

from __future__ import annotations

import io
import mmap
import re
import struct
import sys
import sysconfig
from functools import cache
from pathlib import Path

_TOTALS = struct.Struct("<QQ")  # bytes written, characters written


def cut(text: str, limit: int) -> tuple[str, int]:
    """Keep at most `limit` characters, half from each end. Returns the text with a note in the gap, and how many were dropped."""
    if len(text) <= limit:
        return text, 0
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    return _join(head, tail, len(text) - limit)


def _join(head: str, tail: str, dropped: int) -> tuple[str, int]:
    return f"{head}\n... [{dropped} characters dropped] ...\n{tail}", dropped


class OutputRing:
    """The first and the last bytes of a stream, in a buffer of fixed size.

    The buffer is a shared file mapping in the session, so that the supervisor reads what was printed even after a
    SIGKILL. It is hostile when read there: nothing in it is trusted beyond its length.
    Layout: two unsigned 64-bit totals (bytes, characters), `half` bytes of head, `half` bytes of tail ring.
    """

    def __init__(self, buffer: mmap.mmap | bytearray, limit: int) -> None:
        """`limit` is in characters; the buffer holds size(limit) bytes."""
        self.buffer = buffer
        self.limit = limit
        self._half = _half(limit)
        self._bytes, self._chars = _TOTALS.unpack(buffer[: _TOTALS.size])

    @staticmethod
    def size(limit: int) -> int:
        return _TOTALS.size + 2 * _half(limit)

    def reset(self) -> None:
        self._bytes = self._chars = 0
        self.buffer[: _TOTALS.size] = _TOTALS.pack(0, 0)

    def write(self, data: bytes) -> None:
        half, start = self._half, _TOTALS.size
        first = data[: max(half - self._bytes, 0)]
        if first:
            self.buffer[start + self._bytes : start + self._bytes + len(first)] = first
        if len(first) < len(data):
            last = data[len(first) :][-half:]
            at = (self._bytes + len(data) - len(last) - half) % half
            before, after = last[: half - at], last[half - at :]
            self.buffer[start + half + at : start + half + at + len(before)] = before
            self.buffer[start + half : start + half + len(after)] = after
        self._bytes += len(data)
        self._chars += len(data) if data.isascii() else len(data.decode("utf-8", "replace"))
        self.buffer[:start] = _TOTALS.pack(self._bytes, self._chars)

    def read(self) -> tuple[str, int]:
        """The text kept (cut to `limit` characters) and the number of characters dropped."""
        half, start, total = self._half, _TOTALS.size, self._bytes
        head = bytes(self.buffer[start : start + min(total, half)])
        ring = bytes(self.buffer[start + half : start + 2 * half])
        if total <= 2 * half:
            return cut((head + ring[: max(total - half, 0)]).decode("utf-8", "replace"), self.limit)
        at = (total - half) % half
        first = head.decode("utf-8", "ignore")[: self.limit - self.limit // 2]
        tail = (ring[at:] + ring[:at]).decode("utf-8", "ignore")
        last = tail[len(tail) - self.limit // 2 :]
        return _join(first, last, max(self._chars - len(first) - len(last), 0))


def _half(limit: int) -> int:
    return 4 * (limit - limit // 2)  # a character has at most four bytes, so half the limit always fits


class RingWriter(io.RawIOBase):
    """The binary end of a session's sys.stdout."""

    def __init__(self, ring: OutputRing) -> None:
        super().__init__()
        self._ring = ring

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        data = bytes(data)
        self._ring.write(data)
        return len(data)


class Scrubber:
    """Takes host paths out of texts: they differ from run to run, and tell a model nothing it can use."""

    def __init__(self, folder: str) -> None:
        """`folder`: the session's work folder, written as "."; the folder above holds those of other sessions."""
        self._folder = folder
        self._parent = str(Path(folder).parent)
        self._pattern = _host_paths(self._parent)

    def __call__(self, text: str) -> str:
        return self._pattern.sub(self._name, text)

    def _name(self, match: re.Match[str]) -> str:
        path = match.group()
        if not path.startswith(self._parent):
            return "<python>"
        return "." if path == self._folder else f"..{path[len(self._parent) :]}"


@cache
def _host_paths(parent: str) -> re.Pattern[str]:
    """Installed code, and work folders below `parent`. The zygote compiles it once: in a session it would cost a megabyte."""
    package_root = str(Path(__file__).resolve().parents[2])
    paths = sysconfig.get_paths()
    installed = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")} | {package_root}
    if sys.prefix != sys.base_prefix:  # a virtual environment; otherwise it is /usr
        installed.add(sys.prefix)
    longest_first = sorted(map(re.escape, installed), key=len, reverse=True)
    return re.compile(rf"(?:{re.escape(parent)}(?:/s\d+)?|{'|'.join(longest_first)})(?![\w.-])")
