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
from agentic.model.fetch import resolve
from agentic.model.quiet import quiet_libraries
from agentic.policy.hf import set_threads
from agentic.train import runlog
from agentic.train.adapter import adapter_of, tokenizer_folder
from agentic.train.checkpoints import Checkpoints
from agentic.train.documented import at_root, places
from agentic.train.launch import autocast_type, deepspeed_config, first_process_does, say
from agentic.train.rl_job import Job
from agentic.train.rl_tasks import Source, read_sources

# What a resumed run may be told anew: where it lies, how far it goes, how often it reports.
_MAY_CHANGE = frozenset(
    (
        *("data_path", "output_dir", "resume_from_checkpoint", "dry_run", "report_to", "dev_data"),
        *("max_steps", "max_minutes", "num_train_epochs", "save_steps", "save_total_limit", "sample_steps"),
    )
)


def run(config: TrainConfig) -> int:
    """Train; 0 when done, 130 when interrupted (resumable). Raises UserError for bad options, data or models."""
    try:
        import peft  # noqa: F401
        import transformers
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtra("agentic train", "train") from None
    quiet_libraries()
    check_options(config)
    set_threads()
    sources = read_sources(config.data_path)
    dev = read_sources([config.dev_data])[: config.dev_tasks] if config.dev_data else []
    _check_expert(config, sources)
    dtype = autocast_type(config.dtype)
    prompts_here = config.batch_size * config.accumulation_steps
    if config.dry_run:
        _say_plan(config, sources, dev, prompts_here, total_steps(config, len(sources), prompts_here))
        return 0
    from agentic.train.rl_model import arguments

    deepspeed = deepspeed_config(str(config.deepspeed) if config.deepspeed else "auto")
    world = _world()
    steps = total_steps(config, len(sources), prompts_here * world)
    args = arguments(config, dtype, deepspeed, steps)
    folder = first_process_does(lambda: _model_folder(config))
    adapter = adapter_of(folder, config.lora_rank)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder(folder, adapter))
    renderer = Renderer(tokenizer)
    _say_plan(config, sources, dev, prompts_here * args.world_size, steps)
    facts = {
        "data_hash": runlog.data_hash([*config.data_path, *([config.dev_data] if config.dev_data else [])]),
        "template_hash": renderer.template_hash,
        "end_ids": renderer.end_ids,
    }
    store = _store(config, folder)
    checkpoint = first_process_does(lambda: prepare_folder(config, store, {**facts, "processes": args.world_size}))
    job = Job(config, args, folder, adapter, renderer, facts, store, checkpoint, sources, dev, dtype)
    return job.train()


def check_options(config: TrainConfig) -> None:
    """Raise UserError for a value that no run can use."""
    positive = (
        *("num_generations", "batch_size", "accumulation_steps", "max_turns", "max_new_tokens", "max_total_tokens"),
        *("rollout_batch_size", "num_iterations", "tokens_per_batch", "max_length", "dev_tasks", "dev_samples"),
        *("eval_steps", "save_steps", "sample_steps"),
    )
    for name in positive:
        if getattr(config, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(config, name)}")
    for name in ("max_resamples", "lora_rank", "warmup_steps", "importance_cap", "epsilon_low", "epsilon_high"):
        if getattr(config, name) < 0:
            raise UserError(f"--{name} must not be below 0, found {getattr(config, name)}")
    for name in ("gamma_start", "gamma_end", "sft_share"):
        if not 0 <= getattr(config, name) <= 1:
            raise UserError(f"--{name} must lie between 0 and 1, found {getattr(config, name)}")
    for name in ("temperature", "deadline_s", "learning_rate"):
        if getattr(config, name) <= 0:
            raise UserError(f"--{name} must be above 0, found {getattr(config, name)}")
    if config.max_minutes is not None and config.max_minutes <= 0:
        raise UserError(f"--max_minutes must be positive, not {config.max_minutes}")
    if config.num_generations < 2 and config.strategy != "sft":
        raise UserError("--num_generations must be at least 2: a sample is judged against the others of its group")
    if config.save_steps % config.num_iterations:
        raise UserError("--save_steps must be a multiple of --num_iterations: rollouts are not part of a checkpoint")
    if config.from_weight and config.model_name_or_path:
        raise UserError("choose one of --model_name_or_path and --from_weight")
    from transformers import SchedulerType

    names = [item.value for item in SchedulerType]
    if config.lr_scheduler_type not in names:
        raise UserError(f"--lr_scheduler_type {config.lr_scheduler_type}: choose one of {', '.join(names)}")


