"""LoRA adapters as files: going on from one, and writing one small."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentic.errors import UserError
from agentic.model.fetch import base_of_adapter


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter whose training goes on."""

    folder: str
    base_name: str
    """Base model as the adapter names it."""
    base_folder: str


def adapter_of(folder: str, lora_rank: int) -> Adapter | None:
    """The adapter that `folder` holds, or None for a model. Its rank is fixed: another --lora_rank is refused."""
    if (Path(folder) / "config.json").is_file():
        return None
    base_folder = base_of_adapter(folder)
    about = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    if lora_rank != about.get("r"):
        raise UserError(
            f"{folder}: is an adapter of rank {about.get('r')}, and its training can only go on with --lora_rank "
            f"{about.get('r')}, not {lora_rank}; for another rank start from its base model, "
            f"{about['base_model_name_or_path']}"
        )
    return Adapter(folder, about["base_model_name_or_path"], base_folder)


def tokenizer_folder(folder: str, adapter: Adapter | None) -> str:
    """An adapter saved without a tokenizer uses its base model's."""
    if adapter is None or (Path(folder) / "tokenizer_config.json").is_file():
        return folder
    return adapter.base_folder


def halve_adapter(path: Path) -> None:
    """Rewrite adapter weights as bfloat16: half the size, and the noise is far below what training leaves."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
