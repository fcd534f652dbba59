"""Random access to the lines of large JSONL files, through an index of where each line begins.

The index takes 8 bytes a line, is built once in one pass over the files (which also checks every line's JSON and hashes
the bytes), lies beside the run and is mapped, not loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.errors import UserError
from agentic.formats import Parsed, parse_row, row_form
from agentic.run_folder import write_json

_OFFSETS, _ABOUT = "lines.u64", "lines.json"
_FLUSH = 1 << 16
_REPORT_S = 10.0


class Lines:
    """The non-blank lines of files, numbered through from 0. Nothing of the text is kept in memory."""

    def __init__(self, cache: Path) -> None:
        """Open an index that `build_index` made."""
        import numpy as np

        about = json.loads((cache / _ABOUT).read_text(encoding="utf-8"))
        self.paths = [Path(file["path"]) for file in about["files"]]
        self.data_hash: str = about["data_hash"]
        self._rows: list[int] = [file["rows"] for file in about["files"]]
        self._firsts = [sum(self._rows[:number]) for number in range(len(self._rows) + 1)]
        # One offset more than rows for each file: where the last line ends.
        self._offsets = np.memmap(cache / _OFFSETS, dtype=np.uint64, mode="r")
        self._handles: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return self._firsts[-1]

    def lengths(self) -> Any:
        """Bytes of every line: uint32 [number of lines]."""
        import numpy as np

        parts = []
        for number, rows in enumerate(self._rows):
            start = self._firsts[number] + number
            parts.append(np.diff(self._offsets[start : start + rows + 1]).astype(np.uint32))
        return np.concatenate(parts)

    def example(self, index: int) -> Parsed:
        """The example on a line. Raises UserError that names file and line."""
        file, start, end = self._place(index)
        path, raw = self.paths[file], os.pread(self._handle(file), end - start, start)
        try:
            return self._parse(raw, path, 1 if start == 0 else 2)
        except UserError:
            # Only now, because finding the line's number means reading the file up to here.
            return self._parse(raw, path, _line_number(path, start))

    def where(self, index: int) -> str:
        """File and line of a line, to open a message about it."""
        file, start, _ = self._place(index)
        return f"{self.paths[file]}, line {_line_number(self.paths[file], start)}"

    def _place(self, index: int) -> tuple[int, int, int]:
        file = next(number for number, end in enumerate(self._firsts[1:]) if index < end)
        start, end = self._offsets[index + file : index + file + 2]
        return file, int(start), int(end)

    @staticmethod
    def _parse(raw: bytes, path: Path, number: int) -> Parsed:
        row = jsonl.parse_line(path, number, raw)
        if row is None:
            raise UserError(f"{path}, line {number}: has changed since the run began; start anew")
        return parse_row(row, f"{path}, line {number}")

    def _handle(self, file: int) -> int:
        # By process: a forked worker opens its own.
        key = (os.getpid(), file)
        if key not in self._handles:
            try:
                self._handles[key] = os.open(self.paths[file], os.O_RDONLY)
            except OSError as error:
                raise UserError(f"{self.paths[file]}: {error.strerror}") from None
        return self._handles[key]


def _line_number(path: Path, offset: int) -> int:
    """Number, from 1, of the line that begins at `offset`."""
    count, left = 1, offset
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            count += block.count(b"\n")
            left -= len(block)
    return count


def build_index(paths: Sequence[Path], cache: Path, report: Callable[[str], None]) -> str:
    """Index the lines of `paths` into the folder `cache`, unless that is done already; returns the hash of the data.

    Raises UserError that names file and line for broken JSON and for a row that is no SFT example.
    """
    now = [_identity(path) for path in paths]
    try:
        about = json.loads((cache / _ABOUT).read_text(encoding="utf-8"))
        if [{key: file[key] for key in now[0]} for file in about["files"]] == now and (cache / _OFFSETS).exists():
            return str(about["data_hash"])
    except (OSError, ValueError, KeyError):
        pass
    cache.mkdir(parents=True, exist_ok=True)
    (cache / _ABOUT).unlink(missing_ok=True)
    digest = hashlib.sha256()
    total, done, said = sum(file["size"] for file in now), 0, time.monotonic()
    rows = []
    temporary = cache / f".{_OFFSETS}.tmp"
    with temporary.open("wb") as out:
        for path in paths:
            offset, count, offsets = 0, 0, array("Q")
            with path.open("rb") as file:
                for number, raw in enumerate(file, start=1):
                    digest.update(raw)
                    row = jsonl.parse_line(path, number, raw)
                    if row is not None:
                        row_form(row, f"{path}, line {number}")
                        offsets.append(offset)
                        count += 1
                    offset += len(raw)
                    if len(offsets) >= _FLUSH:
                        offsets.tofile(out)
                        offsets = array("Q")
                    if number % 1000 == 0 and time.monotonic() - said > _REPORT_S:
                        said = time.monotonic()
                        report(f"indexing {path.name}: {(done + offset) / max(total, 1):.0%}")
            if not count:
                raise UserError(f"{path}: holds no rows; write some with: agentic dataset --input FILE ...")
            offsets.append(offset)
            offsets.tofile(out)
            done += offset
            rows.append(count)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, cache / _OFFSETS)
    data_hash = digest.hexdigest()[:16]
    files = [{**file, "rows": count} for file, count in zip(now, rows, strict=True)]
    # Last: an index without it is not used.
    write_json(cache / _ABOUT, {"files": files, "data_hash": data_hash})
    report(f"indexed {sum(rows)} lines of {total / 1e6:.0f} MB")
    return data_hash


def _identity(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a JSONL file")
    return {"path": str(path.absolute()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
