"""Every option of every command, declared once.

The docstring under a field is its help text. tyro turns `--train_size` and `--train-size` into the same field.
This module imports nothing heavy: it is read for `--help`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from agentic.errors import UserError


def _check_files(files: tuple[Path, ...], option: str = "") -> None:
    """The command line accepts a list without an element; no command can use one."""
    if not files:
        raise UserError(f"no file given; name one or more files{option}")


@dataclass(frozen=True)
class DoctorConfig:
    """Print versions, device, sandbox level and model cache (under 5 s)."""

    json: bool = False
    """Print one JSON object instead of a table."""


@dataclass(frozen=True)
class SandboxDoctorConfig:
    """Print the isolation level this machine gives, why, and how to get a higher one. Exit code 1 below L2."""

    json: bool = False
    """Print one JSON object instead of lines."""


@dataclass(frozen=True)
class SandboxBenchConfig:
    """Measure the sandbox on this machine: start, cells, a five-cell trajectory, memory (a few seconds)."""

    sessions: int = 30
    """Sessions to time one after the other, and then to hold alive at once for their memory."""
    level: Literal["auto", "L0", "L1", "L2", "L3"] = "auto"
    """Isolation level; auto is $AGENTIC_ISOLATION or the highest of this machine."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise UserError(f"--sessions {self.sessions}: at least one session is needed")


@dataclass(frozen=True)
class ModelsFetchConfig:
    """Put a base model into the cache folder as an ordinary transformers folder."""

    model: Positional[str] = "smollm2"
    """smollm2 (the embedded base), a local folder, or a Hugging Face id."""
    cache_dir: Path | None = None
    """Cache folder; default $AGENTIC_CACHE or ~/.cache/agentic."""
    force: bool = False
    """Convert again even when the cached copy is whole."""


@dataclass(frozen=True)
class TokenizerConfig:
    """Train a byte-level BPE tokenizer with ChatML tokens and tool tags, as SearchLM uses."""

    files: Positional[tuple[Path, ...]]
    """JSONL files (every string in them) or UTF-8 text files."""
    output_dir: Path
    """Folder to write; it loads with AutoTokenizer."""
    vocab_size: int = 6400
    """Entries, control tokens and tags included."""

    def __post_init__(self) -> None:
        _check_files(self.files)


@dataclass(frozen=True)
class ModelsCreateConfig:
    """Make a SearchLM folder that transformers and every command here load."""

    tokenizer: Path
    """Folder of its tokenizer (yours, or one made by `agentic tokenizer`)."""
    output_dir: Path
    """Folder to write."""
    profile: Literal["SearchLM-100M", "SearchLM-300M", "SearchLM-500M", "tiny"] = "SearchLM-300M"
    """Size of the model."""
    weights: Path | None = None
    """Weight file (out/pretrain_searchlm_1024_mla.pth); without it the weights are random."""
    attention: Literal["mla", "gqa", "mha", "mqa"] | None = None
    """Another kind of attention than the profile's."""
    seed: int = 0
    """Seed of random weights."""


@dataclass(frozen=True)
class ModelsExportConfig:
    """Write a SearchLM folder's weights as the float16 file {save_dir}/{save_weight}_{hidden}{_mla}.pth."""

    model: Positional[Path]
    """SearchLM folder."""
    save_dir: Path = Path("out")
    """Folder of weight files."""
    save_weight: str = "agent_sft"
    """Name without size and suffix."""


@dataclass(frozen=True)
class BuildConfig:
    """Build the operations data: tables, tasks with executed gold, expert trajectories, splits, manifest."""

    output_dir: Path = Path("dataset/agentic_data")
    """Folder to write: tables/, train.jsonl, dev.jsonl, test.jsonl, manifest.json."""
    train_size: int = 2000
    """Number of training tasks."""
    dev_size: int = 200
    """Number of development tasks."""
    test_size: int = 200
    """Number of test tasks."""
    language: Literal["zh", "en", "both"] = "both"
    """Language of the questions."""
    seed: int = 0
    """Same seed, same bytes."""
    general_size: int = 0
    """Also write general.jsonl: this many questions over generated random tables (column, filter, group, top-k, ...)."""
    workers: int = 2
    """Concurrent sandbox sessions while expert trajectories are executed."""


@dataclass(frozen=True)
class ValidateConfig:
    """Check a task file: schema, tables, duplicates, splits disjoint, gold passes its grader, wrong answers fail it."""

    data: Path
    """JSONL file of tasks; the other splits beside it are read for the overlap check."""
    json: bool = False
    """Print one JSON object instead of a table."""


@dataclass(frozen=True)
class QuestionsConfig:
    """Make questions with computed gold over csv files of your own (the general question programs)."""

    files: Positional[tuple[Path, ...]]
    """One or more csv files."""
    output: Path = Path("questions.jsonl")
    """JSONL file of tasks to write."""
    count: int = 120
    """Number of questions over all files, as even as the files allow."""
    language: Literal["zh", "en", "both"] = "en"
    """Language of the questions."""
    seed: int = 0
    """Same seed, same questions."""

    def __post_init__(self) -> None:
        _check_files(self.files)


