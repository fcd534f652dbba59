"""`agentic train`: reinforcement learning on the agent's own rollouts, alone, after SFT, or mixed with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic import run_folder
from agentic.config import TrainConfig
from agentic.errors import MissingExtra, UserError
from agentic.model.chat import Renderer
from agentic.model.quiet import quiet_libraries
from agentic.model.searchlm import register as register_searchlm
from agentic.policy.hf import set_threads
from agentic.train import runlog
from agentic.train.launch import autocast_type, first_process_does, first_process_speaks, say
from agentic.train.rl_job import Job
from agentic.train.rl_setup import Setup, check_expert, check_options, prepare
from agentic.train.rl_tasks import Source, read_sources

SAMPLES = "samples.jsonl"
# What a resumed run may be told anew: where it lies, how far it goes, how often it reports.
_MAY_CHANGE = frozenset(
    (
        *("data_path", "output_dir", "resume_from_checkpoint", "dry_run", "report_to", "dev_data", "local_rank"),
        *("max_steps", "max_minutes", "num_train_epochs", "save_steps", "save_total_limit", "sample_steps"),
    )
)


def run(config: TrainConfig) -> int:
    """Train; 0 when done, 130 when interrupted (resumable). Raises UserError for bad options, data or models."""
    try:
        import peft  # noqa: F401
        import transformers  # noqa: F401
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtra("agentic train", "train") from None
    quiet_libraries()
    check_options(config)
    set_threads()
    register_searchlm()
    with first_process_speaks():
        return _run(config)


def _run(config: TrainConfig) -> int:
    sources = read_sources(config.data_path)
    dev = read_sources([config.dev_data])[: config.dev_tasks] if config.dev_data else []
    check_expert(config, sources)
    setup = prepare(config)
    options = setup.options
    prompts = options.batch_size * options.accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))
    steps = total_steps(options, len(sources), prompts)
    renderer = Renderer(setup.base.tokenizer)
    _say_plan(options, sources, dev, prompts, steps)
    if options.dry_run:
        return 0
    from agentic.train.rl_model import arguments

    args = arguments(options, autocast_type(options.dtype), steps)
    facts = {
        "data_hash": runlog.data_hash([*options.data_path, *([options.dev_data] if options.dev_data else [])]),
        "template_hash": renderer.template_hash,
        "end_ids": renderer.end_ids,
    }
    checkpoint = first_process_does(lambda: open_run(setup, {**facts, "processes": args.world_size}))
    return Job(setup, args, renderer, facts, checkpoint, sources, dev).train()


def total_steps(config: TrainConfig, tasks: int, prompts: int) -> int:
    """Optimizer steps of the run, by --max_steps or by epochs of `tasks`."""
    if config.max_steps > 0:
        return config.max_steps
    return max(1, round(-(-tasks // prompts) * config.num_train_epochs)) * config.num_iterations


def _say_plan(config: TrainConfig, sources: Sequence[Source], dev: Sequence[Source], prompts: int, steps: int) -> None:
    with_expert = sum(bool(source.task.expert_trajectory) for source in sources)
    rollouts = "" if config.strategy == "sft" else f" x {config.num_generations} samples, {config.loss_type}"
    limit = f" or {config.max_minutes:g} minutes" if config.max_minutes is not None else ""
    say(
        f"{len(sources)} tasks ({with_expert} with an expert trajectory), {len(dev)} dev tasks; {steps} steps{limit}, "
        f"{prompts} tasks a step{rollouts}, {config.strategy}"
    )


def open_run(setup: Setup, facts: dict[str, Any]) -> Path | None:
    """Make the run folder and find the checkpoint to continue from (None: start anew)."""
    options, store, output = setup.options, setup.store, setup.options.output_dir
    shutil.rmtree(store.staging, ignore_errors=True)  # left by a run that was killed while saving
    logs = [output / name for name in (run_folder.METRICS, SAMPLES)]
    if not options.resume_from_checkpoint:
        if store.all() or (output / "final").exists():
            where = store.latest.with_name(store.stem) if store.stem else output
            raise UserError(
                f"{where}: holds a run already; add {setup.how_to_go_on} to continue it, or {setup.how_to_begin_anew}"
            )
        run_folder.open_run(output, options, "train", facts=facts, restart=True)
        for path in logs:
            path.unlink(missing_ok=True)
        return None
    if store.newest_whole()[0] is not None:
        if not (output / run_folder.CONFIG).exists():
            raise UserError(
                f"{output}: has no {run_folder.CONFIG} that says what its run is; {setup.how_to_begin_anew}"
            )
        run_folder.open_run(output, options, "train", _MAY_CHANGE, facts=facts)
    checkpoint = store.resumable(f"start without {setup.how_to_go_on}", say)
    for path in logs:
        runlog.repair_tail(path)
        runlog.cut_metrics(path, store.step(checkpoint) or 0)
    say(f"resuming from {checkpoint}")
    return checkpoint
