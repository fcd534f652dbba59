"""Options of the commands that use an agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from agentic.config.checks import check_files


@dataclass(frozen=True)
class AskConfig:
    """Ask a question about your files."""

    question: Positional[str]
    """The question, in English or Chinese."""
    files: Positional[tuple[Path, ...]]
    """One or more csv or sqlite files."""
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
        check_files(self.files)
