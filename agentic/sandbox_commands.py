"""`agentic sandbox doctor` and `agentic sandbox bench`: which isolation this machine gives and why, and how fast it is here.

`benchmarks/sandbox.py` compares with other methods and uses the same cell, table and figures.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic import run_folder
from agentic.config import SandboxBenchConfig, SandboxDoctorConfig
from agentic.errors import UserError
from agentic.sandbox import Sandbox, SandboxError, Session
from agentic.sandbox.levels import LOWEST_BY_DEFAULT, VARIABLE, choose_level, detect
from agentic.sandbox.limits import LEVELS, MEANING

_NEEDED_FOR = {
    "system call filter": "L1",
    "Landlock": "L2",
    "own user id per session": "L3",
    "empty network and IPC namespace": "L3",
}
_PROBES = {
    "network": ("L1", "import ctypes; ctypes.CDLL(None).socket(2, 1, 0) == -1"),
    "files of this machine": ("L2", "import ctypes; ctypes.CDLL(None).open(b'/etc/passwd', 0) == -1"),
    "the user id of this process": ("L3", f"import os; os.getuid() != {os.getuid()}"),
}
"""What a session must not have -> (from this level on, cell whose value is True when it has not). They ask the kernel
past Python's own refusals, which are only words."""

ROWS = 2000
TYPICAL_CELL = """import pandas as pd
frame = pd.read_csv("sales.csv")
print(frame.groupby("shop")["amount"].sum().round(2).to_string())"""
TRIVIAL_CELL = "x = 1"
TRAJECTORY_CELLS = 5
_TRIVIAL_CELLS = 10
"""Timed per session."""


def write_table(path: Path) -> None:
    """The 2,000-row table that the typical cell reads."""
    chance = random.Random(0)
    shops = ("north", "south", "east", "west", "centre")
    lines = [
        f"2024-{chance.randint(1, 12):02}-{chance.randint(1, 28):02},{chance.choice(shops)},{chance.randint(1, 500)},"
        f"{chance.uniform(1, 900):.2f}"
        for _ in range(ROWS)
    ]
    path.write_text("\n".join(["day,shop,units,amount", *lines]) + "\n", encoding="utf-8")


def percentile(values: Sequence[float], share: float) -> float:
    """Interpolated between neighbours; `share` from 0 to 1. At least one value is needed."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return min(ordered[low] + (ordered[high] - ordered[low]) * (place - low), ordered[high])  # rounding may pass it


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": round(percentile(values, 0.5), 3), "p99": round(percentile(values, 0.99), 3), "count": len(values)}


@dataclass(frozen=True)
class Memory:
    """Of one process, in MB (2**20 bytes)."""

    private: float
    """USS: pages that no other process shares; what its end frees."""
    proportional: float
    """PSS: its private pages and its part of the shared ones; the sum over processes is what they take."""


def memory_of(pid: int) -> Memory | None:
    """None: the process is gone, or belongs to another user and this one is not root."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        kb = {line.split(":")[0]: int(line.split()[1]) for line in file if line.endswith("kB\n")}
        return Memory((kb["Private_Clean"] + kb["Private_Dirty"]) / 1024, kb["Pss"] / 1024)
    return None


def mean_memory(pids: Sequence[int]) -> dict[str, float] | None:
    """Mean over processes; None where one cannot be read."""
    found = [memory_of(pid) for pid in pids]
    known = [memory for memory in found if memory is not None]
    if not known or len(known) < len(found):
        return None
    return {
        "private": round(sum(memory.private for memory in known) / len(known), 2),
        "proportional": round(sum(memory.proportional for memory in known) / len(known), 2),
    }


# ------------------------------------------------------------------------------------------------ doctor


def run_doctor(config: SandboxDoctorConfig) -> int:
    """Print the level and its reasons. Exit code 0 when it is L2 or higher and a session holds it, else 1."""
    found = detect()
    try:
        in_force: str | None = choose_level("auto")
        refusal = ""
    except UserError as error:
        in_force, refusal = None, str(error)
    trial = asyncio.run(_trial(found.level))
    enough = LEVELS.index(found.level) >= LEVELS.index(LOWEST_BY_DEFAULT)
    report = {
        "level": found.level,
        "meaning": MEANING[found.level],
        "enough": enough,
        "in_force": in_force,
        "features": [
            {**dataclasses.asdict(feature), "needed_for": _NEEDED_FOR[feature.name]} for feature in found.features
        ],
        "trial": trial,
    }
    if config.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print("\n".join(_doctor_lines(report, refusal)))
    return 0 if enough and trial["works"] else 1


async def _trial(level: str) -> dict[str, Any]:
    """A session at `level` that tries what the level forbids."""
    started = time.perf_counter()
    refused: dict[str, bool] = {}
    try:
        async with Sandbox(level) as sandbox, await sandbox.session() as session:
            for name, (since, code) in _PROBES.items():
                if LEVELS.index(level) >= LEVELS.index(since):
                    refused[name] = (await session.run(code)).value == "True"
            works = (await session.run("6 * 7")).value == "42"
    except (UserError, SandboxError) as error:
        return {"works": False, "refused": refused, "error": str(error)}
    seconds = round(time.perf_counter() - started, 2)
    return {"works": works and all(refused.values()), "refused": refused, "error": None, "seconds": seconds}


