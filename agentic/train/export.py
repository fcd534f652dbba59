"""The final model folder of a training: transformers or peft loads it, with template, generation config and card."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

from agentic import run_folder
from agentic.model.card import write_card
from agentic.model.chat import Renderer
from agentic.train.adapter import halve_adapter
from agentic.train.corpus import Batches
from agentic.train.launch import say
from agentic.train.setup import Job

if TYPE_CHECKING:
    from agentic.train.trainer import PackedTrainer


def export(job: Job, trainer: PackedTrainer, renderer: Renderer, batches: Batches, facts: dict[str, Any]) -> None:
    """Write final/ in the run folder, whole or not at all. Every process must call it."""
    state = trainer.gathered_state()
    if not trainer.is_world_process_zero():
        return
    options, base = job.options, job.base
    model = trainer.accelerator.unwrap_model(trainer.model)
    final = options.output_dir / "final"
    staging = options.output_dir / f".final.{os.getpid()}"
    model.config.use_cache = True
    model.config._attn_implementation = "sdpa"
    if options.lora_rank:
        model.peft_config["default"].base_model_name_or_path = base.name
    model.save_pretrained(staging, state_dict=state)
    if options.lora_rank:
        halve_adapter(staging / "adapter_model.safetensors")
    renderer.tokenizer.save_pretrained(staging)
    model.generation_config.save_pretrained(staging)
    machine, git = run_folder.machine(), run_folder.git_state()
    method = f"LoRA, rank {options.lora_rank}, all linear layers" if options.lora_rank else "full fine-tuning"
    write_card(
        staging,
        **facts,
        name=options.output_dir.resolve().name,
        base_model=base.name,
        method=method + (f", continued from {options.model_name_or_path}" if base.adapter else ""),
        command=shlex.join(["agentic", *sys.argv[1:]]),
        data=[path.name for path in options.data_path],
        examples=batches.examples,
        trained_tokens=trainer.tokens_trained,
        steps=trainer.state.global_step,
        seed=options.seed,
        hours=round(trainer.elapsed_s / 3600, 3),
        machine=", ".join([machine["cpu"], f"{machine['cores']} cores", *machine["gpus"]]),
        tools=batches.tools,
        versions=run_folder.versions(),
        git_commit=git["commit"] + ("+" if git["dirty"] else "") if git and git["commit"] else None,
    )
    shutil.rmtree(final, ignore_errors=True)
    staging.rename(final)
    say(f"wrote {final}")
