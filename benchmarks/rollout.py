"""Compares ways to roll an agent out: same model, tasks, sandbox and machine, in one run.

    python benchmarks/rollout.py --prompts 8 --samples 6 --threads 2 --output rollout.json

    ours      run_episodes and the continuous batching engine
    one       a loop over samples, `generate` on one sequence, tool call, next turn (as the original trainer does);
              one sample of each task only, as its time per token does not depend on their number
    batched   all samples' turns in one left-padded `generate` that waits for the longest
    trl       GRPOTrainer's own tool loop

The methods take turns in an order that changes every round, so that noise of the machine hits all alike. Sampled tokens
and the share of right answers are shown, too: all methods sample from one distribution and do the same work, up to
chance. Ratios are those of the seconds per sampled token, of the clock and of the processor. Only `ours` also returns
logprobs. Times mean little while something else uses the cores; the load is recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentic import run_folder

COLUMNS = ("seconds", "ms/trajectory", "tokens/s", "times ours", "CPU s", "CPU, times", "tokens", "right", "tool s")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="default", help="model or adapter folder, Hugging Face id, smollm2, default (the adapter)")
    add("--data", type=Path, help="JSONL of tasks that offer the same tools (without it some are built)")
    add("--prompts", type=int, default=8, help="tasks")
    add("--samples", type=int, default=6, help="G, trajectories of a task")
    add("--temperature", type=float, default=0.7, help="of sampling")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    add("--batch_size", type=int, default=48, help="rows of our engine's running batch")
    add("--threads", type=int, default=2, help="threads of torch")
    add("--repetitions", type=int, default=3, help="rounds; in each every method runs once")
    add("--methods", nargs="+", default=["ours", "one", "batched", "trl"], choices=["ours", "one", "batched", "trl"])
    add("--seed", type=int, default=0, help="of the choice of tasks and of the order")
    add("--output", type=Path, help="JSON file to write")
    return parser.parse_args()


def chosen_tasks(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[list[Any], Path]:
    """Tasks and the folder that their tables' paths start from."""
    from agentic.evaluate.run import read_tasks

    data = arguments.data
    if data is None:
        from agentic.config import BuildConfig
        from agentic.tasks.build import run as build

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        size = max(arguments.prompts, 8)
        build(BuildConfig(output_dir=folder, train_size=size, dev_size=4, test_size=4, language="en"))
        data = folder / "train.jsonl"
    tasks = read_tasks(data)
    if len({tuple(task.tools) for task in tasks}) > 1:
        sys.exit(f"{data}: the tasks offer different tools; TRL shows all prompts the same ones")
    random.Random(arguments.seed).shuffle(tasks)
    return tasks[: arguments.prompts], data.resolve().parent


async def measure(arguments: argparse.Namespace, tasks: list[Any], base_dir: Path) -> dict[str, Any]:
    import torch
    from rollout_methods import MAX_NEW_TOKENS, METHODS, Outcome, Setting

    from agentic.policy.hf import HFPolicy
    from agentic.sandbox import Sandbox

    torch.manual_seed(arguments.seed)
    policy = HFPolicy(
        arguments.model,
        temperature=arguments.temperature,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
        dtype=arguments.dtype,
        threads=arguments.threads,
    )
    setting = Setting(policy, tasks, base_dir, arguments.samples, arguments.temperature)
    methods = [METHODS[name](setting) for name in arguments.methods]
    outcomes: dict[str, list[Outcome]] = {method.name: [] for method in methods}
    sandbox = Sandbox()
    order = random.Random(arguments.seed)
    load_before = os.getloadavg()
    try:
        for round_ in range(arguments.repetitions):
            for method in order.sample(methods, len(methods)):
                policy.engine.seed = round_
                outcome = await method.run(sandbox)
                outcomes[method.name].append(outcome)
                said = f"{outcome.seconds:.1f} s, CPU {outcome.cpu_seconds:.1f} s, {outcome.sampled_tokens} tokens"
                print(f"round {round_ + 1}, {method.name}: {said}", file=sys.stderr, flush=True)
    finally:
        await sandbox.close()
        await policy.close()
    return {
        "options": {name: str(v) if isinstance(v, Path) else v for name, v in vars(arguments).items()},
        "max_new_tokens": MAX_NEW_TOKENS,
        "dtype": str(policy.model.dtype),
        "threads": torch.get_num_threads(),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "machine": run_folder.machine(),
        "versions": run_folder.versions(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "methods": {
            method.name: {"what": method.what, **summary(outcomes[method.name], outcomes.get("ours"))}
            for method in methods
        },
    }


def summary(own: list[Any], ours: list[Any] | None) -> dict[str, Any]:
    """Medians over the rounds, ratios to ours (seconds per sampled token, round by round), and the rounds themselves."""
    rates = [outcome.sampled_tokens / outcome.seconds for outcome in own]
    per_trajectory = [outcome.seconds / outcome.trajectories for outcome in own]
    found: dict[str, Any] = {
        "seconds": statistics.median(outcome.seconds for outcome in own),
        "cpu_seconds": statistics.median(outcome.cpu_seconds for outcome in own),
        "ms_per_trajectory": 1000 * statistics.median(per_trajectory),
        "tokens_per_s": statistics.median(rates),
        "sampled_tokens": statistics.fmean(outcome.sampled_tokens for outcome in own),
        "success": statistics.fmean(outcome.success for outcome in own),
        "tool_seconds": statistics.fmean(outcome.tool_seconds for outcome in own),
        "rounds": [dataclasses.asdict(outcome) for outcome in own],
    }
    if ours:
        pairs = list(zip(own, ours, strict=True))
        fewer = [mine.sampled_tokens / theirs.sampled_tokens for theirs, mine in pairs]
        found["times_ours"] = [a.seconds / b.seconds * f for (a, b), f in zip(pairs, fewer, strict=True)]
        found["times_ours_cpu"] = [a.cpu_seconds / b.cpu_seconds * f for (a, b), f in zip(pairs, fewer, strict=True)]
    return found


def spread(ratios: list[float] | None) -> str:
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.1f}" + (f" ({min(ratios):.1f}-{max(ratios):.1f})" if len(ratios) > 1 else "")


def print_table(report: dict[str, Any]) -> None:
    print(f"{'':18}" + "".join(f"{name:>15}" for name in COLUMNS))
    for name, found in report["methods"].items():
        values = (
            f"{found['seconds']:.1f}",
            f"{found['ms_per_trajectory']:.0f}",
            f"{found['tokens_per_s']:.0f}",
            spread(found.get("times_ours")),
            f"{found['cpu_seconds']:.1f}",
            spread(found.get("times_ours_cpu")),
            f"{found['sampled_tokens']:.0f}",
            f"{found['success']:.2f}",
            f"{found['tool_seconds']:.1f}",
        )
        print(f"{name:18}" + "".join(f"{value:>15}" for value in values))
    load = max(report["load_average"]["before"][0], report["load_average"]["after"][0])
    cores = run_folder.cores()
    if report["load_average"]["before"][0] > 0.5:
        print(f"The machine was at work before (load {load:.1f} on {cores} cores): trust the ratios, not the times.")


def main() -> None:
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before torch is imported
    with contextlib.ExitStack() as stack:
        tasks, base_dir = chosen_tasks(arguments, stack)
        report = asyncio.run(measure(arguments, tasks, base_dir))
    print_table(report)
    if arguments.output:
        run_folder.write_json(arguments.output, report)
        print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
