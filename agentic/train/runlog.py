"""The run folder of a training run: resolved configuration, metrics.jsonl, whole checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.errors import UserError
from agentic.records import FORMAT_VERSION

SEAL = "complete.json"
"""Written last into a checkpoint: names and sizes of its files. Without it the checkpoint is half-written."""
_PACKAGES = ("agentic-data-analysis", "torch", "transformers", "trl", "peft", "accelerate", "datasets")


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


def describe_run(config: Any, **facts: Any) -> dict[str, Any]:
    """What config.json holds: options, versions, code, machine, and the given facts."""
    options = {
        field.name: _plain(getattr(config, field.name))
        for field in dataclasses.fields(config)  # type: ignore[arg-type]
    }
    return {
        "format_version": FORMAT_VERSION,
        "config": options,
        "command": " ".join(sys.argv),
        "versions": {"python": platform.python_version(), **versions()},
        "git_commit": git_commit(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        **facts,
    }


def versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def git_commit() -> str | None:
    """Commit of the code, with "+" when there are uncommitted changes; None outside a repository."""
    root = Path(__file__).resolve().parents[2]
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
        changes = subprocess.run(["git", "-C", str(root), "status", "--porcelain"], capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a whole file or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; the folder holds no run") from None
    except ValueError as error:
        raise UserError(f"{path}: broken JSON ({error}); start a new run in another folder") from None
    return value


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


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
