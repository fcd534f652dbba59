"""Options of the commands that train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentic.config.checks import check_files


@dataclass(frozen=True)
class SftConfig:
    """Supervised fine-tuning on agent tokens only (TRL's SFTTrainer)."""

    data_path: tuple[Path, ...]
    """SFT files (messages or conversations form)."""
    output_dir: Path
    """Run folder: checkpoints, metrics.jsonl, the resolved configuration, the final model folder `final/`."""
    model_name_or_path: str = "smollm2"
    """Base model: smollm2, a local folder, or a Hugging Face id. An adapter (a folder, or `default`) is trained on."""
    lora_rank: int = 32
    """LoRA rank on all linear layers; 0 trains all weights. An adapter that is trained on keeps its own."""
    learning_rate: float = 1e-3
    """Peak learning rate (1e-3 suits LoRA, 2e-4 full fine-tuning of a small model)."""
    lr_scheduler_type: str = "linear"
    """Any schedule name of transformers."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    num_train_epochs: float = 1.0
    """Passes over the data."""
    max_steps: int = -1
    """Stop after this many optimizer steps (-1: by epochs)."""
    max_minutes: float | None = None
    """Stop cleanly, with a checkpoint, after this many minutes; the schedule is fitted to the time."""
    tokens_per_batch: int = 2048
    """Token budget of one forward pass (packed by length, shared prompts stored once)."""
    gradient_accumulation_steps: int = 1
    """Forward passes per optimizer step."""
    max_length: int = 2048
    """Longer examples are dropped and counted."""
    share_prefix: bool = True
    """Pack examples that share a prompt prefix (same tables) into one row with a block mask: same loss, less compute."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Autocast type; auto is bfloat16 where the processor or GPU has it, else float32."""
    save_steps: int = 200
    """Checkpoint every this many optimizer steps."""
    save_total_limit: int = 2
    """Checkpoints kept."""
    logging_steps: int = 10
    """Progress line and metrics.jsonl row every this many steps."""
    resume_from_checkpoint: bool = False
    """Continue from the newest whole checkpoint in output_dir."""
    seed: int = 0
    """Seed of initialisation and order."""
    report_to: str = "none"
    """Trackers of transformers: none, trackio, wandb, swanlab, tensorboard."""
    dry_run: bool = False
    """Resolve, tokenise, print the plan, train nothing."""

    def __post_init__(self) -> None:
        check_files(self.data_path, " after --data_path")
