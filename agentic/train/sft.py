"""`agentic sft`: supervised fine-tuning on agent tokens only, in one process or in several."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic import run_folder
from agentic.config import SftConfig
from agentic.errors import MissingExtra, UserError
from agentic.model.chat import Renderer
from agentic.model.quiet import quiet_libraries
from agentic.model.searchlm import register as register_searchlm
from agentic.train import runlog
from agentic.train.checkpoints import read_seal
from agentic.train.corpus import Batches, LoadedBatches, StreamedBatches, load_corpus
from agentic.train.export import export
from agentic.train.launch import (
    STARTUP_S,
    autocast_type,
    deepspeed_config,
    first_process_does,
    first_process_speaks,
    say,
)
from agentic.train.lines import Lines, build_index
from agentic.train.setup import Job, Options, load_model, lora, prepare
from agentic.train.signals import stop_on_signal

if TYPE_CHECKING:
    pass

INTERRUPTED = 130
# What a resumed run may be told anew: where it lies, how far it goes, how often it reports. Whatever decides weights,
# batches or the schedule's shape has to be as it was. Of the data the bytes count, not the names.
_MAY_CHANGE = frozenset(
    (
        *("data_path", "output_dir", "resume_from_checkpoint", "dry_run", "report_to", "local_rank", "save_dir"),
        *("max_steps", "max_minutes", "num_train_epochs", "save_steps", "save_total_limit", "logging_steps"),
        *("dataloader_num_workers", "tokenizer"),
    )
)


def run(config: SftConfig) -> int:
    """Train; 0 when done, 130 when interrupted (resumable). Raises UserError for bad options, data or models."""
    try:
        import peft  # noqa: F401
        import transformers  # noqa: F401
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtra("agentic sft", "train") from None
    quiet_libraries()
    register_searchlm()
    with first_process_speaks():
        return _run(config)


def _run(config: SftConfig) -> int:
    job = prepare(config)
    renderer = Renderer(job.base.tokenizer)
    if config.dry_run:
        _plan_only(job, renderer)
        return 0
    arguments = _arguments(job.options)
    per_step = batches_per_step(job.options, arguments.world_size)
    facts = {"template_hash": renderer.template_hash, "end_ids": renderer.end_ids}
    data_hash, checkpoint = first_process_does(lambda: _open_run(job, facts, arguments.world_size))
    batches = make_batches(job.options, renderer, _index_folder(job.options), per_step)
    _say_plan(job.options, batches, per_step)
    return _train(job, arguments, renderer, batches, facts | {"data_hash": data_hash}, checkpoint)


# ------------------------------------------------------------------------------------------------ data


def is_streamed(options: Options) -> bool:
    """Whether the data is tokenised while training. Raises UserError for a missing file."""
    try:
        return sum(path.stat().st_size for path in options.data_path) > options.stream_above_mb * 1_000_000
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None


def make_batches(options: Options, renderer: Renderer, index: Path, per_step: int) -> Batches:
    """The batches of an epoch; `index` holds the lines' index where the data is streamed."""
    packing = (options.tokens_per_batch, options.share_prefix, options.seed, per_step)
    if is_streamed(options):
        return StreamedBatches(Lines(index), renderer, options.max_length, *packing)
    return LoadedBatches(load_corpus(options.data_path, renderer, options.max_length), *packing)


def batches_per_step(options: Options, processes: int) -> int:
    """Packed batches of an optimizer step, all processes together."""
    return processes * options.per_device_train_batch_size * options.gradient_accumulation_steps


def _index_folder(options: Options) -> Path:
    return options.output_dir / "index"


def _plan_only(job: Job, renderer: Renderer) -> None:
    per_step = batches_per_step(job.options, int(os.environ.get("WORLD_SIZE", "1")))
    with tempfile.TemporaryDirectory() as folder:
        if is_streamed(job.options):
            build_index(job.options.data_path, Path(folder), say)
        _say_plan(job.options, make_batches(job.options, renderer, Path(folder), per_step), per_step)


def _say_plan(options: Options, batches: Batches, per_step: int) -> None:
    *lines, last = batches.describe(options.max_length)
    for line in lines:
        say(line)
    limit = f" or {options.max_minutes:g} minutes" if options.max_minutes is not None else ""
    say(f"{last}, {per_step} a step, {_total_steps(options, len(batches) // per_step)} optimizer steps{limit}")


def _total_steps(options: Options, per_epoch: int) -> int:
    return options.max_steps if options.max_steps > 0 else math.ceil(per_epoch * options.num_train_epochs)


# ------------------------------------------------------------------------------------------ run folder


