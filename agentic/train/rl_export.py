"""Model folders of an RL run: final/ and best/, which transformers or peft load, with template and card."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic import run_folder
from agentic.model.card import write_card
from agentic.model.chat import Renderer
from agentic.train.adapter import halve_adapter
from agentic.train.rl_setup import Setup


@dataclass(frozen=True)
class Exporter:
    """Writes the trainer's weights as they are now. Every process calls it; the first one writes."""

    setup: Setup
    renderer: Renderer
    facts: dict[str, Any]
    tools: list[dict[str, Any]]
    """Schemas of the tools that the tasks offer."""
    tasks: int

    def __call__(self, trainer: Any, folder: Path, scores: dict[str, str] | None = None) -> None:
        """Write `folder`, whole or not at all; one that is there is replaced."""
        state = trainer.gathered_state()
        if not trainer.is_world_process_zero():
            return
        config, base = self.setup.options, self.setup.base
        model = trainer.accelerator.unwrap_model(trainer.model)
        staging = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(staging, ignore_errors=True)
        with _for_inference(model, base.name):
            model.save_pretrained(staging, state_dict=state)
        if config.lora_rank:
            halve_adapter(staging / "adapter_model.safetensors")
        self.renderer.tokenizer.save_pretrained(staging)
        model.generation_config.save_pretrained(staging)
        machine, git = run_folder.machine(), run_folder.git_state()
        algorithm = "" if config.strategy == "sft" else f", {config.loss_type}, G = {config.num_generations}"
        kind = f"LoRA, rank {config.lora_rank}, all linear layers" if config.lora_rank else "full fine-tuning"
        start = config.model_name_or_path if base.adapter else None
        write_card(
            staging,
            **self.facts,
            name=config.output_dir.resolve().name,
            trainer="agentic train",
            base_model=base.name,
            method=f"{kind}; {config.strategy}{algorithm}" + (f", continued from {start}" if start else ""),
            command=shlex.join(["agentic", *sys.argv[1:]]),
            data=[path.name for path in config.data_path],
            examples=self.tasks,
            trained_tokens=trainer.tokens_trained,
            steps=trainer.state.global_step,
            seed=config.seed,
            hours=round(trainer.elapsed_s / 3600, 3),
            machine=", ".join([machine["cpu"], f"{machine['cores']} cores", *machine["gpus"]]),
            tools=self.tools,
            versions=run_folder.versions(),
            git_commit=git["commit"] + ("+" if git["dirty"] else "") if git and git["commit"] else None,
            **({"scores": scores} if scores else {}),
        )
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)


@contextmanager
def _for_inference(model: Any, base_name: str) -> Iterator[None]:
    """The configuration that a saved folder is to have; training goes on with its own afterwards."""
    before = (model.config.use_cache, model.config._attn_implementation)
    peft = getattr(model, "peft_config", {}).get("default")
    base_before = peft.base_model_name_or_path if peft else None
    model.config.use_cache, model.config._attn_implementation = True, "sdpa"
    if peft:
        peft.base_model_name_or_path = base_name
    try:
        yield
    finally:
        model.config.use_cache, model.config._attn_implementation = before
        if peft:
            peft.base_model_name_or_path = base_before
