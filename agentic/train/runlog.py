"""What a training run adds to its run folder: the hash of its data, and checkpoints that are whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.errors import UserError
from agentic.run_folder import write_json

SEAL = "complete.json"
"""Written last into a checkpoint: names and sizes of its files. Without it the checkpoint is half-written."""


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


def cut_metrics(path: Path, step: int) -> None:
    """Drop the rows behind `step`: a resumed run writes them again."""
    if path.exists():
        jsonl.write(path, [row for _, row in jsonl.iter_rows(path) if row.get("step", 0) <= step])


def seal(folder: Path, **facts: Any) -> None:
    """Mark a checkpoint as whole: everything is on disk before the seal is."""
    sizes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != SEAL:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    write_json(folder / SEAL, {"files": sizes, **facts})


def read_seal(folder: Path) -> dict[str, Any] | None:
    """The seal of a whole checkpoint; None when it is missing or a file is missing or has another size."""
    try:
        stored: dict[str, Any] = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in stored["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return stored if whole else None


def checkpoints(output_dir: Path) -> list[Path]:
    """checkpoint-N folders, newest first."""
    found = [
        path
        for path in output_dir.glob("checkpoint-*")
        if path.is_dir() and path.name.removeprefix("checkpoint-").isdigit()
    ]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True)


def newest_whole(output_dir: Path) -> tuple[Path | None, list[Path]]:
    """The newest whole checkpoint, and the broken ones that are newer than it."""
    broken: list[Path] = []
    for path in checkpoints(output_dir):
        if read_seal(path) is not None:
            return path, broken
        broken.append(path)
    return None, broken
