"""Options of the commands that train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from agentic.config.checks import Switch, check_files
from agentic.errors import UserError


@dataclass(frozen=True)
class SftConfig:
    """Supervised fine-tuning on agent tokens only (TRL's SFTTrainer); one process, or several under torchrun, accelerate
    launch or deepspeed."""

    data_path: tuple[Path, ...]
    """SFT files (messages or conversations form)."""
    output_dir: Path | None = None
    """Run folder: checkpoints, metrics.jsonl, the resolved configuration, the final model folder `final/`. Default runs/sft;
    with --from_weight runs/{save_weight}_{hidden}_mla under the repository root."""
    model_name_or_path: str = "smollm2"
    """Base model: smollm2, a local folder, or a Hugging Face id. An adapter (a folder, or `default`) is trained on."""
    from_weight: str | None = None
    """Train SearchLM from this weight file instead: pretrain_searchlm is {save_dir}/pretrain_searchlm_1024_mla.pth."""
    model_profile: Literal["SearchLM-100M", "SearchLM-300M", "SearchLM-500M", "tiny"] = "SearchLM-300M"
    """Size of the model that --from_weight belongs to."""
    tokenizer: Path = Path("model")
    """Tokenizer folder of --from_weight, relative to the repository root."""
    save_weight: str = "agent_sft"
    """With --from_weight: name of the light weights, {save_dir}/agent_sft_1024_mla.pth, and of the full training states,
    checkpoints/agent_sft_1024_mla_epoch1_step200 (checkpoints/agent_sft_1024_mla_latest names the newest)."""
    save_dir: Path = Path("out")
    """Folder of weight files, relative to the repository root."""
    lora_rank: int | None = None
    """LoRA rank on all linear layers; 0 trains all weights. Default 32, with --from_weight 0. An adapter that is trained on
    keeps its own."""
    learning_rate: float | None = None
    """Peak learning rate. Default 1e-3 (suits LoRA; 2e-4 full fine-tuning of a small model), with --from_weight 1e-5."""
    lr_scheduler_type: str = "linear"
    """Any schedule name of transformers."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    num_train_epochs: Annotated[float, arg(aliases=["--epochs"])] = 1.0
    """Passes over the data."""
    max_steps: int = -1
    """Stop after this many optimizer steps (-1: by epochs)."""
    max_minutes: float | None = None
    """Stop cleanly, with a checkpoint, after this many minutes; the schedule is fitted to the time."""
    tokens_per_batch: int | None = None
    """Token budget of one packed batch (by length, shared prompts stored once). Default 2048, with --from_weight the
    profile's training length."""
    per_device_train_batch_size: Annotated[int, arg(aliases=["--batch_size"])] = 1
    """Packed batches in one forward pass of a device."""
    gradient_accumulation_steps: Annotated[int, arg(aliases=["--accumulation_steps"])] = 1
    """Forward passes per optimizer step, on every device."""
    max_length: Annotated[int | None, arg(aliases=["--max_seq_len"])] = None
    """Longer examples are dropped and counted. Default as --tokens_per_batch."""
    share_prefix: bool = True
    """Pack examples that share a prompt prefix (same tables) into one row with a block mask: same loss, less compute."""
    stream_above_mb: int = 32
    """Larger data is indexed by line and tokenised while training (memory does not grow with the files); smaller data is
    tokenised at the start, which packs it a little tighter. 0 always streams."""
    dataloader_num_workers: Annotated[int, arg(aliases=["--num_workers"])] = 0
    """Processes that tokenise ahead of training, on every device; 0 tokenises between the steps."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Computing type; auto is bfloat16 where the processor or GPU has it, else float32. float16 (with loss scaling) needs a
    GPU; on a CPU it is replaced as auto is, and that is said."""
    deepspeed: str = "auto"
    """zero2, zero3 (files in configs/), a DeepSpeed JSON file, or none; auto is zero2 under the deepspeed launcher."""
    save_steps: Annotated[int, arg(aliases=["--save_interval"])] = 200
    """Checkpoint every this many optimizer steps, and at the end."""
    save_total_limit: int = 2
    """Checkpoints kept."""
    logging_steps: Annotated[int, arg(aliases=["--log_interval"])] = 10
    """Progress line and metrics.jsonl row every this many steps."""
    resume_from_checkpoint: Annotated[Switch, arg(aliases=["--from_resume"])] = False
    """Continue from the newest whole checkpoint of this run; alone or with 1 or 0."""
    seed: int = 0
    """Seed of initialisation and order."""
    report_to: str = "none"
    """Trackers of transformers: none, trackio, wandb, swanlab, tensorboard."""
    dry_run: bool = False
    """Resolve, tokenise, print the plan, train nothing."""
    local_rank: int = -1
    """Set by launchers; not used (they set LOCAL_RANK as well)."""

    def __post_init__(self) -> None:
        check_files(self.data_path, " after --data_path")
        if self.from_weight is not None and self.lora_rank:
            raise UserError("--from_weight trains all weights; leave out --lora_rank")