@dataclass(frozen=True)
class DatasetConfig:
    """Turn tasks with expert trajectories into an SFT set."""

    input: Path
    """JSONL file of tasks (or several, comma-free: repeat the command and append with --append)."""
    output: Path
    """JSONL file of conversations to write."""
    format: Literal["messages", "conversations", "sharegpt", "verl"] = "messages"
    """messages + tools (TRL, LLaMA-Factory, ms-swift), the specified conversations, sharegpt from/value, or verl rows."""
    dialect: Literal["tool_call", "react"] = "tool_call"
    """How the agent writes its actions: tool calls, or fenced cells in <code> with the end in <answer>."""
    append: bool = False
    """Add to `output` instead of replacing it."""
    limit: int | None = None
    """At most this many tasks."""


@dataclass(frozen=True)
class DataCheckConfig:
    """Look at an SFT file as the trainer will: fields, lengths, trained share, one example with trained tokens marked."""

    path: Positional[Path]
    """JSONL file in any format that `agentic dataset` writes."""
    model: str | None = None
    """Tokenizer to render with (folder, Hugging Face id, or smollm2); without it only the structure is checked."""
    max_length: int = 2048
    """Examples longer than this many tokens are counted as dropped."""


@dataclass(frozen=True)
class CardConfig:
    """Print what a model is told about files."""

    files: Positional[tuple[Path, ...]]
    """One or more csv or sqlite files."""
    max_tokens: int = 300
    """Budget for all cards together, estimated at 3.5 characters a token."""

    def __post_init__(self) -> None:
        _check_files(self.files)


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
        _check_files(self.data_path, " after --data_path")


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate a model, an endpoint, a prediction file, or the oracle on tasks."""

    data: Path
    """JSONL file of tasks."""
    model: str | None = None
    """Local model: smollm2, a folder (model or adapter), a Hugging Face id, or `default` (the shipped adapter)."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server, for example http://127.0.0.1:8000/v1."""
    endpoint_model: str = "default"
    """Model name sent to the endpoint."""
    tool_mode: Literal["text", "native"] = "text"
    """Endpoint only: tools in the system text, or as the API's own `tools`."""
    weight: str | None = None
    """SearchLM weights by name, as trainers save them: agent_grpo is {save_dir}/agent_grpo_1024_mla.pth."""
    save_dir: Path = Path("out")
    """Folder of --weight."""
    model_profile: Literal["SearchLM-100M", "SearchLM-300M", "SearchLM-500M", "tiny"] = "SearchLM-300M"
    """Size of the model that --weight belongs to."""
    tokenizer: Path = Path("model")
    """Tokenizer folder of --weight."""
    pred: Path | None = None
    """Prediction file: JSONL of trajectories, or of {id, answer}."""
    replay: Literal["oracle", "empty"] | None = None
    """oracle plays the expert trajectories (must give 100 %), empty answers nothing (must give 0 %)."""
    dialect: Literal["tool_call", "react"] = "tool_call"
    """How the agent writes its actions: tool calls, or fenced cells in <code> with the end in <answer>."""
    output_dir: Path = Path("runs/eval")
    """Run folder: trajectories.jsonl, metrics.json, bad_cases.jsonl, run.json. Finished tasks are not run again."""
    output: Path | None = None
    """Also write the trajectories to this JSONL file; --pred reads it."""
    json_output: Path | None = None
    """Also write the metrics to this file."""
    bad_cases_output: Path | None = None
    """Also write the bad cases to this file."""
    card: str | None = None
    """Add the success rate, under this name, to the model card of the evaluated folder (--model)."""
    limit: int | None = None
    """Only the first this many tasks."""
    samples: int = 1
    """Trajectories per task; pass@1 is their mean."""
    temperature: float = 0.0
    """0 is greedy."""
    max_new_tokens: int = 256
    """Per turn."""
    batch_size: int = 16
    """Trajectories in flight."""
    deadline_s: float = 300.0
    """Seconds a trajectory may take before it closes as `deadline`."""
    seed: int = 0
    """Seed of sampling and of the bootstrap."""


@dataclass(frozen=True)
class AskConfig:
    """Ask a question about your files."""

    question: Positional[str]
    """The question, in English or Chinese."""
    files: Positional[tuple[Path, ...]]
    """One or more csv files."""
    model: str | None = None
    """Folder, Hugging Face id, or smollm2; default: the embedded base with the shipped adapter."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server instead of a local model (key from AGENTIC_API_KEY or OPENAI_API_KEY)."""
    endpoint_model: str = "default"
    """Model name sent to the endpoint."""
    tool_mode: Literal["text", "native"] = "text"
    """Endpoint only: tools in the system text, or as the API's own `tools`."""
    dialect: Literal["tool_call", "react"] = "tool_call"
    """How the agent writes its actions: tool calls, or fenced cells in <code> with the end in <answer>."""
    max_turns: int = 6
    """Turns before the agent is stopped."""
    json: bool = False
    """Print the trajectory as one JSON object."""

    def __post_init__(self) -> None:
        _check_files(self.files)


@dataclass(frozen=True)
class QuickstartConfig:
    """The whole loop in a quarter of an hour: fetch, build, train, evaluate before and after, ask about a real file."""

    output_dir: Path = Path("runs/quickstart")
    """Folder for data, run and results. A second call continues where the first one stopped."""
    minutes: float = 7.0
    """Minutes of training."""
    held_out: int = 16
    """Held-out tasks of each sort (operations, general) to evaluate on."""
    file: Path = Path("examples/penguins.csv")
    """The csv file that the trained agent answers questions about."""


__all__ = [name for name in dir() if name.endswith("Config")]
