"""`agentic sft`: supervised fine-tuning on agent tokens only."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic import run_folder
from agentic.config import SftConfig
from agentic.errors import MissingExtra, UserError
from agentic.formats import iter_examples
from agentic.model.card import write_card
from agentic.model.chat import Renderer
from agentic.model.fetch import resolve
from agentic.model.quiet import quiet_libraries
from agentic.model.searchlm import register as register_searchlm
from agentic.train import runlog
from agentic.train.adapter import Adapter, adapter_of, halve_adapter, tokenizer_folder
from agentic.train.checkpoints import Checkpoints, read_seal
from agentic.train.launch import autocast_type, say
from agentic.train.packing import Row, Tokens, make_batches

if TYPE_CHECKING:
    from agentic.train.trainer import PackedTrainer, Progress

INTERRUPTED = 130
# What a resumed run may be told anew: where it lies, how far it goes, how often it reports. Whatever decides weights,
# batches or the schedule's shape has to be as it was. Of the data the bytes count, not the names.
_MAY_CHANGE = frozenset(
    (
        *("data_path", "output_dir", "resume_from_checkpoint", "dry_run", "report_to"),
        *("max_steps", "max_minutes", "num_train_epochs", "save_steps", "save_total_limit", "logging_steps"),
    )
)


@dataclass(frozen=True)
class Corpus:
    """Tokenised data."""

    examples: list[Tokens]
    tools: list[dict[str, Any]]
    """Schemas of every tool that occurs, by first occurrence."""
    too_long: int
    """Dropped: longer than max_length."""
    untrained: int
    """Dropped: no trained token (all turns have weight 0)."""

    @property
    def tokens(self) -> int:
        return sum(len(example.ids) for example in self.examples)

    @property
    def trained(self) -> int:
        return sum(example.trained for example in self.examples)


def run(config: SftConfig) -> int:
    """Train; 0 when done, 130 when interrupted (resumable). Raises UserError for bad options, data or models."""
    try:
        import peft  # noqa: F401
        import transformers
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtra("agentic sft", "train") from None
    quiet_libraries()
    _check_options(config)
    digest = runlog.data_hash(config.data_path)
    folder = resolve(config.model_name_or_path)
    adapter = adapter_of(folder, config.lora_rank)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder(folder, adapter))
    renderer = Renderer(tokenizer)
    corpus = load_corpus(config.data_path, renderer, config.max_length)
    batches = make_batches(corpus.examples, config.tokens_per_batch, config.share_prefix, config.seed)
    _say_plan(config, corpus, batches)
    if config.dry_run:
        return 0
    facts = {"data_hash": digest, "template_hash": renderer.template_hash, "end_ids": renderer.end_ids}
    checkpoint = _prepare_folder(config, Checkpoints(config.output_dir), facts)
    return _train(config, folder, adapter, renderer, corpus, batches, facts, checkpoint)


# ------------------------------------------------------------------------------------------------ data


def load_corpus(paths: tuple[Path, ...], renderer: Renderer, max_length: int) -> Corpus:
    """Read and tokenise; an example that the template cannot render is named with file and line."""
    examples: list[Tokens] = []
    tools: dict[str, dict[str, Any]] = {}
    dropped: Counter[str] = Counter()
    for path in paths:
        for row in iter_examples(path):
            for tool in row.example.tools:
                tools.setdefault(tool.name, tool.schema())
            encoded = renderer.encode_row(row)
            tokens = Tokens.from_mask(encoded.ids, encoded.mask)
            if not tokens.trained:
                dropped["untrained"] += 1
            elif len(tokens.ids) > max_length:
                dropped["too long"] += 1
            else:
                examples.append(tokens)
    if not examples:
        raise UserError(
            f"{', '.join(map(str, paths))}: no example left to train on ({dropped['too long']} longer than "
            f"{max_length} tokens, {dropped['untrained']} without trained tokens); raise --max_length or look with "
            "agentic data check"
        )
    return Corpus(examples, list(tools.values()), dropped["too long"], dropped["untrained"])


def _say_plan(config: SftConfig, corpus: Corpus, batches: list[list[Row]]) -> None:
    computed = sum(len(row) for batch in batches for row in batch)
    padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
    steps = _total_steps(config, len(batches))
    say(
        f"{len(corpus.examples)} examples, {corpus.tokens} tokens, {corpus.trained} trained "
        f"({corpus.trained / corpus.tokens:.1%}); dropped {corpus.too_long} longer than {config.max_length} tokens, "
        f"{corpus.untrained} without trained tokens"
    )
    say(
        f"packed into {computed} tokens ({computed / corpus.tokens:.0%}), padding {1 - computed / padded:.1%}; "
        f"{len(batches)} batches, {steps} optimizer steps"
        + (f" or {config.max_minutes:g} minutes" if config.max_minutes is not None else "")
    )


def _total_steps(config: SftConfig, batches: int) -> int:
    per_epoch = max(1, -(-batches // config.gradient_accumulation_steps))
    return config.max_steps if config.max_steps > 0 else max(1, round(per_epoch * config.num_train_epochs))


# ------------------------------------------------------------------------------------------ run folder


def _check_options(config: SftConfig) -> None:
    for name in ("tokens_per_batch", "gradient_accumulation_steps", "max_length", "save_steps", "logging_steps"):
        if getattr(config, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(config, name)}")
    if config.max_minutes is not None and config.max_minutes <= 0:
        raise UserError(f"--max_minutes must be positive, not {config.max_minutes}")
    if config.lora_rank < 0:
        raise UserError(f"--lora_rank must be 0 (all weights) or more, not {config.lora_rank}")
    from transformers import SchedulerType

    names = [item.value for item in SchedulerType]
    if config.lr_scheduler_type not in names:
        raise UserError(f"--lr_scheduler_type {config.lr_scheduler_type}: choose one of {', '.join(names)}")


def _prepare_folder(config: SftConfig, store: Checkpoints, facts: dict[str, Any]) -> Path | None:
    """Make the run folder and find the checkpoint to continue from (None: start anew)."""
    output = config.output_dir
    shutil.rmtree(store.staging, ignore_errors=True)  # left by a run that was killed while saving
    if not config.resume_from_checkpoint:
        if store.all() or (output / "final").exists():
            raise UserError(
                f"{output}: holds a run already; add --resume_from_checkpoint to continue it, "
                "or name another --output_dir"
            )
        # Without a checkpoint nothing is lost: a run that ended before its first one does not block the folder.
        run_folder.open_run(output, config, "sft", facts=facts, restart=True)
        (output / run_folder.METRICS).unlink(missing_ok=True)
        return None
    if store.newest_whole()[0] is not None:
        if not (output / run_folder.CONFIG).exists():
            raise UserError(
                f"{output}: has no {run_folder.CONFIG} that says what its run is; name another --output_dir"
            )
        run_folder.open_run(output, config, "sft", _MAY_CHANGE, facts=facts)
    checkpoint = store.resumable("start without --resume_from_checkpoint", say)
    runlog.cut_metrics(output / run_folder.METRICS, store.step(checkpoint) or 0)
    say(f"resuming from {checkpoint}")
    return checkpoint


# -------------------------------------------------------------------------------------------- training


def _train(
    config: SftConfig,
    folder: str,
    adapter: Adapter | None,
    renderer: Renderer,
    corpus: Corpus,
    batches: list[list[Row]],
    facts: dict[str, Any],
    checkpoint: Path | None,
) -> int:
    import torch
    from datasets import Dataset
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM, PrinterCallback
    from trl import SFTConfig as TrlConfig

    from agentic.train import attention
    from agentic.train.trainer import PackedTrainer, Progress, with_layout

    register_searchlm()
    tokenizer = renderer.tokenizer
    # One end token everywhere: SFT label, tokenizer, generation. Padding may be the same id: labels decide, not ids.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(renderer.end_ids[0])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    dtype = autocast_type(config.dtype)
    # Frozen weights need no float32 master copy; casting them once and not in every step saves a third of the forward
    # time on a CPU. What is trained stays float32.
    frozen = torch.bfloat16 if config.lora_rank and dtype == "bfloat16" else torch.float32
    base_folder = adapter.base_folder if adapter else folder
    model: Any = AutoModelForCausalLM.from_pretrained(base_folder, dtype=frozen, attn_implementation=attention.NAME)
    model.config.use_cache = False
    model.generation_config.eos_token_id = renderer.end_ids
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    arguments = TrlConfig(
        output_dir=str(config.output_dir),
        per_device_train_batch_size=1,  # an item is a whole batch of packed rows
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_steps,
        num_train_epochs=config.num_train_epochs,
        max_steps=config.max_steps,
        logging_steps=config.logging_steps,
        logging_first_step=True,
        save_strategy="steps",
        save_steps=config.save_steps,
        save_total_limit=config.save_total_limit,
        seed=config.seed,
        report_to=config.report_to,
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        use_cpu=not torch.cuda.is_available(),
        activation_checkpointing=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        disable_tqdm=True,
    )
    lora = None
    if adapter:
        model = PeftModel.from_pretrained(model, adapter.folder, is_trainable=True)
        # A name that is no folder would be looked up on the hub at every checkpoint.
        model.peft_config["default"].base_model_name_or_path = adapter.base_folder
    elif config.lora_rank:
        lora = LoraConfig(
            r=config.lora_rank,
            lora_alpha=2 * config.lora_rank,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
    pad_id = tokenizer.pad_token_id
    progress = Progress(config.output_dir / run_folder.METRICS, say)
    seal = (read_seal(checkpoint) if checkpoint else None) or {}
    trainer = PackedTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"batch": list(range(len(batches)))}),
        data_collator=lambda items: with_layout([row for item in items for row in batches[item["batch"]]], pad_id),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[progress],
        max_minutes=config.max_minutes,
        elapsed_s=seal.get("elapsed_s", 0.0),
        tokens_trained=seal.get("tokens_trained", 0),
    )
    progress.trainer = trainer
    trainer.store = Checkpoints(config.output_dir)
    trainer.remove_callback(PrinterCallback)
    with _stop_on_signal(progress):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if progress.stop_requested:
        say(
            f"stopped after step {trainer.state.global_step}; a checkpoint is in {config.output_dir}. "
            "Continue with the same command and --resume_from_checkpoint"
        )
        return INTERRUPTED
    if progress.timed_out:
        say(f"time limit of {config.max_minutes:g} minutes reached after step {trainer.state.global_step}")
    _export(config, trainer, adapter, renderer, corpus, facts)
    return 0


@contextmanager
def _stop_on_signal(progress: Progress) -> Iterator[None]:
    """Ctrl-C and SIGTERM finish the current step and save; a second one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        if progress.stop_requested:
            raise KeyboardInterrupt
        progress.stop_requested = True
        say("stopping after this step (again to stop at once)")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------- export


