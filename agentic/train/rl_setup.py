"""What `agentic train` works on: options with their defaults filled in, the base model, the places it writes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.config import TrainConfig
from agentic.errors import UserError
from agentic.model.fetch import resolve
from agentic.train import documented
from agentic.train.adapter import adapter_of, tokenizer_folder
from agentic.train.checkpoints import Checkpoints
from agentic.train.rl_tasks import Source
from agentic.train.setup import Base, check_tracker


@dataclass(frozen=True)
class TrainOptions(TrainConfig):
    """TrainConfig without open defaults."""

    output_dir: Path = Path()


@dataclass(frozen=True)
class Setup:
    """One training."""

    options: TrainOptions
    base: Base
    store: Checkpoints
    light_weights: Path | None
    """SearchLM's weight file, written at every save."""

    @property
    def how_to_go_on(self) -> str:
        return "--from_resume 1" if self.light_weights else "--resume"

    @property
    def how_to_begin_anew(self) -> str:
        return "name another --save_weight" if self.light_weights else "name another --output_dir"


def prepare(config: TrainConfig) -> Setup:
    """Find the model and the places; nothing is written. Raises UserError with the remedy."""
    import transformers

    if config.from_weight is not None:
        return _documented(config)
    options = _filled(config, Path("runs/train"))
    name = options.model_name_or_path or "smollm2"
    folder = resolve(name)
    adapter = adapter_of(folder, options.lora_rank)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder(folder, adapter))
    base = Base(adapter.base_name if adapter else name, folder, tokenizer, adapter)
    return Setup(options, base, Checkpoints(options.output_dir), None)


def _documented(config: TrainConfig) -> Setup:
    from agentic.model.searchlm.configuration import fitted_config

    if config.save_weight == config.from_weight:
        raise UserError(f"--save_weight {config.save_weight} would overwrite --from_weight; name another")
    tokenizer = documented.load_tokenizer(config.tokenizer)
    about = fitted_config(config.model_profile, len(tokenizer))
    weights = documented.find_weight(str(config.from_weight), config.save_dir, about)
    places = documented.places(config.save_weight, config.save_dir, about)
    base = Base(weights.name, None, tokenizer, None, about, str(config.from_weight), config.save_dir)
    return Setup(_filled(config, places.run), base, places.checkpoints, places.weights)


def _filled(config: TrainConfig, output_dir: Path) -> TrainOptions:
    given: dict[str, Any] = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    given["output_dir"] = given["output_dir"] or output_dir
    return TrainOptions(**given)


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
    for name in ("temperature", "deadline_s", "learning_rate", "sft_learning_rate", "max_minutes", "num_train_epochs"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise UserError(f"--{name} must be above 0, found {value}")
    if config.num_generations < 2 and config.strategy != "sft":
        raise UserError("--num_generations must be at least 2: a sample is judged against the others of its group")
    if config.save_steps % config.num_iterations:
        raise UserError("--save_steps must be a multiple of --num_iterations: rollouts are not part of a checkpoint")
    if config.max_steps > 0 and config.max_steps % config.num_iterations:
        raise UserError("--max_steps must be a multiple of --num_iterations: a run ends with its rollouts used up")
    if config.from_weight and config.model_name_or_path:
        raise UserError("choose one of --model_name_or_path and --from_weight")
    if config.from_weight and config.lora_rank:
        raise UserError("--from_weight trains all weights; leave out --lora_rank")
    check_tracker(config.report_to)
    from transformers import SchedulerType

    names = [item.value for item in SchedulerType]
    if config.lr_scheduler_type not in names:
        raise UserError(f"--lr_scheduler_type {config.lr_scheduler_type}: choose one of {', '.join(names)}")


def check_expert(config: TrainConfig, sources: Sequence[Source]) -> None:
    """Raise UserError where the strategy needs expert trajectories and there is none."""
    if config.strategy != "rl" and not any(source.task.expert_trajectory for source in sources):
        raise UserError(
            f"{', '.join(map(str, config.data_path))}: no task has an expert trajectory, which --strategy "
            f"{config.strategy} trains on; use --strategy rl, or build tasks with agentic build"
        )
