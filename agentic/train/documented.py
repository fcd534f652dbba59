"""The documented names of a SearchLM training: weights by name in, light weights and full states out.

    {save_dir}/{name}_{hidden}{suffix}.pth                     light weights, a float16 state dict
    checkpoints/{name}_{hidden}{suffix}_epoch{e}_step{s}/      full training states
    checkpoints/{name}_{hidden}{suffix}_latest                 text file: the newest whole one
    runs/{name}_{hidden}{suffix}/                              run.json, metrics.jsonl, final/ (unless --output_dir says else)

Trainers are started in trainer/, so these folders are found from the repository root, whatever the working folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentic
from agentic.errors import UserError
from agentic.train.checkpoints import Checkpoints

if TYPE_CHECKING:
    from agentic.model.searchlm.modeling import SearchLMForCausalLM


def repository_root() -> Path:
    """$AGENTIC_ROOT, else the checkout that this package belongs to, else (an installed package) the working folder."""
    if given := os.environ.get("AGENTIC_ROOT"):
        return Path(given).absolute()
    # Not resolved: a checkout may reach the package through a link.
    root = Path(agentic.__file__).absolute().parents[1]
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def at_root(path: Path) -> Path:
    """A folder of the documented commands: relative to the repository root, or to the working folder where it begins with `..`."""
    if path.is_absolute():
        return path
    return Path.cwd() / path if path.parts[:1] == ("..",) else repository_root() / path


@dataclass(frozen=True)
class Places:
    """Where one training writes."""

    weights: Path
    """Light weights."""
    checkpoints: Checkpoints
    """Full training states."""
    run: Path
    """Run folder: run.json, metrics.jsonl."""


def places(save_weight: str, save_dir: Path, model_config: Any) -> Places:
    """The documented places for weights called `save_weight` of a model with this SearchLMConfig."""
    from agentic.model.searchlm.checkpoint import weight_file

    weights = weight_file(at_root(save_dir), save_weight, model_config)
    root = repository_root()
    return Places(weights, Checkpoints(root / "checkpoints", weights.stem), root / "runs" / weights.stem)


def load_tokenizer(folder: Path) -> Any:
    """The user's tokenizer. Raises UserError, with the remedies, where the folder holds none."""
    from transformers import AutoTokenizer

    folder = at_root(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise UserError(
            f"{folder}: holds no tokenizer (tokenizer.json); copy the tokenizer folder of your weights there, name it "
            "with --tokenizer, or train one with: agentic tokenizer FILES --output_dir model"
        )
    try:
        return AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot be read as a tokenizer ({str(error).splitlines()[0][:200]})") from None


def find_weight(name: str, save_dir: Path, model_config: Any) -> Path:
    """The file of the weights called `name` (`pretrain_searchlm`). Raises UserError that names the weights that are there."""
    from agentic.model.searchlm.checkpoint import weight_file

    path = weight_file(at_root(save_dir), name, model_config)
    if not path.is_file():
        ending = f"_{model_config.hidden_size}{model_config.suffix}.pth"
        there = sorted(other.name.removesuffix(ending) for other in path.parent.glob(f"*{ending}"))
        known = f"there are: {', '.join(there)}" if there else f"{path.parent} holds no *{ending}"
        raise UserError(f"{path}: no such weight file ({known}); copy it there, or name others with --from_weight")
    return path


def load_weight(name: str, save_dir: Path, model_config: Any) -> SearchLMForCausalLM:
    """A float32 model of this SearchLMConfig with the weights called `name`, loaded strictly (UserError otherwise)."""
    from agentic.model.searchlm.checkpoint import load_weights
    from agentic.model.searchlm.modeling import SearchLMForCausalLM

    path = find_weight(name, save_dir, model_config)
    model = SearchLMForCausalLM(model_config)
    load_weights(model, path)
    return model