def _export(
    config: SftConfig,
    trainer: PackedTrainer,
    adapter: Adapter | None,
    renderer: Renderer,
    corpus: Corpus,
    facts: dict[str, Any],
) -> None:
    """Write final/: a folder that transformers or peft loads, with template, generation config and card."""
    if not trainer.is_world_process_zero():
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    final = config.output_dir / "final"
    staging = config.output_dir / f".final.{os.getpid()}"
    base_name = adapter.base_name if adapter else config.model_name_or_path
    model.config.use_cache = True
    model.config._attn_implementation = "sdpa"
    if config.lora_rank:
        model.peft_config["default"].base_model_name_or_path = base_name
    model.save_pretrained(staging)
    if config.lora_rank:
        halve_adapter(staging / "adapter_model.safetensors")
    renderer.tokenizer.save_pretrained(staging)
    model.generation_config.save_pretrained(staging)
    machine = run_folder.machine()
    git = run_folder.git_state()
    write_card(
        staging,
        **facts,
        name=config.output_dir.resolve().name,
        base_model=base_name,
        method=(f"LoRA, rank {config.lora_rank}, all linear layers" if config.lora_rank else "full fine-tuning")
        + (f", continued from {config.model_name_or_path}" if adapter else ""),
        command=shlex.join(["agentic", *sys.argv[1:]]),
        data=[path.name for path in config.data_path],
        examples=len(corpus.examples),
        trained_tokens=trainer.tokens_trained,
        steps=trainer.state.global_step,
        seed=config.seed,
        hours=round(trainer.elapsed_s / 3600, 3),
        machine=", ".join([machine["cpu"], f"{machine['cores']} cores", *machine["gpus"]]),
        tools=corpus.tools,
        versions=run_folder.versions(),
        git_commit=git["commit"] + ("+" if git["dirty"] else "") if git and git["commit"] else None,
    )
    shutil.rmtree(final, ignore_errors=True)
    staging.rename(final)
    say(f"wrote {final}")
