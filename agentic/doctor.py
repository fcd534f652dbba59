"""`agentic doctor`: what this machine has, what works, and what to do about what does not. Imports no torch."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic import run_folder
from agentic.config import DoctorConfig
from agentic.model import fetch
from agentic.sandbox.limits import MEANING

DISTRIBUTION = "agentic-data-analysis"
_CORE = ("pydantic", "tyro", "rich", "pandas", "numpy", "simpleeval", "json-repair", "openai")
_TRAIN = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "gguf")
_SANDBOX_SECONDS = 30
_FREE_GB = 2  # the embedded model and one training run with two checkpoints


@dataclass(frozen=True)
class Problem:
    """Something that is missing or broken."""

    what: str
    remedy: str
    required: bool
    """True: the package does not work without it. False: some commands do not."""


@dataclass
class Report:
    """What `agentic doctor --json` prints."""

    python: str
    versions: dict[str, str]
    machine: dict[str, Any]
    device: str
    """What training and local models run on."""
    disk_free_gb: float
    sandbox: dict[str, Any]
    model: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def usable(self) -> bool:
        return not any(problem.required for problem in self.problems)


def examine() -> Report:
    """Look at everything. Takes a second or two, most of it the start of the sandbox."""
    started = time.perf_counter()
    problems: list[Problem] = []
    versions = run_folder.versions()
    machine = run_folder.machine()
    report = Report(
        python=f"{platform.python_version()} ({sys.executable})",
        versions=versions,
        machine=machine,
        device=_device(versions, machine, problems),
        disk_free_gb=_disk(problems),
        sandbox=asyncio.run(_sandbox(problems)),
        model=_model(problems),
        problems=problems,
    )
    _packages(versions, problems)
    report.seconds = round(time.perf_counter() - started, 2)
    return report


def _packages(versions: dict[str, str], problems: list[Problem]) -> None:
    absent = [name for name in _CORE if not _installed(name)]
    if absent:
        remedy = f"pip install {DISTRIBUTION}"
        problems.append(Problem(f"not installed: {', '.join(absent)}", remedy, required=True))
    absent = [name for name in _TRAIN if name not in versions]
    if absent:
        remedy = f"pip install '{DISTRIBUTION}[train]' for local models and training"
        problems.append(Problem(f"not installed: {', '.join(absent)}", remedy, required=False))


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _device(versions: dict[str, str], machine: dict[str, Any], problems: list[Problem]) -> str:
    """torch says the same after five seconds of import; the driver's tool and the build's name say it at once."""
    torch, gpus = versions.get("torch"), machine["gpus"]
    if gpus and torch and "+cpu" in torch:
        remedy = "pip install --force-reinstall torch from an index with CUDA builds"
        problems.append(Problem(f"{len(gpus)} GPU(s), but torch {torch} is a CPU build", remedy, required=False))
    elif gpus:
        return f"cuda: {'; '.join(gpus)}"
    fast = [flag for flag in machine["cpu_flags"] if flag in ("amx_bf16", "avx512_bf16", "bf16")]
    return f"cpu ({machine['cores']} cores, {'bfloat16 by ' + ', '.join(fast) if fast else 'float32'})"


def _disk(problems: list[Problem]) -> float:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    if free < _FREE_GB:
        remedy = "free some space, or work in a folder on another disk"
        problems.append(Problem(f"{free:.1f} GB free in {Path.cwd()}", remedy, required=False))
    return round(free, 1)


async def _sandbox(problems: list[Problem]) -> dict[str, Any]:
    """Start a session and run one cell, as every agent does."""
    started = time.perf_counter()
    remedy = "see the message; agents cannot run Python here until it works"
    try:
        async with asyncio.timeout(_SANDBOX_SECONDS):
            level, result, cell_ms = await _one_cell()
    except Exception as error:  # whatever broke is what the report is about
        problems.append(Problem(f"the sandbox does not start ({type(error).__name__}: {error})", remedy, required=True))
        return {"works": False, "error": f"{type(error).__name__}: {error}"}
    works = result.status == "ok" and result.value == "42"
    if not works:
        said = result.error.message if result.error else result.value
        problems.append(Problem(f"a cell in the sandbox ended as {result.status} ({said})", remedy, required=True))
    seconds = round(time.perf_counter() - started, 2)
    return {"works": works, "level": level, "why": MEANING[level], "seconds": seconds, "cell_ms": cell_ms}


async def _one_cell() -> tuple[str, Any, float]:
    from agentic.sandbox import Sandbox

    async with Sandbox() as sandbox:
        session = await sandbox.session({})
        try:
            result = await session.run("6 * 7", timeout_s=5)
        finally:
            await session.close()
        return sandbox.level, result, round(result.wall_ms, 2)


def _model(problems: list[Problem]) -> dict[str, Any]:
    """State of the cached base model and of the adapter that comes with the package."""
    cache = fetch.cache_folder()
    folder = cache / fetch.SMOLLM2_FOLDER
    state = "absent"
    if folder.exists():
        state = "whole" if fetch.is_whole(folder) else "damaged"
    if state != "whole":
        remedy = "agentic models fetch smollm2 (91 MB, once), or name another model with --model or --endpoint"
        problems.append(Problem(f"the embedded base model is {state} in {cache}", remedy, required=False))
    adapter = fetch.DEFAULT_ADAPTER
    shipped = (adapter / "adapter_model.safetensors").is_file() and (adapter / "adapter_config.json").is_file()
    if not shipped:
        remedy = "name a model with --model or --endpoint, or train one: agentic quickstart"
        problems.append(Problem("this installation has no shipped adapter", remedy, required=False))
    hub = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return {"cache": str(cache), "base": state, "adapter": str(adapter) if shipped else None, "hub_cache": hub}


def run(config: DoctorConfig) -> int:
    """Print the report. Exit code 0 when the package is usable, 1 when something it needs is broken."""
    report = examine()
    if config.json:
        print(json.dumps({"usable": report.usable, **dataclasses.asdict(report)}, ensure_ascii=False, indent=2))
    else:
        print("\n".join(lines(report)))
    return 0 if report.usable else 1


def lines(report: Report) -> list[str]:
    """The report for a person."""
    machine, sandbox, model = report.machine, report.sandbox, report.model
    shown = [f"{name} {version}" for name, version in report.versions.items() if name not in ("agentic", "python")]
    runs = f"level {sandbox['level']}: {sandbox['why']}; up in {sandbox['seconds']} s" if sandbox["works"] else "broken"
    rows = {
        "agentic": f"{report.versions['agentic']}, Python {report.python}",
        "packages": ", ".join(shown),
        "device": report.device,
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB memory, "
        f"{report.disk_free_gb} GB disk free; {machine['system']}",
        "sandbox": runs,
        "base model": f"smollm2 {model['base']} in {model['cache']}",
        "adapter": model["adapter"] or "none",
    }
    text = [f"{name:11} {value}" for name, value in rows.items()]
    for problem in sorted(report.problems, key=lambda problem: not problem.required):
        text.append(f"{'BROKEN' if problem.required else 'note':11} {problem.what}: {problem.remedy}")
    text.append(f"{'usable' if report.usable else 'not usable':11} checked in {report.seconds} s")
    return [_no_controls(line) for line in text]


def _no_controls(line: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]+", " ", line)
