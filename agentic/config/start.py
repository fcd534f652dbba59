"""Options of the commands around the pipeline: machine, sandbox, models, quickstart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from agentic.config.checks import check_files
from agentic.errors import UserError


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
        check_files(self.files)


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
