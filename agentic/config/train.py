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


@dataclass(frozen=True)
class TrainConfig:
    """Reinforcement learning on the agent's own rollouts, alone or together with SFT on expert trajectories."""

    data_path: Annotated[tuple[Path, ...], arg(aliases=["--data"])]
    """Task files (JSONL); expert trajectories in them serve the SFT term."""
    output_dir: Path | None = None
    """Run folder: metrics.jsonl, samples.jsonl, checkpoints, best/, final/. Default runs/train; with --from_weight
    runs/{save_weight}_{hidden}_mla under the repository root."""
    strategy: Literal["mixed", "sft", "rl", "sft-then-rl"] = "mixed"
    """mixed: gamma * SFT + (1 - gamma) * RL with a falling gamma; rl: rewards alone; sft-then-rl: one after the other."""
    loss_type: Literal["grpo", "cispo", "dapo"] = "grpo"
    """Policy loss: grpo (mean by sequence), dapo (mean by token), cispo (clipped weights, every token keeps a gradient)."""
    model_name_or_path: str | None = None
    """Model to start from: a folder (model or adapter), a Hugging Face id, default, or smollm2 (when nothing is named)."""
    from_weight: str | None = None
    """SearchLM weights to start from, by name: agent_sft is {save_dir}/agent_sft_1024_mla.pth."""
    save_weight: str = "agent_grpo"
    """With --from_weight: name of the light weights, {save_dir}/agent_grpo_1024_mla.pth, and of the full training states,
    checkpoints/agent_grpo_1024_mla_epoch1_step25 (checkpoints/agent_grpo_1024_mla_latest names the newest)."""
    model_profile: Literal["SearchLM-100M", "SearchLM-300M", "SearchLM-500M", "tiny"] = "SearchLM-300M"
    """Size of the model of --from_weight."""
    tokenizer: Path = Path("model")
    """Tokenizer folder of --from_weight, relative to the repository root."""
    save_dir: Path = Path("out")
    """Folder of weight files, relative to the repository root."""
    lora_rank: int = 0
    """LoRA rank on all linear layers; 0 trains all weights. An adapter that is trained on keeps its own."""
    # ------------------------------------------------------------------------------------------- rollouts
    num_generations: int = 6
    """Samples of one task in a group (G)."""
    batch_size: int = 8
    """Tasks of a step on every process, for each accumulation step."""
    accumulation_steps: Annotated[int, arg(aliases=["--gradient_accumulation_steps"])] = 1
    """The tasks of one optimizer step are batch_size * accumulation_steps * processes."""
    temperature: float = 1.0
    """Of sampling; the policy gradient is that of the distribution sampled from."""
    max_turns: int = 8
    """Turns of a trajectory (a task may allow fewer)."""
    max_new_tokens: int = 256
    """Tokens of one turn."""
    max_total_tokens: int = 1024
    """Generated tokens of one trajectory."""
    deadline_s: float = 300.0
    """Seconds of one trajectory; a straggler closes as `deadline`, leaves the loss and holds up nobody."""
    rollout_batch_size: int = 48
    """Trajectories in flight, and rows of the decoding batch."""
    reward: Literal["ops", "paper"] = "ops"
    """Preset of the reward: weighted parts, or 1 falling to 0.5 with length for right, 0 for wrong, -0.1 for malformed."""
    truncated: Literal["keep", "drop"] = "keep"
    """What was cut by a token budget: keep scores it as unfinished, drop takes it out of loss and baseline."""
    max_resamples: int = 1
    """Other tasks tried, at most, in place of one whose samples all got the same reward."""
    advantage_scale: Literal["group", "none"] = "group"
    """Divide advantages by the group's standard deviation, or not (Dr. GRPO)."""
    sampler_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the copy that samples; the loss corrects for the gap to the trained weights."""
    importance_cap: float = 2.0
    """Limit of the importance weight p_trainer / p_sampler of a token; 0 leaves the correction out."""
    deterministic: bool | None = None
    """Rollouts by logical time, the same in every run (unset: on a CPU, where resuming is exact to the last bit)."""
    endpoint: str | None = None
    """Sample from this OpenAI-compatible server instead (token ids and logprobs: vLLM); weights go to it at every step."""
    endpoint_sync: Literal["vllm", "none"] = "vllm"
    """How the server gets the weights: vllm (NCCL), or none (it keeps its own: off-policy, corrected by the weights)."""
    # --------------------------------------------------------------------------------------- optimisation
    gamma_start: float = 0.9
    """mixed: weight of the SFT term at the first step."""
    gamma_end: float = 0.05
    """mixed: its weight at the last step."""
    gamma_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """mixed: how it falls."""
    sft_share: float = 0.3
    """sft-then-rl: share of the steps (or of the time) that SFT gets."""
    num_iterations: int = 1
    """Optimizer steps on the same rollouts; clipping acts from the second on."""
    epsilon_low: float = 0.2
    """Clip range of the ratio below 1."""
    epsilon_high: float = 0.28
    """Clip range of the ratio above 1."""
    learning_rate: float = 1e-5
    """Peak learning rate (1e-5 suits full training of a small model, 1e-4 LoRA)."""
    sft_learning_rate: float | None = None
    """Learning rate of steps that are SFT alone (unset: learning_rate)."""
    lr_scheduler_type: str = "constant_with_warmup"
    """Any schedule name of transformers."""
    warmup_steps: int = 10
    """Steps of linear warm-up."""
    max_grad_norm: float = 1.0
    """Gradient clipping."""
    num_train_epochs: Annotated[float, arg(aliases=["--epochs"])] = 1.0
    """Passes over the tasks."""
    max_steps: int = -1
    """Stop after this many optimizer steps (-1: by epochs)."""
    max_minutes: float | None = None
    """Stop cleanly, with a checkpoint, after this many minutes; the schedules are fitted to the time."""
    tokens_per_batch: int = 4096
    """Token budget of one forward pass (packed by length, shared prompts stored once)."""
    max_length: int = 4096
    """Longer expert trajectories are left out."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Computing type; auto is bfloat16 where the processor or GPU has it, else float32. float16 (with loss scaling) needs a
    GPU; on a CPU it is replaced as auto is, and that is said."""
    deepspeed: str = "auto"
    """zero2, zero3 (files in configs/), a DeepSpeed JSON file, or none; auto is zero2 under the deepspeed launcher."""
    # ----------------------------------------------------------------------------- evaluation, checkpoints
    dev_data: Path | None = None
    """Task file for evaluation during training; best/ holds the weights with the highest success on it."""
    dev_tasks: int = 48
    """The first this many tasks of it."""
    dev_samples: int = 1
    """Samples a dev task at --temperature, beside a greedy one."""
    eval_steps: int = 10
    """Evaluate every this many steps, and before the first."""
    save_steps: Annotated[int, arg(aliases=["--save_interval"])] = 25
    """Checkpoint every this many optimizer steps."""
    save_total_limit: int = 2
    """Checkpoints kept."""
    sample_steps: int = 10
    """Write trajectories with their reward parts to samples.jsonl every this many steps."""
    resume_from_checkpoint: Annotated[Switch, arg(aliases=["--resume", "--from_resume"])] = False
    """Continue from the newest whole checkpoint of this run; alone or with 1 or 0."""
    seed: int = 0
    """Seed of initialisation, order and sampling."""
    report_to: str = "none"
    """Trackers of transformers: none, trackio, wandb, swanlab, tensorboard."""
    dry_run: bool = False
    """Resolve, read, print the plan, train nothing."""
    local_rank: int = -1
    """Set by launchers; not used (they set LOCAL_RANK as well)."""

    def __post_init__(self) -> None:
        check_files(self.data_path, " after --data_path")
        if self.from_weight is not None and self.lora_rank:
            raise UserError("--from_weight trains all weights; leave out --lora_rank")
