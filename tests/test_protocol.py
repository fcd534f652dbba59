"""What crosses from hostile code to the supervisor, beyond test_sandbox.py: broken streams, odd JSON, lying fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.records import ExecResult
from agentic.sandbox.protocol import MAX_FRAME, FrameDecoder, FrameError, encode
from agentic.sandbox.reply import parse_reply
from agentic.sandbox.text import OutputRing, cut

HONEST: dict[str, Any] = {
    "type": "result", "id": 1, "status": "ok", "stdout": "", "dropped_chars": 0, "value": None, "error": None,
    "figures": [], "files_changed": [], "cpu_ms": 1.0, "peak_mb": 80.5,
}  # fmt: skip


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def received(**changed: Any) -> ExecResult:
    """What becomes of an answer with these fields. Raises FrameError."""
    (message,) = FrameDecoder().feed(framed(json.dumps(HONEST | changed).encode()))
    return ExecResult(**parse_reply(message, 1).model_dump(exclude={"type", "id"}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


# ------------------------------------------------------------------------------------------------ frames


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=4), st.data())
def test_a_truncated_frame_says_nothing_until_it_is_whole(message: dict[str, Any], data: st.DataObject) -> None:
    frame = encode(message)
    at = data.draw(st.integers(0, len(frame) - 1))
    decoder = FrameDecoder()
    assert decoder.feed(frame[:at]) == []
    assert decoder.feed(b"") == []
    assert decoder.feed(frame[at:]) == [message]


@given(json_values)
def test_only_an_object_is_a_message(value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        messages = FrameDecoder().feed(framed(body))
    except FrameError:
        assert not isinstance(value, dict) or "NaN" in body.decode() or "Infinity" in body.decode()
    else:
        assert isinstance(value, dict) and len(messages) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"1", b'"text"', b"null", b"true", b'[{"type": "result"}]', b'{"a": 1', b'{"a": 1,}', b"{'a': 1}", b'{"a": 01}',
        b'{"a": -NaN}', b'{"a": +1}', b'{"a": "\x01"}', b'\xef\xbb\xbf{"a": 1}', b'{"a": "\xed\xa0\x80"}', b"{} ", b"{}{}",
        '{"a": 1}'.encode("utf-16"), b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 100_000,
        b'{"a": 1' + b"0" * 4301 + b"}", b'{"id": -' + b"9" * 4400 + b"}", b"\x80\x04\x95.",
    ],
    ids=range(22),
)  # fmt: skip
def test_a_body_that_is_no_strict_object_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        messages = FrameDecoder().feed(framed(body))
        assert messages == [{}]  # white space around an object is JSON; there must be nothing else
        raise FrameError("white space")


def test_a_frame_after_a_broken_one_is_not_read() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError):
        decoder.feed(framed(b"broken") + encode(HONEST))
    with pytest.raises(FrameError):
        decoder.feed(encode(HONEST))


@pytest.mark.parametrize("size", [0, MAX_FRAME + 1, 1 << 31, (1 << 32) - 1])
def test_a_length_out_of_bounds_is_refused_before_a_body_comes(size: int) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(size.to_bytes(4, "big")[:3]) == []
    with pytest.raises(FrameError):
        decoder.feed(size.to_bytes(4, "big")[3:])


def test_the_largest_frame_passes_byte_by_byte_at_its_edges() -> None:
    body = json.dumps({"a": "x" * (MAX_FRAME - 9)}).encode()
    assert len(body) == MAX_FRAME
    frame = framed(body)
    decoder = FrameDecoder()
    for part in (*(frame[i : i + 1] for i in range(9)), frame[9:-1]):
        assert decoder.feed(part) == []
    (message,) = decoder.feed(frame[-1:])
    assert len(message["a"]) == MAX_FRAME - 9


@given(st.text() | st.text(st.characters(categories=["Cs"])))
def test_any_text_can_be_sent(text: str) -> None:
    (message,) = FrameDecoder().feed(encode({"text": text}))
    assert message["text"] == text.encode("utf-8", "replace").decode()


# ----------------------------------------------------------------------------------------------- answers


def test_an_honest_answer_passes() -> None:
    assert received() == ExecResult(status="ok", cpu_ms=1.0, peak_mb=80.5)


LIES: list[dict[str, Any]] = [
    {"type": "hello"},
    {"type": "forked"},
    {"id": 2},
    {"id": "1"},
    {"id": 1.0},
    {"id": 10**400},
    {"status": "killed"},
    {"status": "protocol_error"},
    {"status": "OK"},
    {"status": ["ok"]},
    {"reward": 1.0},
    {"isolation": "L3"},
    {"state": "kept"},
    {"wall_ms": 0.0},
    {"stdout": None},
    {"stdout": 7},
    {"stdout": ["a"]},
    {"stdout": "\ud800"},
    {"value": 7},
    {"value": "\udfff"},
    {"dropped_chars": -1},
    {"dropped_chars": 1.5},
    {"dropped_chars": True},
    {"dropped_chars": 10**4000},
    {"cpu_ms": -1},
    {"cpu_ms": "1"},
    {"cpu_ms": 10**400},
    {"peak_mb": None},
    {"error": "text"},
    {"error": {"type": "E"}},
    {"error": {"type": "E", "message": "m", "line": None, "more": 1}},
    {"error": {"type": "E" * 201, "message": "m", "line": None}},
    {"error": {"type": "E", "message": "m" * 3001, "line": None}},
    {"error": {"type": "\ud800", "message": "m", "line": None}},
    {"error": {"type": "E", "message": "m", "line": "1"}},
    {"error": {"type": "E", "message": "m", "line": 10**4000}},
    {"figures": "a.png"},
    {"figures": ["../a.png"]},
    {"figures": ["/etc/a.png"]},
    {"figures": ["a.png\n"]},
    {"figures": ["a.svg"]},
    {"figures": ["a.png"] * 11},
    {"files_changed": [7]},
    {"files_changed": ["a"] * 51},
    {"files_changed": ["/etc/passwd"]},
    {"files_changed": ["../s1/kept.txt"]},
    {"files_changed": ["a/../../b"]},
    {"files_changed": ["\ud800"]},
]


@pytest.mark.parametrize("changed", LIES, ids=[f"{json.dumps(lie)[:40]}" for lie in LIES])
def test_a_lie_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        received(**changed)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
@pytest.mark.parametrize("name", ["cpu_ms", "peak_mb", "dropped_chars", "id"])
def test_no_number_is_endless(name: str, number: str) -> None:
    body = json.dumps(HONEST | {name: 0}).replace(f'"{name}": 0', f'"{name}": {number}').encode()
    with pytest.raises(FrameError):
        (message,) = FrameDecoder().feed(framed(body))
        parse_reply(message, 1)


@pytest.mark.parametrize("missing", HONEST)
def test_every_field_is_needed(missing: str) -> None:
    with pytest.raises(FrameError):
        parse_reply({name: value for name, value in HONEST.items() if name != missing}, 1)


def test_a_key_that_comes_twice_cannot_bring_in_another_field_or_type() -> None:
    body = json.dumps(HONEST)[:-1].encode()
    for twice in (b', "status": "killed"}', b', "id": 2}', b', "reward": 1, "reward": 0}', b', "error": {"type": 1}}'):
        with pytest.raises(FrameError):
            parse_reply(FrameDecoder().feed(framed(body + twice))[0], 1)


@given(st.sampled_from(sorted(HONEST)), json_values)
def test_an_answer_is_typed_and_can_be_written_or_is_refused(name: str, value: Any) -> None:
    try:
        result = received(**{name: value})
    except FrameError:
        return
    again = ExecResult.model_validate_json(result.model_dump_json())
    assert again == result and len(str(result.dropped_chars)) < 30


@given(st.dictionaries(st.sampled_from(sorted(HONEST)) | st.text(max_size=5), json_values, max_size=12))
def test_no_message_fails_otherwise_than_with_frame_error(message: dict[str, Any]) -> None:
    try:
        parse_reply(message, 1)
    except FrameError:
        return


# ---------------------------------------------------------------------------------------------- head and tail


@given(st.text(max_size=80), st.integers(1, 30))
def test_cutting_loses_exactly_what_it_says(text: str, limit: int) -> None:
    kept, dropped = cut(text, limit)
    note = f"\n... [{dropped} characters dropped] ...\n"
    assert len(kept) - (len(note) if dropped else 0) + dropped == len(text)
    if dropped:
        head, tail = limit - limit // 2, limit // 2
        assert kept == text[:head] + note + text[len(text) - tail :]


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 9))
def test_the_output_buffer_takes_bytes_that_are_no_text(parts: list[bytes], limit: int) -> None:
    ring = OutputRing(bytearray(OutputRing.size(limit)), limit)
    for part in parts:
        ring.write(part)
    text, dropped = ring.read()
    assert dropped >= 0 and len(text) <= limit + 60
    text.encode()


@given(st.binary(min_size=16, max_size=16), st.integers(1, 9))
def test_a_forged_head_of_the_output_buffer_is_harmless(totals: bytes, limit: int) -> None:
    text, dropped = OutputRing(bytearray(totals.ljust(OutputRing.size(limit), b"x")), limit).read()
    assert dropped >= 0 and len(text) <= limit + 60
