"""A task anyone can learn, on the random two-layer Llama of tiny.py: everything that RL tests share."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny import call

from agentic import jsonl
from agentic.config import TrainConfig
from agentic.records import Check, Message, TableRef, Task


def write_tasks(folder: Path, count: int = 6, seed: int = 0) -> Path:
    """Tasks over small tables, with expert trajectories of one call and one answer."""
    generator = random.Random(seed)
    tasks = []
    for index in range(count):
        rows = generator.randint(2, 5)
        values = "".join(f"{generator.randint(0, 9)}\n" for _ in range(rows))
        (folder / f"t{index}.csv").write_text(f"a\n{values}")
        tasks.append(
            Task(
                id=f"t{index}",
                question="How many rows?",
                tables=[TableRef(name="df", path=f"t{index}.csv")],
                expected_tools=["python_executor"],
                answer=f"{rows}",
                checks=[Check(kind="number", value=rows, decimals=0)],
                max_turns=3,
                expert_trajectory=[
                    call("print(len(df))"),
                    Message(role="tool", content=str(rows), name="python_executor"),
                    Message(role="assistant", content=f"{rows}"),
                ],
            )
        )
    jsonl.write(folder / "tasks.jsonl", tasks)
    return folder / "tasks.jsonl"


def tiny_config(base: Path, tasks: Path, output: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "data_path": (tasks,),
        "output_dir": output,
        "model_name_or_path": str(base),
        "learning_rate": 3e-3,
        "warmup_steps": 0,
        "max_steps": 5,
        "batch_size": 2,
        "num_generations": 3,
        "max_new_tokens": 12,
        "max_total_tokens": 24,
        "max_resamples": 1,
        "save_steps": 2,
        "sample_steps": 2,
        "dtype": "float32",
        "sampler_dtype": "float32",
        **changes,
    }
    return TrainConfig(**given)


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [row for _, row in jsonl.iter_rows(folder / name)]


def run_and_kill(config: TrainConfig, when: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Run `agentic train` in a forked process and SIGKILL it as soon as `when` holds (or it has ended)."""
    from agentic.train.rl import run

    def work() -> None:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os._exit(run(config))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    until = time.monotonic() + patience_s
    while process.is_alive() and not when() and time.monotonic() < until:
        time.sleep(0.002)
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
