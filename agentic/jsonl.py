"""Read and write JSONL; an error names the file and the line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentic.errors import UserError

R = TypeVar("R", bound=BaseModel)


def iter_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for every non-blank line.

    Raises UserError that names file and line for an unreadable file, broken JSON, or a line that is no object.
    """
    path = Path(path)
    try:
        # Lines are split on "\n" only: JSON strings may hold U+2028, which str.splitlines would cut.
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                row = parse_line(path, number, raw)
                if row is not None:
                    yield number, row
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a JSONL file") from None
    except PermissionError:
        raise UserError(f"{path}: permission denied") from None


def parse_line(path: Path, number: int, raw: bytes) -> dict[str, Any] | None:
    """The object of one line, None for a blank one. Raises UserError that names file and line."""
    try:
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not UTF-8 ({error.reason}); save the file as UTF-8") from None
    if not line:
        return None
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {number}: broken JSON at column {error.colno} ({error.msg}); fix or remove the line"
        ) from None
    if not isinstance(row, dict):
        raise UserError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
    return row


def read(path: str | Path, record: type[R]) -> Iterator[R]:
    """Yield validated records; the first problem of a bad line is said with file and line."""
    return (row for _, row in read_numbered(path, record))


def read_numbered(path: str | Path, record: type[R]) -> Iterator[tuple[int, R]]:
    """The same with the number of each line, from 1."""
    for number, row in iter_rows(path):
        try:
            yield number, record.model_validate(row)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or record.__name__
            raise UserError(f"{path}, line {number}: field {field}: {first['msg']}") from None


def dumps(row: Any) -> str:
    """One line of strict JSON (no NaN, no lone surrogates), keys in insertion order."""
    if isinstance(row, BaseModel):
        row = row.model_dump(mode="json", exclude_none=True)
    return scrub(json.dumps(row, ensure_ascii=False, allow_nan=False))


def scrub(text: str) -> str:
    """Replace lone surrogates, which cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def write(path: str | Path, rows: Iterable[Any]) -> int:
    """Write all rows or nothing: a temporary file is renamed over `path` at the end. Returns the count."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(dumps(row) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def check_output(path: str | Path, option: str = "--output") -> None:
    """Raise UserError where a file at `path` could not be written: before the work whose result it is to hold."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a file to write; name another {option}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except FileExistsError as error:
        raise UserError(f"{path}: cannot write there ({error.filename} is a file); name another {option}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({error.strerror}); name another {option}") from None


def drop_half_line(path: str | Path) -> None:
    """Cut off what a process that was killed while appending left behind its last newline. No file is fine, too."""
    path = Path(path)
    data = path.read_bytes() if path.exists() else b""
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def append(path: str | Path, row: Any) -> None:
    """Append one row and flush it to the operating system."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(dumps(row) + "\n")