def _doctor_lines(report: dict[str, Any], refusal: str) -> list[str]:
    level, named = report["level"], os.environ.get(VARIABLE)
    lines = [f"{'level':9} {level}: {report['meaning']}"]
    reason = f"{VARIABLE}={named}" if named else f"the highest; {VARIABLE} is not set"
    lines.append(
        f"{'in force':9} {report['in_force']} ({reason})" if not refusal else f"{'in force':9} none: {refusal}"
    )
    for feature in report["features"]:
        lines.append(
            f"{'yes' if feature['present'] else 'no':9} {feature['needed_for']} needs {feature['name']}: {feature['why']}"
        )
        if not feature["present"]:
            lines.append(f"{'':9} to get it: {feature['remedy']}")
    trial = report["trial"]
    if trial["error"] is not None:
        lines.append(f"{'BROKEN':9} a session at {level} does not start: {trial['error']}")
    else:
        tried = [f"{name} {'refused' if held else 'NOT refused'}" for name, held in trial["refused"].items()]
        said = ", ".join(tried) or "runs cells; this level refuses nothing"
        lines.append(
            f"{'tried' if trial['works'] else 'BROKEN':9} a session at {level}: {said} ({trial['seconds']} s in all)"
        )
    if level == LEVELS[-1]:
        lines.append(f"{'higher':9} there is no higher level")
    return lines


# ------------------------------------------------------------------------------------------------- bench


def run_bench(config: SandboxBenchConfig) -> int:
    """Measure this machine at the level in force and print it. Raises UserError for a level that is not available."""
    report = asyncio.run(_bench(config.level, config.sessions))
    if config.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print("\n".join(_bench_lines(report)))
    return 0


async def _bench(level: str, sessions: int) -> dict[str, Any]:
    starts, trivial, trajectories = [], [], []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="agentic-bench-") as folder:
        files = {"sales.csv": Path(folder) / "sales.csv"}
        write_table(files["sales.csv"])
        async with Sandbox(level) as sandbox:
            for number in range(sessions + 1):
                started = time.perf_counter()
                async with await sandbox.session(files) as session:
                    start = (time.perf_counter() - started) * 1000
                    cells = [await _timed(session, TYPICAL_CELL) for _ in range(TRAJECTORY_CELLS)]
                    small = [await _timed(session, TRIVIAL_CELL) for _ in range(_TRIVIAL_CELLS)]
                if number:  # the first one warms the machine up
                    starts.append(start)
                    trajectories.append(start + sum(cells))
                    trivial += small
            idle, used, zygote = await _live(sandbox, files, sessions)
            return {
                "level": sandbox.level,
                "sessions": sessions,
                "machine": run_folder.machine(),
                "session_start_ms": spread(starts),
                "trivial_cell_ms": spread(trivial),
                "trajectory_ms": spread(trajectories),
                "zygote_mb": zygote,
                "session_mb": {"idle": idle, "after_a_pandas_cell": used},
                "seconds": round(time.perf_counter() - began, 1),
            }


async def _timed(session: Session, code: str) -> float:
    """Milliseconds, seen from this side of the socket."""
    started = time.perf_counter()
    result = await session.run(code)
    elapsed = (time.perf_counter() - started) * 1000
    if result.status != "ok":
        raise UserError(f"a cell of the measurement ended as {result.status}; see `agentic sandbox doctor`")
    return elapsed


async def _live(sandbox: Sandbox, files: dict[str, Path], sessions: int) -> tuple[Any, Any, Any]:
    """Mean memory of that many sessions that live at once: idle, and after a typical cell; then the zygote's."""
    live = [await sandbox.session(files) for _ in range(sessions)]
    zygote, *pids = sandbox.pids()
    idle = mean_memory(pids)
    for session in live:
        await _timed(session, TYPICAL_CELL)
    used, shared = mean_memory(pids), mean_memory([zygote])
    await asyncio.gather(*(session.close() for session in live))
    return idle, used, shared


def _bench_lines(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    lines = [
        f"level {report['level']}, {report['sessions']} sessions; {machine['cpu']}, {machine['cores']} cores; "
        f"{report['seconds']} s"
    ]
    rows = {
        "session start": "session_start_ms",
        "trivial cell": "trivial_cell_ms",
        f"{TRAJECTORY_CELLS}-cell trajectory, start included": "trajectory_ms",
    }
    for name, key in rows.items():
        lines.append(f"{name:40} p50 {report[key]['p50']:9.2f} ms   p99 {report[key]['p99']:9.2f} ms")
    memory = {"session, idle": report["session_mb"]["idle"]}
    memory["session, after a pandas cell"] = report["session_mb"]["after_a_pandas_cell"]
    memory["zygote, once for all"] = report["zygote_mb"]
    for name, value in memory.items():
        shown = f"{value['private']:7.2f} MB private, {value['proportional']:7.2f} MB proportional" if value else None
        lines.append(f"{name:40} {shown or 'not readable: the sessions have their own user ids, needs root'}")
    return lines
