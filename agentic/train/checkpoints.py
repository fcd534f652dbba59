"""Checkpoints that are whole or not there: named, sealed, renamed, and found again."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.errors import UserError
from agentic.run_folder import write_json

SEAL = "complete.json"
"""Written last into a checkpoint: names and sizes of its files. Without it the checkpoint is half-written."""


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


@dataclass(frozen=True)
class Checkpoints:
    """Where the full training states of a run lie and what they are called.

    Without a stem: `folder/checkpoint-{step}`, as transformers writes them. With one, the documented names:
    `folder/{stem}_epoch{epoch}_step{step}`, and `folder/{stem}_latest`, a text file that names the newest whole one.
    """

    folder: Path
    stem: str = ""

    def name(self, epoch: float, step: int) -> str:
        """Name of the checkpoint after optimizer step `step`; `epoch` counts passes done (1.5: half of the second)."""
        # Rounded first: the last step of an epoch must not count as the next one.
        return (
            f"{self.stem}_epoch{max(1, math.ceil(round(epoch, 6)))}_step{step}" if self.stem else f"checkpoint-{step}"
        )

    def step(self, path: Path) -> int | None:
        """Optimizer step of a checkpoint folder; None for another path."""
        pattern = rf"{re.escape(self.stem)}_epoch\d+_step(\d+)" if self.stem else r"checkpoint-(\d+)"
        match = re.fullmatch(pattern, path.name)
        return int(match[1]) if match and path.is_dir() else None

    def all(self) -> list[Path]:
        """Checkpoint folders, newest first, whole or not."""
        found = [(step, path) for path in self._siblings() if (step := self.step(path)) is not None]
        return [path for _, path in sorted(found, reverse=True)]

    def newest_whole(self) -> tuple[Path | None, list[Path]]:
        """The newest whole checkpoint, and the broken ones that are newer than it."""
        broken: list[Path] = []
        for path in self.all():
            if read_seal(path) is not None:
                return path, broken
            broken.append(path)
        return None, broken

    def resumable(self, restart: str, report: Any = print) -> Path:
        """The newest whole checkpoint; newer, half-written ones are moved aside and reported.

        Raises UserError that says how to `restart` when there is none.
        """
        checkpoint, broken = self.newest_whole()
        for path in broken:
            aside = path.with_name(path.name + ".broken")
            report(f"{path}: half-written, moved to {aside.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        if checkpoint is None:
            kind = f"{self.stem}_epoch*_step*" if self.stem else "checkpoint-*"
            raise UserError(f"{self.folder}: no whole checkpoint ({kind}) to resume from; {restart}")
        return checkpoint

    @property
    def latest(self) -> Path:
        """The text file that names the newest whole checkpoint (documented names only)."""
        return self.folder / f"{self.stem}_latest"

    @property
    def staging(self) -> Path:
        """Folder in which a checkpoint is written before it is whole."""
        return self.folder / f".saving{'.' * bool(self.stem)}{self.stem}"

    def publish(self, staged: Path, epoch: float, step: int, **facts: Any) -> Path:
        """Seal the folder `staged`, give it its name, then let `latest` name it. Returns the checkpoint."""
        seal(staged, step=step, **facts)
        target = self.folder / self.name(epoch, step)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(staged, target)
        _sync_folder(self.folder)
        if self.stem:
            replace_text(self.latest, target.name + "\n")
        return target

    def prune(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints (0 keeps all)."""
        for old in self.all()[keep or None :]:
            shutil.rmtree(old)

    def _siblings(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []


def replace_text(path: Path, text: str) -> None:
    """Write a small text file whole or not at all: write, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """A rename is on disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
