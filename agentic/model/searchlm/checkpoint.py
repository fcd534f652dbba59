"""Weight files of the original code base: `{name}_{hidden}{suffix}.pth`, a state dict of float16 tensors."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path

import torch

from agentic.errors import UserError
from agentic.model.searchlm.configuration import SearchLMConfig
from agentic.model.searchlm.modeling import SearchLMForCausalLM

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_LISTED = 6


def weight_file(folder: Path, name: str, config: SearchLMConfig) -> Path:
    """Where the weights called `name` lie: pretrain_searchlm -> folder/pretrain_searchlm_1024_mla.pth."""
    return folder / f"{name}_{config.hidden_size}{config.suffix}.pth"


def save_weights(model: SearchLMForCausalLM, path: Path) -> None:
    """Write the light weights, whole or not at all."""
    save_state(model.state_dict(), path)


def save_state(state: dict[str, torch.Tensor], path: Path) -> None:
    """`save_weights` for a state dict, as ZeRO gathers it. Raises UserError for weights that float16 cannot hold."""
    weights = {name: tensor.detach().to("cpu", torch.float16) for name, tensor in state.items()}
    if not torch.isfinite(torch.stack([tensor.abs().max() for tensor in weights.values()])).all():
        raise UserError(f"{path}: not written, the weights do not fit float16 (they hold inf or nan); look at the loss")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(weights, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        with suppress(OSError):
            temporary.unlink()
        raise UserError(f"{path}: cannot be written ({str(error).splitlines()[0]}); name another folder") from None
    os.replace(temporary, path)


def load_weights(model: SearchLMForCausalLM, path: Path) -> None:
    """Copy the weights of a file into `model`, in the model's own type. Strict: raises UserError that lists what is missing,
    unexpected or of another shape. A tied head need not be in the file, and must equal the embedding when it is."""
    weights = _read(path)
    if model.config.tie_word_embeddings and _EMBEDDING in weights:
        head = weights.setdefault(_HEAD, weights[_EMBEDDING])
        if not torch.equal(head, weights[_EMBEDDING]):
            raise UserError(
                f"{path}: {_HEAD} differs from {_EMBEDDING}, but this model ties them (tie_word_embeddings)"
            )
    own = model.state_dict()
    problems = [
        ("missing", [name for name in own if name not in weights]),
        ("unexpected", [name for name in weights if name not in own]),
        (
            "of another shape",
            [
                f"{name} {tuple(weights[name].shape)}, expected {tuple(own[name].shape)}"
                for name in own
                if name in weights and weights[name].shape != own[name].shape
            ],
        ),
    ]
    said = [f"{len(names)} {what} ({_some(names)})" for what, names in problems if names]
    if said:
        raise UserError(
            f"{path}: does not fit this model: {'; '.join(said)}; check the profile, the attention kind and the vocabulary"
        )
    model.load_state_dict(weights)


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such weight file; name the weights without size and suffix, and their folder"
        ) from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise UserError(
            f"{path}: cannot be read as weights ({str(error).splitlines()[0][:200]}); copy it again"
        ) from None
    if not isinstance(weights, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in weights.values()):
        raise UserError(
            f"{path}: holds no state dict of tensors; a full training state lies in a folder under checkpoints/"
        )
    return weights


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
