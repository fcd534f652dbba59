"""What `agentic sft` works on: options with their defaults filled in, the base model, the places it writes to."""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.config import SftConfig
from agentic.errors import UserError
from agentic.model.fetch import resolve
from agentic.train import documented
from agentic.train.adapter import Adapter, adapter_of, tokenizer_folder
from agentic.train.checkpoints import Checkpoints

LENGTH = 2048
"""Tokens of an example, and of a batch, where no profile says otherwise."""
_TRACKERS = {"trackio": "trackio", "wandb": "wandb", "swanlab": "swanlab", "tensorboard": "tensorboard"}


@dataclass(frozen=True)
class Options(SftConfig):
    """SftConfig without open defaults."""

    output_dir: Path = Path()
    lora_rank: int = 0
    learning_rate: float = 0.0
    tokens_per_batch: int = LENGTH
    max_length: int = LENGTH


@dataclass(frozen=True)
class Base:
    """The model that is trained."""

    name: str
    """As the model card names it."""
    folder: str | None
    """transformers folder; None for SearchLM weights."""
    tokenizer: Any
    adapter: Adapter | None = None
    searchlm: Any = None
    """SearchLMConfig, for SearchLM weights."""
    weight: str = ""
    """Name of the SearchLM weights."""
    weight_dir: Path = Path()


@dataclass(frozen=True)
class Job:
    """One training."""

    options: Options
    base: Base
    store: Checkpoints
    light_weights: Path | None
    """SearchLM's weight file, written at every save."""

    @property
    def how_to_go_on(self) -> str:
        return "--from_resume 1" if self.light_weights else "--resume_from_checkpoint"

    @property
    def how_to_begin_anew(self) -> str:
        return "name another --save_weight" if self.light_weights else "name another --output_dir"


def prepare(config: SftConfig) -> Job:
    """Check the options and find the model; nothing is written. Raises UserError with the remedy."""
    check_options(config)
    return _documented_job(config) if config.from_weight is not None else _folder_job(config)


def check_options(config: SftConfig) -> None:
    numbers = ("gradient_accumulation_steps", "per_device_train_batch_size", "save_steps", "logging_steps")
    for name in (*numbers, "tokens_per_batch", "max_length"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be at least 1, not {value}")
    for name in ("stream_above_mb", "dataloader_num_workers", "warmup_steps"):
        if getattr(config, name) < 0:
            raise UserError(f"--{name} must be 0 or more, not {getattr(config, name)}")
    for name in ("max_minutes", "num_train_epochs"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise UserError(f"--{name} must be positive, not {value}")
    if config.lora_rank is not None and config.lora_rank < 0:
        raise UserError(f"--lora_rank must be 0 (all weights) or more, not {config.lora_rank}")
    check_tracker(config.report_to)
    from transformers import SchedulerType

    names = [item.value for item in SchedulerType]
    if config.lr_scheduler_type not in names:
        raise UserError(f"--lr_scheduler_type {config.lr_scheduler_type}: choose one of {', '.join(names)}")


def check_tracker(name: str) -> None:
    """Raise UserError for a tracker that is unknown or not installed."""
    if name == "none":
        return
    if name not in _TRACKERS:
        raise UserError(f"--report_to {name}: choose one of none, {', '.join(_TRACKERS)}")
    if importlib.util.find_spec(_TRACKERS[name]) is None:
        raise UserError(f"--report_to {name}: the package is not installed; pip install {_TRACKERS[name]}")


def _filled(config: SftConfig, **values: Any) -> Options:
    """Options of `config`; `values` stand in for those that it leaves open."""
    given: dict[str, Any] = {field.name: getattr(config, field.name) for field in dataclasses.fields(SftConfig)}
    return Options(**(given | {name: value for name, value in values.items() if given[name] is None}))


def _folder_job(config: SftConfig) -> Job:
    import transformers

    options = _filled(
        config,
        output_dir=Path("runs/sft"),
        lora_rank=32,
        learning_rate=1e-3,
        tokens_per_batch=LENGTH,
        max_length=LENGTH,
    )
    folder = resolve(options.model_name_or_path)
    adapter = adapter_of(folder, options.lora_rank)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder(folder, adapter))
    base = Base(adapter.base_name if adapter else options.model_name_or_path, folder, tokenizer, adapter)
    return Job(options, base, Checkpoints(options.output_dir), None)


def _documented_job(config: SftConfig) -> Job:
    from agentic.model.searchlm.configuration import TRAINING_LENGTH, fitted_config

    if config.save_weight == config.from_weight:
        raise UserError(f"--save_weight {config.save_weight} would overwrite --from_weight; name another")
    tokenizer = documented.load_tokenizer(config.tokenizer)
    about = fitted_config(config.model_profile, len(tokenizer))
    weights = documented.find_weight(str(config.from_weight), config.save_dir, about)
    places = documented.places(config.save_weight, config.save_dir, about)
    length = TRAINING_LENGTH[config.model_profile]
    options = _filled(
        config, output_dir=places.run, lora_rank=0, learning_rate=1e-5, tokens_per_batch=length, max_length=length
    )
    base = Base(weights.name, None, tokenizer, None, about, str(config.from_weight), config.save_dir)
    return Job(options, base, places.checkpoints, places.weights)


def load_model(base: Base, dtype: Any, attention: str) -> Any:
    """The base model with the attention implementation `attention`, its weights in `dtype` (SearchLM: float32)."""
    from transformers import AutoModelForCausalLM

    if base.searchlm is not None:
        model: Any = documented.load_weight(base.weight, base.weight_dir, base.searchlm)
        model.set_attn_implementation(attention)
    else:
        folder = base.adapter.base_folder if base.adapter else base.folder
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    return model


def lora(base: Base, rank: int, model: Any) -> tuple[Any, Any]:
    """(model, LoRA configuration for the trainer): an adapter that is trained on is put onto the model here."""
    from peft import LoraConfig, PeftModel

    if base.adapter:
        model = PeftModel.from_pretrained(model, base.adapter.folder, is_trainable=True)
        # A name that is no folder would be looked up on the hub at every checkpoint.
        model.peft_config["default"].base_model_name_or_path = base.adapter.base_folder
        return model, None
    if not rank:
        return model, None
    return model, LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
