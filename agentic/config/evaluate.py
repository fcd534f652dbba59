"""Options of the commands that evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from agentic.config.checks import check_files
from agentic.errors import UserError


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
    reward: Literal["ops", "paper"] = "ops"
    """Reward of a trajectory: ops adds up weighted parts; paper is 1 to 0.5 by length if right, 0 if wrong, -0.1 if malformed."""
    judge_base_url: str | None = None
    """Base URL of an OpenAI-compatible server that judges free-text answers (key: AGENTIC_JUDGE_API_KEY, else the endpoint's)."""
    judge_model: str = "default"
    """Model name sent to the judge."""
    judge_tolerance: float = 0.03
    """Relative tolerance of numbers inside free text, told to the judge."""
    judge_timeout_s: float = 60.0
    """Seconds one judgement may take. Without a judgement an answer is unjudged, never wrong."""
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
class PlotConfig:
    """Draw what training runs logged (metrics.jsonl) as PNG files: reward, success, parts, gamma, lengths, times, loss."""

    runs: Positional[tuple[Path, ...]]
    """One or more run folders. They are drawn over one another; runs of one name as their mean and range."""
    names: tuple[str, ...] = ()
    """Name of each run, in order (default: its folder's, without an ending such as -seed1)."""
    output_dir: Path | None = None
    """Folder of the PNG files (default: plots/ in the run folder, or in the working folder for several runs)."""
    x: str = "step"
    """What is logged under this key runs along the x axis: step, elapsed_s, trained_tokens, ..."""
    smooth: int = 1
    """Draw the mean of this many rows, centred, over the values themselves."""

    def __post_init__(self) -> None:
        check_files(self.runs)
        if self.names and len(self.names) != len(self.runs):
            raise UserError(f"--names has {len(self.names)} names for {len(self.runs)} runs; give one for each run")
        if self.smooth < 1:
            raise UserError(f"--smooth must be at least 1, not {self.smooth}")
