"""The model that `agentic train` trains, and the Trainer's arguments. Imports torch, peft and trl inside functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentic.model.chat import Renderer
from agentic.policy.hf import sampling_dtype
from agentic.train.launch import STARTUP_S, deepspeed_config
from agentic.train.rl_setup import Setup, TrainOptions
from agentic.train.setup import load_model, lora

if TYPE_CHECKING:
    import torch


def arguments(options: TrainOptions, dtype: str, max_steps: int) -> Any:
    """TRL's arguments. With several processes this also makes the process group, and DeepSpeed's loading hooks."""
    import torch
    from trl import SFTConfig as TrlConfig

    return TrlConfig(
        output_dir=str(options.output_dir),
        per_device_train_batch_size=1,  # the data loader only counts steps
        gradient_accumulation_steps=1,  # a step makes its own micro-batches
        learning_rate=options.learning_rate,
        lr_scheduler_type=options.lr_scheduler_type,
        warmup_steps=options.warmup_steps,
        max_grad_norm=options.max_grad_norm,
        max_steps=max_steps,
        logging_steps=1,
        save_strategy="steps",
        save_steps=options.save_steps,
        save_total_limit=options.save_total_limit,
        seed=options.seed,
        report_to=options.report_to,
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        use_cpu=not torch.cuda.is_available(),
        deepspeed=deepspeed_config(options.deepspeed),
        ddp_find_unused_parameters=False,
        ddp_timeout=STARTUP_S,  # also for the rollouts of the slowest process
        activation_checkpointing=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        disable_tqdm=True,
    )


def load_trainable(setup: Setup, renderer: Renderer, bfloat16: bool) -> tuple[Any, Any]:
    """(model, LoRA configuration for the trainer), with one end token everywhere."""
    import torch

    from agentic.train import attention

    tokenizer = renderer.tokenizer
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(renderer.end_ids[0])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Frozen weights need no float32 master copy; what is trained stays float32.
    frozen = torch.bfloat16 if setup.options.lora_rank and bfloat16 else torch.float32
    model = load_model(setup.base, frozen, attention.NAME)
    model.config.use_cache = False
    model.generation_config.eos_token_id = renderer.end_ids
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return lora(setup.base, setup.options.lora_rank, model)


def load_copy(setup: Setup, dtype: str) -> torch.nn.Module:
    """The base model without adapters in the type that samples, for the weights to be copied into."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    number_type = sampling_dtype(dtype, device)
    with unsharded():
        model: torch.nn.Module = load_model(setup.base, number_type, "sdpa")
    return model.to(device=device, dtype=number_type).eval()


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
