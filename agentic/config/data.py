"""Options of the commands that make and check data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from agentic.config.checks import check_files


@dataclass(frozen=True)
class CardConfig:
    """Print what a model is told about files."""

    files: Positional[tuple[Path, ...]]
    """One or more csv or sqlite files."""
    max_tokens: int = 300
    """Budget for all cards together, estimated at 3.5 characters a token."""

    def __post_init__(self) -> None:
        check_files(self.files)


@dataclass(frozen=True)
class BuildConfig:
    """Build the operations data: tables, tasks with executed gold, expert trajectories, splits, manifest."""

    output_dir: Path = Path("dataset/agentic_data")
    """Folder to write: tables/, train.jsonl, dev.jsonl, test.jsonl, test_unseen.jsonl, README.md, manifest.json."""
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
    """Processes that execute expert trajectories. The number changes nothing in the files."""
    unseen_size: int | None = None
    """Tasks of test_unseen.jsonl, whose task families and whole tables training never has. Default: as many as test_size; 0 over your own tables."""
    operations: tuple[str, ...] = ()
    """Kinds of questions (value, extreme, top_k, change, ...; a wrong name lists all). Default: all."""
    metric_names: tuple[str, ...] = ()
    """Only these metrics of the definitions (gmv, refund_rate.amount, ...; a wrong name lists all). Default: all."""
    metrics: Path | None = None
    """YAML file with metric definitions of your own (docs/data.md); goes with --tables."""
    tables: Path | None = None
    """Folder with your own csv, xlsx or sqlite files, which --metrics is about."""
    dry_run: bool = False
    """Count the distinct programs there are, write nothing."""


@dataclass(frozen=True)
class ValidateConfig:
    """Check a task file: schema, tables, duplicates, splits disjoint, gold passes its grader, wrong answers fail it."""

    data: Path
    """JSONL file of tasks (the other splits beside it are read for the overlap check), or a built folder: all its files."""
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
        check_files(self.files)


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
