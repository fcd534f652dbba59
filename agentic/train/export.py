"""The model folders of a training: transformers or peft loads them, with template, generation config and card."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic import run_folder
from agentic.config import SftConfig, TrainConfig
from agentic.model.card import write_card
from agentic.model.chat import Renderer
from agentic.train.adapter import halve_adapter
from agentic.train.setup import Base

if TYPE_CHECKING:
    from agentic.train.trainer import PackedTrainer


def export(
    folder: Path,
    trainer: PackedTrainer,
    renderer: Renderer,
    base: Base,
    options: SftConfig | TrainConfig,
    method: str = "",
    **card: Any,
) -> None:
    """Write the weights as they are now into `folder`, whole or not at all; one that is there is replaced.

    Every process must call it; training may go on afterwards. `method` is put behind LoRA or full fine-tuning; `card`
    are the facts that only the caller knows.
    """
    state = trainer.gathered_state()
    if not trainer.is_world_process_zero():
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    rank = options.lora_rank
    with _for_inference(model, base.name):
        # peft would look for the base model's configuration to see whether the embedding was enlarged; it never is.
        model.save_pretrained(staging, state_dict=state, **({"save_embedding_layers": False} if rank else {}))
        model.generation_config.save_pretrained(staging)
    if rank:
        halve_adapter(staging / "adapter_model.safetensors")
    renderer.tokenizer.save_pretrained(staging)
    machine, git = run_folder.machine(), run_folder.git_state()
    kind = f"LoRA, rank {rank}, all linear layers" if rank else "full fine-tuning"
    write_card(
        staging,
        name=folder.parent.resolve().name,
        base_model=base.name,
        method=kind + method + (f", continued from {options.model_name_or_path}" if base.adapter else ""),
        command=shlex.join(["agentic", *sys.argv[1:]]),
        data=[path.name for path in options.data_path],
        trained_tokens=trainer.tokens_trained,
        steps=trainer.state.global_step,
        seed=options.seed,
        hours=round(trainer.elapsed_s / 3600, 3),
        machine=", ".join([machine["cpu"], f"{machine['cores']} cores", *machine["gpus"]]),
        versions=run_folder.versions(),
        git_commit=git["commit"] + ("+" if git["dirty"] else "") if git and git["commit"] else None,
        **card,
    )
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)


@contextmanager
def _for_inference(model: Any, base_name: str) -> Iterator[None]:
    """The configuration that a saved folder is to have; training goes on with its own."""
    peft = getattr(model, "peft_config", {}).get("default")
    before = (model.config.use_cache, model.config._attn_implementation, peft and peft.base_model_name_or_path)
    model.config.use_cache, model.config._attn_implementation = True, "sdpa"
    if peft:
        peft.base_model_name_or_path = base_name
    try:
        yield
    finally:
        model.config.use_cache, model.config._attn_implementation = before[:2]
        if peft:
            peft.base_model_name_or_path = before[2]
