"""Compares the sandbox with other ways to run an agent's cells, side by side in one run on one machine.

    pip install ipykernel jupyter_client smolagents    (and bubblewrap from the system's packages; what lacks is left out)
    python benchmarks/sandbox.py --output sandbox.json

The methods take turns in an order that changes every round, so that noise of the machine hits all alike. A trajectory is the
start of a session and five typical cells (read a csv of 2,000 rows, group, print); every output is checked. Memory of sessions
with own user ids is read as root only. Timings mean little while something else uses the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_methods import CALL_S, Method, Ours, Session, all_methods, replay

from agentic import run_folder
from agentic.sandbox.memory import available_mb
from agentic.sandbox_commands import (
    TRAJECTORY_CELLS,
    TRIVIAL_CELL,
    TYPICAL_CELL,
    mean_memory,
    memory_of,
    spread,
    write_table,
)

SLOW_EVERY = 10
"""Methods that need a second a trajectory take part in every tenth round."""
TRIVIAL_CELLS = 5
AT_ONCE = 8
"""Sessions of the measurement of cells per second."""
MEMORY_SESSIONS = 20
SLOW_MEMORY_SESSIONS = 4
NO_MEMORY = "needs root"
COLUMNS = ("trajectory ms", "ratio", "start ms", "trivial ms", "cells/s", "idle MB", "used MB", "per GB")
WIDTHS = (15, 6, 13, 10, 7, 10, 11, 6)


@dataclass
class Samples:
    """Of one method; milliseconds, except where the name says otherwise."""

    start: list[float] = field(default_factory=list)
    trivial: list[float] = field(default_factory=list)
    trajectory: list[float] = field(default_factory=list)
    cells_per_second: list[float] = field(default_factory=list)
    idle_mb: dict[str, float] | None = None
    used_mb: dict[str, float] | None = None


async def timed(awaitable: Awaitable[Any]) -> tuple[float, Any]:
    """(milliseconds, result)"""
    started = time.perf_counter()
    result = await awaitable
    return (time.perf_counter() - started) * 1000, result


async def typical(session: Session, expected: str, beside: bool = False) -> None:
    text = await (session.run_beside(TYPICAL_CELL) if beside else session.run(TYPICAL_CELL))
    if text.strip() != expected.strip():
        raise RuntimeError(f"{type(session).__name__} printed {text[:200]!r} for the typical cell")


async def one_trajectory(method: Method, expected: str, samples: Samples) -> None:
    start, session = await timed(method.start())
    cells = [(await timed(typical(session, expected)))[0] for _ in range(TRAJECTORY_CELLS)]
    if method.keeps == "nothing":  # else the trivial cells would pay for the typical ones
        session = await method.start()
    trivial = [(await timed(session.run(TRIVIAL_CELL)))[0] for _ in range(TRIVIAL_CELLS)]
    await session.close()
    samples.trajectory.append(start + sum(cells))
    samples.trivial += trivial
    if method.keeps != "nothing":
        samples.start.append(start)


async def many_trajectories(method: Method, expected: str) -> float:
    """Cells per second of AT_ONCE trajectories that run beside each other, starts included."""

    async def one() -> None:
        session = await method.start()
        for _ in range(TRAJECTORY_CELLS):
            await typical(session, expected, beside=True)
        await session.close()

    elapsed, _ = await timed(asyncio.gather(*(one() for _ in range(AT_ONCE))))
    return AT_ONCE * TRAJECTORY_CELLS / elapsed * 1000


async def session_memory(method: Method, expected: str, count: int, samples: Samples) -> None:
    sessions = [await method.start() for _ in range(count)]
    samples.idle_mb = mean_memory(method.pids())
    for session in sessions:
        await typical(session, expected)
    samples.used_mb = mean_memory(method.pids())
    for session in sessions:
        await session.close()


async def live_sessions(method: Ours, expected: str, count: int) -> dict[str, Any]:
    """Start `count` sessions and keep them all: seconds, and MB of zygote and sessions together, idle and used."""
    free = available_mb()
    started = time.perf_counter()
    tasks = [asyncio.create_task(method.start()) for _ in range(count)]
    _, waiting = await asyncio.wait(tasks, timeout=CALL_S)
    seconds = time.perf_counter() - started
    for task in waiting:  # admission holds them back: this machine has no memory for so many
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    sessions = [task.result() for task in tasks if task not in waiting]
    idle = total_memory(method)
    turns = asyncio.Semaphore(AT_ONCE)  # all at once would run into the time limit of a cell

    async def one_cell(session: Session) -> None:
        async with turns:
            await typical(session, expected)

    elapsed, _ = await timed(asyncio.gather(*map(one_cell, sessions)))
    report = {
        "level": method.level,
        "asked": count,
        "sessions": len(sessions),
        "start_s": round(seconds, 2),
        "cells_s": round(elapsed / 1000, 2),
        "idle_mb": idle,
        "used_mb": total_memory(method),
        "less_available_mb": round(free - available_mb()),
    }
    await asyncio.gather(*(session.close() for session in sessions))
    return report


def total_memory(method: Ours) -> float | None:
    """Sum of PSS of zygote and sessions in MB."""
    found = [memory_of(pid) for pid in [*method.shared(), *method.pids()]]
    known = [memory.proportional for memory in found if memory is not None]
    return round(sum(known), 1) if len(known) == len(found) else None


async def measure(methods: list[Method], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    expected = replay([TYPICAL_CELL])
    samples = {method.name: Samples() for method in methods}
    chance = random.Random(0)
    async with contextlib.AsyncExitStack() as stack:
        for method in methods:
            await method.open(folder)
            stack.push_async_callback(method.close)
            await one_trajectory(method, expected, Samples())  # warms up
        for number in range(options.repetitions):
            turn = [method for method in methods if not method.slow or number % SLOW_EVERY == 0]
            for method in chance.sample(turn, len(turn)):
                await one_trajectory(method, expected, samples[method.name])
            show(f"round {number + 1} of {options.repetitions}")
        for number in range(-(-options.repetitions // SLOW_EVERY)):
            for method in chance.sample(methods, len(methods)):
                if not method.slow or number == 0:
                    samples[method.name].cells_per_second.append(await many_trajectories(method, expected))
            show(f"{AT_ONCE} sessions at once, round {number + 1}")
        for method in methods:
            if method.keeps == "process":
                count = SLOW_MEMORY_SESSIONS if method.slow else MEMORY_SESSIONS
                await session_memory(method, expected, 2 if options.quick else count, samples[method.name])
        ours = highest(methods)
        show(f"{options.sessions} live sessions")
        live = await live_sessions(ours, expected, options.sessions)
    show("")
    report = {"methods": {name: summary(found) for name, found in samples.items()}, "live": live}
    return report | {"ours": ours.name, "targets": targets(report["methods"], live, ours.name)}


def summary(samples: Samples) -> dict[str, Any]:
    def figures(values: list[float]) -> dict[str, float] | None:
        return spread(values) if values else None

    used = samples.used_mb
    return {
        "start_ms": figures(samples.start),
        "trivial_cell_ms": figures(samples.trivial),
        "trajectory_ms": figures(samples.trajectory),
        "cells_per_second": figures(samples.cells_per_second),
        "idle_mb": samples.idle_mb,
        "used_mb": used,
        "sessions_per_gb": round(1024 / used["private"], 1) if used else None,
    }


def highest(methods: list[Method]) -> Ours:
    return [method for method in methods if isinstance(method, Ours)][-1]


def targets(methods: dict[str, Any], live: dict[str, Any], ours: str) -> list[dict[str, Any]]:
    """What the design asks of the sandbox; `measured` None where this run could not tell."""
    own = methods[ours]

    def times(name: str) -> float | None:
        other = methods.get(name)
        return other["trajectory_ms"]["p50"] / own["trajectory_ms"]["p50"] if other else None

    none = methods["agentic L0"]["trajectory_ms"]["p50"]
    used_mb = live["used_mb"]
    rows: list[tuple[str, str, float, float | None]] = [
        ("trajectory: times faster than ipykernel", ">=", 20, times("ipykernel")),
        ("trajectory: times faster than fresh python + replay", ">=", 40, times("fresh python + replay")),
        ("trajectory: times faster than fork per call + replay", ">=", 2.5, times("fork per call + replay")),
        *(
            (
                f"hardening of {name[-2:]} on top of L0, %",
                "<=",
                15,
                (methods[name]["trajectory_ms"]["p50"] / none - 1) * 100,
            )
            for name in ("agentic L2", "agentic L3")
            if name in methods
        ),
        ("session start p50, ms", "<=", 15, own["start_ms"]["p50"]),
        ("trivial cell p50, ms", "<=", 0.5, own["trivial_cell_ms"]["p50"]),
        ("private memory of an idle session, MB", "<=", 3, own["idle_mb"] and own["idle_mb"]["private"]),
        (
            f"sessions per GB after a pandas cell ({live['sessions']} live, zygote included)",
            ">=",
            90,
            used_mb and live["sessions"] * 1024 / used_mb,
        ),
        (f"{live['sessions']} live sessions after a pandas cell, GB", "<=", 6, used_mb and used_mb / 1024),
    ]
    return [
        {
            "name": name,
            "target": f"{sign} {limit:g}",
            "measured": None if value is None else round(value, 2),
            "met": None if value is None else (value >= limit if sign == ">=" else value <= limit),
        }
        for name, sign, limit, value in rows
    ]


# -------------------------------------------------------------------------------------------------- output


def show(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def lines(report: dict[str, Any]) -> list[str]:
    methods, live, machine = report["methods"], report["live"], report["machine"]
    base = methods[report["ours"]]["trajectory_ms"]["p50"]
    text = [
        f"{machine['cpu']}, {machine['cores']} cores; ours is {report['ours']}",
        "times are p50/p99; memory is private/proportional; per GB: 1024 MB by the private memory after a pandas cell",
        row("", COLUMNS),
    ]
    for name, found in methods.items():
        text.append(
            row(
                name,
                (
                    pair(found["trajectory_ms"], "p50", "p99"),
                    f"{found['trajectory_ms']['p50'] / base:.2f}",
                    pair(found["start_ms"], "p50", "p99"),
                    pair(found["trivial_cell_ms"], "p50", "p99"),
                    f"{found['cells_per_second']['p50']:.1f}",
                    memory(name, found["idle_mb"]),
                    memory(name, found["used_mb"]),
                    "-" if found["sessions_per_gb"] is None else f"{found['sessions_per_gb']:.0f}",
                ),
            )
        )
    text += [f"{name:30} {why}" for name, why in report["not_measured"].items()]
    text += [
        "",
        f"{live['sessions']} of {live['asked']} sessions live at once ({live['level']}): started in {live['start_s']} s, one "
        f"pandas cell each in {live['cells_s']} s",
    ]
    for name, key in (("idle", "idle_mb"), ("after the cell", "used_mb")):
        total = live[key]
        shown = NO_MEMORY if total is None else f"{total:.0f} MB (sum of PSS)"
        text.append(f"  zygote and all sessions, {name}: {shown}")
    text += [f"  the machine has {live['less_available_mb']} MB less available (page tables and all else included)", ""]
    for target in report["targets"]:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
        measured = "-" if target["measured"] is None else f"{target['measured']:.2f}"
        text.append(f"{target['name']:66} {target['target']:>7} {measured:>9}  {verdict}")
    return text


def row(name: str, cells: Sequence[str]) -> str:
    return f"{name:30}" + "".join(f" {cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def pair(values: dict[str, float] | None, first: str, second: str) -> str:
    return "-" if values is None else f"{values[first]:.1f}/{values[second]:.1f}"


def memory(name: str, values: dict[str, float] | None) -> str:
    if values is None:
        return NO_MEMORY if name.startswith("agentic") else "-"
    return pair(values, "private", "proportional")


def versions() -> dict[str, str]:
    found = {}
    for package in ("pandas", "numpy", "ipykernel", "jupyter_client", "smolagents"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found | {"python": sys.version.split()[0]}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repetitions", type=int, help=f"trajectories per method (100; slow methods: every {SLOW_EVERY}th)"
    )
    parser.add_argument("--sessions", type=int, help="sessions that live at once (500)")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs, not how fast")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.repetitions is None:
        options.repetitions = 2 if options.quick else 100
    if options.sessions is None:
        options.sessions = 5 if options.quick else 500
    if options.repetitions < 1 or options.sessions < 1:
        parser.error("--repetitions and --sessions are at least 1")
    return options


def main() -> None:
    options = parse()
    output = options.output and options.output.resolve()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every live session holds a socket here
    reasons = {method.name: method.unavailable() for method in all_methods()}
    methods = [method for method in all_methods() if reasons[method.name] is None]
    began, home = time.perf_counter(), os.getcwd()
    with tempfile.TemporaryDirectory(prefix="agentic-bench-") as folder:
        write_table(Path(folder) / "sales.csv")
        os.chdir(folder)
        try:
            report = asyncio.run(measure(methods, Path(folder), options))
        finally:
            os.chdir(home)
    report["not_measured"] = {name: why for name, why in reasons.items() if why is not None}
    report |= {"machine": run_folder.machine(), "versions": versions(), "repetitions": options.repetitions}
    report |= {"load_average": os.getloadavg(), "seconds": round(time.perf_counter() - began, 1)}
    print("\n".join(lines(report)))
    if output:
        output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