def _open_run(job: Job, facts: dict[str, Any], processes: int) -> tuple[str, Path | None]:
    """Make the run folder; returns the hash of the data and the checkpoint to continue from (None: start anew)."""
    options, store, output = job.options, job.store, job.options.output_dir
    shutil.rmtree(store.staging, ignore_errors=True)  # left by a run that was killed while saving
    if not options.resume_from_checkpoint and (store.all() or (output / "final").exists()):
        where = store.latest.with_name(store.stem) if store.stem else output
        raise UserError(
            f"{where}: holds a run already; add {job.how_to_go_on} to continue it, or {job.how_to_begin_anew}"
        )
    resumable = options.resume_from_checkpoint and store.newest_whole()[0] is not None
    if resumable and not (output / run_folder.CONFIG).exists():
        raise UserError(f"{output}: has no {run_folder.CONFIG} that says what its run is; {job.how_to_begin_anew}")
    data_hash = (
        build_index(options.data_path, _index_folder(options), say)
        if is_streamed(options)
        else runlog.data_hash(options.data_path)
    )
    facts = {**facts, "data_hash": data_hash, "processes": processes}
    if not options.resume_from_checkpoint:
        # Without a checkpoint nothing is lost: a run that ended before its first one does not block the folder.
        run_folder.open_run(output, options, "sft", facts=facts, restart=True)
        (output / run_folder.METRICS).unlink(missing_ok=True)
        return data_hash, None
    if resumable:
        run_folder.open_run(output, options, "sft", _MAY_CHANGE, facts=facts)
    checkpoint = store.resumable(f"start without {job.how_to_go_on}", say)
    runlog.cut_metrics(output / run_folder.METRICS, store.step(checkpoint) or 0)
    say(f"resuming from {checkpoint}")
    return data_hash, checkpoint


# -------------------------------------------------------------------------------------------- training


def _arguments(options: Options) -> Any:
    """TRL's arguments. With several processes this also makes the process group."""
    import torch
    from trl import SFTConfig as TrlConfig

    dtype = autocast_type(options.dtype)
    # With accumulated batches every worker must meet its columns again (StreamedBatches): their number divides.
    accumulation = options.gradient_accumulation_steps
    workers = max(n for n in range(options.dataloader_num_workers + 1) if n == 0 or accumulation % n == 0)
    if workers:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are the parallelism
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed, where installed, warns that it guessed so
    return TrlConfig(
        output_dir=str(options.output_dir),
        per_device_train_batch_size=options.per_device_train_batch_size,
        gradient_accumulation_steps=accumulation,
        learning_rate=options.learning_rate,
        lr_scheduler_type=options.lr_scheduler_type,
        warmup_steps=options.warmup_steps,
        num_train_epochs=options.num_train_epochs,
        max_steps=options.max_steps,
        logging_steps=options.logging_steps,
        logging_first_step=True,
        save_strategy="steps",
        save_steps=options.save_steps,
        save_total_limit=options.save_total_limit,
        seed=options.seed,
        report_to=options.report_to,
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        use_cpu=not torch.cuda.is_available(),
        deepspeed=deepspeed_config(options.deepspeed),
        ddp_timeout=STARTUP_S,
        ddp_find_unused_parameters=False,
        dataloader_num_workers=workers,
        activation_checkpointing=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        disable_tqdm=True,
    )


def _train(
    job: Job,
    arguments: Any,
    renderer: Renderer,
    batches: Batches,
    facts: dict[str, Any],
    checkpoint: Path | None,
) -> int:
    import torch
    from transformers import PrinterCallback

    from agentic.train import attention
    from agentic.train.trainer import BatchData, PackedTrainer, Progress

    options, tokenizer = job.options, renderer.tokenizer
    # One end token everywhere: SFT label, tokenizer, generation. Padding may be the same id: labels decide, not ids.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(renderer.end_ids[0])
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Frozen weights need no float32 master copy; casting them once and not in every step saves a third of the forward
    # time on a CPU. What is trained stays float32.
    frozen = torch.bfloat16 if options.lora_rank and arguments.bf16 else torch.float32
    model = load_model(job.base, frozen, attention.NAME)
    model.config.use_cache = False
    model.generation_config.eos_token_id = renderer.end_ids
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model, lora_config = lora(job.base, options.lora_rank, model)
    progress = Progress(options.output_dir / run_folder.METRICS, say)
    seal = (read_seal(checkpoint) if checkpoint else None) or {}
    data = BatchData(batches, tokenizer.pad_token_id)
    trainer = PackedTrainer(
        model=model,
        args=arguments,
        data=data,
        processing_class=tokenizer,
        peft_config=lora_config,
        callbacks=[progress],
        max_minutes=options.max_minutes,
        elapsed_s=seal.get("elapsed_s", 0.0),
        tokens_trained=seal.get("tokens_trained", 0),
    )
    trainer.store, trainer.light_weights = job.store, job.light_weights
    progress.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    with stop_on_signal(progress):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if progress.stop_requested:
        say(
            f"stopped after step {trainer.state.global_step}; a checkpoint is in {job.store.folder}. "
            f"Continue with the same command and {job.how_to_go_on}"
        )
        return INTERRUPTED
    if progress.timed_out:
        say(f"time limit of {options.max_minutes:g} minutes reached after step {trainer.state.global_step}")
    final = options.output_dir / "final"
    export(final, trainer, renderer, job.base, options, examples=batches.examples, tools=batches.tools, **facts)
    say(f"wrote {final}")
    if job.light_weights:
        trainer.write_light_weights()
        say(f"wrote {job.light_weights}")
    return 0
