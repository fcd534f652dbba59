"""The model that `agentic train` trains, and the Trainer's arguments. Imports torch, peft and trl inside functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentic.config import TrainConfig
from agentic.model.chat import Renderer
from agentic.model.searchlm import register as register_searchlm
from agentic.train.adapter import Adapter


@dataclass
class Trainable:
    """A model to train, and how."""

    model: Any
    peft_config: Any
    """Of an adapter that the Trainer is to put on; None without one, or when the model has it already."""


def arguments(config: TrainConfig, dtype: str, deepspeed: str | None, max_steps: int) -> Any:
    """transformers' arguments. Made before the model: they start the process group and DeepSpeed's loading hooks."""
    import torch
    from trl import SFTConfig as TrlConfig

    return TrlConfig(
        output_dir=str(config.output_dir),
        per_device_train_batch_size=1,  # the data loader only counts steps
        gradient_accumulation_steps=1,  # a step makes its own micro-batches
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_steps,
        max_grad_norm=config.max_grad_norm,
        max_steps=max_steps,
        logging_steps=1,
        save_strategy="steps",
        save_steps=config.save_steps,
        save_total_limit=config.save_total_limit,
        seed=config.seed,
        report_to=config.report_to,
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        use_cpu=not torch.cuda.is_available(),
        deepspeed=deepspeed,
        ddp_timeout=12 * 3600,  # rollouts of the slowest process
        ignore_data_skip=True,
        activation_checkpointing=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        disable_tqdm=True,
    )


def load_trainable(folder: str, adapter: Adapter | None, lora_rank: int, dtype: str, renderer: Renderer) -> Trainable:
    """The model of `folder` (or the adapter's base with the adapter), with one end token everywhere."""
    import torch
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM

    from agentic.train import attention

    register_searchlm()
    tokenizer = renderer.tokenizer
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(renderer.end_ids[0])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Frozen weights need no float32 master copy; what is trained stays float32.
    frozen = torch.bfloat16 if lora_rank and dtype == "bfloat16" else torch.float32
    base_folder = adapter.base_folder if adapter else folder
    model: Any = AutoModelForCausalLM.from_pretrained(base_folder, dtype=frozen, attn_implementation=attention.NAME)
    model.config.use_cache = False
    model.generation_config.eos_token_id = renderer.end_ids
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if adapter:
        model = PeftModel.from_pretrained(model, adapter.folder, is_trainable=True)
        # A name that is no folder would be looked up on the hub at every checkpoint.
        model.peft_config["default"].base_model_name_or_path = adapter.base_folder
        return Trainable(model, None)
    lora = None
    if lora_rank:
        lora = LoraConfig(
            r=lora_rank,
            lora_alpha=2 * lora_rank,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
    return Trainable(model, lora)


@contextmanager
def unsharded() -> Iterator[None]:
    """Models loaded within this context are whole, also while DeepSpeed's ZeRO-3 shards others on loading."""
    from transformers.integrations import deepspeed

    held = getattr(deepspeed, "_hf_deepspeed_config_weak_ref", None)
    current = held() if held is not None else None
    if current is None:
        yield
        return
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed.set_hf_deepspeed_config(current)