def _check_expert(config: TrainConfig, sources: Sequence[Source]) -> None:
    if config.strategy != "rl" and not any(source.task.expert_trajectory for source in sources):
        raise UserError(
            f"{', '.join(map(str, config.data_path))}: no task has an expert trajectory, which --strategy "
            f"{config.strategy} trains on; use --strategy rl, or build tasks with agentic build"
        )


def total_steps(config: TrainConfig, tasks: int, prompts: int) -> int:
    """Optimizer steps of the run, by --max_steps or by epochs of `tasks`."""
    if config.max_steps > 0:
        return config.max_steps
    return max(1, round(-(-tasks // prompts) * config.num_train_epochs)) * config.num_iterations


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _say_plan(config: TrainConfig, sources: Sequence[Source], dev: Sequence[Source], prompts: int, steps: int) -> None:
    with_expert = sum(bool(source.task.expert_trajectory) for source in sources)
    say(
        f"{len(sources)} tasks ({with_expert} with an expert trajectory), {len(dev)} dev tasks; {steps} steps"
        + (f" or {config.max_minutes:g} minutes" if config.max_minutes is not None else "")
        + f", {prompts} tasks a step"
        + ("" if config.strategy == "sft" else f" x {config.num_generations} samples, {config.loss_type}")
        + f", {config.strategy}"
    )


def _model_folder(config: TrainConfig) -> str:
    if config.from_weight:
        from agentic.model.searchlm.commands import folder_of_weight

        save_dir, tokenizer = at_root(config.save_dir), at_root(config.tokenizer)
        return str(folder_of_weight(config.from_weight, save_dir, config.model_profile, tokenizer))
    return resolve(config.model_name_or_path or "smollm2")


def _store(config: TrainConfig, folder: str) -> Checkpoints:
    """Where full states lie: in the run folder, or under the documented names with --save_weight."""
    if not config.save_weight:
        return Checkpoints(config.output_dir)
    return places(config.save_weight, config.save_dir, _searchlm_config(config, folder)).checkpoints


def _searchlm_config(config: TrainConfig, folder: str) -> Any:
    from transformers import AutoConfig

    from agentic.model.searchlm import register

    register()
    about = AutoConfig.from_pretrained(folder)
    if about.model_type != "searchlm" or config.lora_rank:
        raise UserError(f"--save_weight writes SearchLM weights trained in full; {folder} is a {about.model_type} model"
                        + (" with an adapter" if config.lora_rank else ""))  # fmt: skip
    return about


def prepare_folder(config: TrainConfig, store: Checkpoints, facts: dict[str, Any]) -> Path | None:
    """Make the run folder and find the checkpoint to continue from (None: start anew)."""
    output = config.output_dir
    shutil.rmtree(store.staging, ignore_errors=True)  # left by a run that was killed while saving
    logs = [output / name for name in (run_folder.METRICS, "samples.jsonl")]
    if not config.resume_from_checkpoint:
        if store.all() or (output / "final").exists():
            raise UserError(f"{output}: holds a run already; add --resume to continue it, or name another --output_dir")
        run_folder.open_run(output, config, "train", facts=facts, restart=True)
        for path in logs:
            path.unlink(missing_ok=True)
        return None
    if store.newest_whole()[0] is not None:
        if not (output / run_folder.CONFIG).exists():
            raise UserError(
                f"{output}: has no {run_folder.CONFIG} that says what its run is; name another --output_dir"
            )
        run_folder.open_run(output, config, "train", _MAY_CHANGE, facts=facts)
    checkpoint = store.resumable("start without --resume", say)
    for path in logs:
        runlog.repair_tail(path)
        runlog.cut_metrics(path, store.step(checkpoint) or 0)
    say(f"resuming from {checkpoint}")
    return checkpoint
