"""`agentic tokenizer`, `agentic models create` and `agentic models export`."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from agentic.config import ModelsCreateConfig, ModelsExportConfig, TokenizerConfig
from agentic.errors import MissingExtra, UserError
from agentic.model.fetch import cache_folder, resolve
from agentic.model.quiet import quiet_libraries


def run_tokenizer(config: TokenizerConfig) -> int:
    """`agentic tokenizer`: train one on the texts of files."""
    from agentic.model.searchlm.tokenizer import texts_of, train_tokenizer

    _refuse_full(config.output_dir)
    tokenizer = train_tokenizer(texts_of(config.files), config.vocab_size)
    _write(config.output_dir, tokenizer)
    print(f"{config.output_dir}: {len(tokenizer)} tokens, ids 0 to 2 <|endoftext|>, <|im_start|>, <|im_end|>")
    return 0


def run_create(config: ModelsCreateConfig) -> int:
    """`agentic models create`: a SearchLM folder from a profile and a tokenizer, with given or random weights."""
    _need_torch("agentic models create")
    _refuse_full(config.output_dir)
    parameters, attention = create(
        config.output_dir, config.profile, config.tokenizer, config.weights, config.attention, config.seed
    )
    origin = f"weights of {config.weights}" if config.weights else f"random weights (seed {config.seed})"
    print(f"{config.output_dir}: {config.profile}, {attention}, {parameters / 1e6:.1f}M parameters, {origin}")
    return 0


def create(
    output_dir: Path,
    profile: str,
    tokenizer_dir: Path,
    weights: Path | None,
    attention: str | None = None,
    seed: int = 0,
) -> tuple[int, str]:
    """Write the folder; returns (parameters, kind of attention). Raises UserError for a tokenizer or weights that do not fit."""
    import torch
    from transformers import AutoTokenizer, GenerationConfig

    from agentic.model.searchlm.checkpoint import load_weights
    from agentic.model.searchlm.configuration import fitted_config
    from agentic.model.searchlm.modeling import SearchLMForCausalLM

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir))
    except (OSError, ValueError):
        raise UserError(
            f"{tokenizer_dir}: holds no tokenizer (tokenizer.json); name its folder with --tokenizer, or train one with "
            "agentic tokenizer"
        ) from None
    about = fitted_config(profile, len(tokenizer), **({"attention": attention} if attention else {}))
    torch.manual_seed(seed)
    model = SearchLMForCausalLM(about)
    if weights is not None:
        load_weights(model, weights)
    ends = {
        "bos_token_id": about.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": about.pad_token_id,
    }
    model.generation_config = GenerationConfig(**ends)
    _write(output_dir, model, tokenizer)
    return model.num_parameters(), about.attention


def folder_of_weight(weight: str, save_dir: Path, profile: str, tokenizer_dir: Path) -> Path:
    """A transformers folder made from named weights, in the cache; made again when file, profile or tokenizer change."""
    _need_torch("--weight")
    from agentic.model.searchlm.checkpoint import weight_file
    from agentic.model.searchlm.configuration import profile_config

    path = weight_file(save_dir, weight, profile_config(profile))
    digest = hashlib.sha256(profile.encode())
    for file in (path, *sorted(tokenizer_dir.glob("*.json")), *sorted(tokenizer_dir.glob("*.jinja"))):
        if file.is_file():
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    folder = cache_folder() / "searchlm" / f"{path.stem}-{digest.hexdigest()[:12]}"
    if not folder.exists():
        create(folder, profile, tokenizer_dir, path)
    return folder


def run_export(config: ModelsExportConfig) -> int:
    """`agentic models export`: the float16 weight file of the original code base from a SearchLM folder."""
    _need_torch("agentic models export")
    from transformers import AutoModelForCausalLM

    from agentic.model.searchlm import register
    from agentic.model.searchlm.checkpoint import save_weights, weight_file
    from agentic.model.searchlm.modeling import SearchLMForCausalLM

    register()
    folder = resolve(str(config.model))
    if not (Path(folder) / "config.json").is_file():
        raise UserError(f"{folder}: is an adapter; merge it into its base model first")
    model = AutoModelForCausalLM.from_pretrained(folder)
    if not isinstance(model, SearchLMForCausalLM):
        raise UserError(f"{folder}: is a {type(model).__name__}; only SearchLM models have this weight format")
    path = weight_file(config.save_dir, config.save_weight, model.config)
    save_weights(model, path)
    print(path)
    return 0


def _need_torch(command: str) -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtra(command, "train") from None
    quiet_libraries()


def _refuse_full(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not empty; name another --output_dir")


def _write(folder: Path, *parts: Any) -> None:
    """Save every part into the folder, which appears whole or not at all."""
    staging = folder.with_name(f".{folder.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        for part in parts:
            part.save_pretrained(staging)
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write there ({error.strerror or error}); name another --output_dir"
        ) from None
