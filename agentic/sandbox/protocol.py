"""Frames between supervisor and session: 4 bytes of length (big endian), then that many bytes of one JSON object.

The session runs hostile code that can write any bytes to its socket, so decoding is strict, bounded and never pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]  # not in typeshed
from typing import Any, NoReturn

MAX_FRAME = 1 << 20
"""Largest body in bytes."""


class FrameError(Exception):
    """The bytes are no frame, or the frame is not a message that was expected."""


def encode(message: dict[str, Any]) -> bytes:
    """One frame. Lone surrogates become "?". Raises FrameError when the body is larger than MAX_FRAME."""
    body = _dumps(message).encode("utf-8", "replace")
    if len(body) > MAX_FRAME:
        raise FrameError(f"message of {len(body)} bytes is larger than {MAX_FRAME}")
    return len(body).to_bytes(4, "big") + body


def _make_dumps() -> Callable[[dict[str, Any]], str]:
    """json.dumps with parts of its own: in a session the code may have replaced those of the module."""
    parts, join = (None, None, encode_basestring, None, ":", ",", False, False, False), "".join
    if c_make_encoder is None:
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
        return encoder.encode
    make = c_make_encoder(*parts)
    return lambda message: join(make(message, 0))


_dumps = _make_dumps()


class FrameDecoder:
    """Cuts a byte stream into messages, however the stream is split."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Messages completed by `data`, in order. Raises FrameError as soon as the stream cannot be valid."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if not 0 < size <= MAX_FRAME:
                raise FrameError(f"frame of {size} bytes (allowed: 1 to {MAX_FRAME})")
            if len(self._buffer) < 4 + size:
                break
            messages.append(_decode(bytes(self._buffer[4 : 4 + size])))
            del self._buffer[: 4 + size]
        return messages


def _decode(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode("utf-8")
        message = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:  # half of a surrogate pair can be written as an escape, and nowhere be encoded again
            json.dumps(message, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:  # broken UTF-8, broken JSON, 5000-digit integers, 10,000 brackets
        raise FrameError(f"frame is not strict JSON: {error}") from None
    if not isinstance(message, dict):
        raise FrameError(f"frame holds a {type(message).__name__}, expected an object")
    return message


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
