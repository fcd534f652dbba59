"""What a training run adds to its run folder: the hash of its data, and metrics that a resumed run goes on with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from agentic import jsonl
from agentic.errors import UserError


def data_hash(paths: Iterable[Path]) -> str:
    """Hash of the bytes of the data files, in order."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from None
    return digest.hexdigest()[:16]


def repair_tail(path: Path) -> None:
    """Drop half a line at the end, which a run that was killed while writing leaves."""
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)


def cut_metrics(path: Path, step: int) -> None:
    """Drop the rows behind `step`: a resumed run writes them again."""
    if path.exists():
        jsonl.write(path, [row for _, row in jsonl.iter_rows(path) if row.get("step", 0) <= step])
