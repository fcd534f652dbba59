"""Bytes of a file as text: gzip unpacked, other formats named and refused, the encoding found."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
import zlib
from pathlib import Path

from agentic.errors import UserError
from agentic.tables.cells import count

_SAMPLE = 1 << 16
_SIGNATURES = (
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"PAR1", "a Parquet file"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file (xls)"),
    (b"%PDF", "a PDF document"),
    (b"ARROW1", "an Arrow/Feather file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"Rar!", "a RAR archive"),
)


def load(path: Path, max_bytes: int, notes: list[str]) -> bytes:
    limit = f"{max_bytes / 1024**2:g} MiB"
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; give a csv file inside it")
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: is no regular file; give a csv file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the name and the folder") from None
    except PermissionError:
        raise UserError(f"{path}: permission denied; make the file readable for this user") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path and the disk") from None
    if data[:2] == b"\x1f\x8b" and len(data) <= max_bytes:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error):
            raise UserError(f"{path}: the gzip archive is damaged; pack or download it again") from None
        notes.append("unpacked from gzip")
    if len(data) > max_bytes:
        raise UserError(f"{path}: larger than {limit}; split the file or keep only the columns needed")
    if not data:
        raise UserError(f"{path}: the file is empty; give a file with a header row and data")
    kind = _binary_kind(data)
    if kind is not None:
        raise UserError(f"{path}: is {kind}, not delimited text; save the table as csv and give that file")
    return data


def _binary_kind(data: bytes) -> str | None:
    """What the bytes are in truth, None for text."""
    for signature, kind in _SIGNATURES:
        if data.startswith(signature):
            return kind
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        try:
            inside = zipfile.ZipFile(io.BytesIO(data)).namelist()
        except zipfile.BadZipFile:
            return "a damaged zip archive"
        kinds = {
            "xl/": "an Excel workbook (xlsx)",
            "word/": "a Word document (docx)",
            "content.xml": "an OpenDocument file",
        }
        return next((kind for part, kind in kinds.items() if any(n.startswith(part) for n in inside)), "a zip archive")
    return None


def decode(data: bytes, path: Path, notes: list[str]) -> str:
    """Text from bytes: byte order mark, then strict UTF-8, then GB18030 or Windows-1252 by the shape of the bytes."""
    for mark, codec in (
        (b"\xef\xbb\xbf", "utf-8"),
        (b"\xff\xfe\x00\x00", "utf-32-le"),
        (b"\x00\x00\xfe\xff", "utf-32-be"),
        (b"\xff\xfe", "utf-16-le"),
        (b"\xfe\xff", "utf-16-be"),
    ):
        if data.startswith(mark):
            text = data[len(mark) :].decode(codec, errors="replace")
            break
    else:
        text, codec = _guess(data)
    if codec != "utf-8":
        notes.append(f"encoding {codec}")
    if (broken := text.count("\ufffd")) and codec == "utf-8":
        notes.append(f"{count(broken, 'unreadable character')} replaced")
    controls = len(re.findall(r"[\x00-\x08\x0e-\x1a\x7f]", text[:_SAMPLE]))
    if controls > 4 and controls > min(len(text), _SAMPLE) // 200:
        raise UserError(f"{path}: is binary data, not delimited text; save the table as csv and give that file")
    if "\x00" in text:
        notes.append(f"{count(text.count(chr(0)), 'NUL character')} removed")
        text = text.replace("\x00", "")
    kind = _markup_kind(text)
    if kind is not None:
        raise UserError(f"{path}: is {kind}, not delimited text; save the table as csv and give that file")
    return text.removeprefix("\ufeff")


def _guess(data: bytes) -> tuple[str, str]:
    sample = data[:_SAMPLE]
    # Latin text in UTF-16 without a mark: every second byte is zero.
    for first, codec in ((1, "utf-16-le"), (0, "utf-16-be")):
        if len(sample) >= 4 and sample[first::2].count(0) > 0.4 * len(sample) > 4 * sample[1 - first :: 2].count(0):
            return data.decode(codec, errors="replace"), codec
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    patched = data.decode("utf-8", errors="replace")
    wide = len(re.findall(r"[^\x00-\x7f]", patched))
    if patched.count("\ufffd") * 20 < wide:
        return patched, "utf-8"
    # Chinese bytes come in pairs, accented letters stand alone between ASCII letters.
    runs = re.findall(rb"[\x80-\xff]+", sample)
    if 2 * sum(len(run) == 1 for run in runs) <= len(runs):
        try:
            return data.decode("gb18030"), "gb18030"
        except UnicodeDecodeError:
            pass
    try:
        return data.decode("cp1252"), "windows-1252 (a guess; save the file as UTF-8 if letters look wrong)"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1 (a guess; save the file as UTF-8 if letters look wrong)"


def _markup_kind(text: str) -> str | None:
    start = text[:2000].lstrip("\ufeff \t\r\n")
    if re.match(r"<(!doctype html|html|head|body|table|meta)\b", start, re.IGNORECASE):
        return "an HTML page"
    if start.startswith("<?xml"):
        return "an XML file"
    if start.startswith(("{", "[")):
        for part in (start.splitlines()[0], text):
            try:
                json.loads(part)
            except (json.JSONDecodeError, RecursionError):
                continue
            return "JSON"
    return None
