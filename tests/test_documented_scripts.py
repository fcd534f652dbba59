"""The scripts of the original specification, under their documented names and from the documented folder."""

# ruff: noqa: E402 (imports follow importorskip)
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agentic.cli import main
from agentic.model.searchlm.checkpoint import save_weights, weight_file
from agentic.model.searchlm.configuration import profile_config
from agentic.model.searchlm.modeling import SearchLMForCausalLM
from agentic.model.searchlm.tokenizer import train_tokenizer

pytest_plugins = ("built", "shared_zygote")
pytestmark = pytest.mark.usefixtures("shared_zygote")

ROOT = Path(__file__).resolve().parents[1]
COMMAND = {
    "scripts/build_agentic_data_tasks.py": "build",
    "scripts/validate_agentic_data.py": "validate",
    "scripts/build_agentic_sft.py": "dataset",
    "scripts/eval_agentic_data.py": "eval",
    "trainer/train_full_sft_deepspeed.py": "sft",
    "trainer/train_agent_deepspeed.py": "train",
}


def script(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return shim(f"scripts/{name}.py", *options)


def shim(path: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a shim from its documented folder: scripts from the root, trainers in trainer/."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    folder, name = (ROOT / "trainer", Path(path).name) if path.startswith("trainer/") else (ROOT, path)
    command = [sys.executable, name, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment | {"COLUMNS": "100"})


def test_every_shim_is_tested_and_short() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): path
        for name in ("scripts", "trainer")
        for path in (ROOT / name).glob("*.py")
    }
    assert found.keys() == COMMAND.keys()
    assert all(len(path.read_text().splitlines()) <= 12 for path in found.values())


@pytest.mark.parametrize(("path", "command"), COMMAND.items())
def test_help_is_that_of_the_command(path: str, command: str) -> None:
    ours = subprocess.run(
        [sys.executable, "-m", "agentic.cli", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )
    theirs = shim(path, "--help")
    assert theirs.returncode == ours.returncode == 0 and f"usage: agentic {command}" in ours.stdout
    assert theirs.stdout == ours.stdout


def test_data_scripts(built: Path, tmp_path: Path) -> None:
    sft = tmp_path / "sft.jsonl"
    valid = script("validate_agentic_data", "--data", str(built / "train.jsonl"))
    assert valid.returncode == 0, valid.stdout + valid.stderr
    assert script("build_agentic_sft", "--input", str(built / "train.jsonl"), "--output", str(sft)).returncode == 0
    assert len(sft.read_text().splitlines()) == len((built / "train.jsonl").read_text().splitlines())
    missing = script("validate_agentic_data", "--data", str(tmp_path / "no.jsonl"))
    assert missing.returncode == 2 and missing.stderr.startswith("error: ") and missing.stderr.count("\n") == 1


@pytest.fixture()
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Folder with weights called agent_grpo of a random tiny model, and its tokenizer folder."""
    monkeypatch.setenv("AGENTIC_CACHE", str(tmp_path / "cache"))
    tokenizer = train_tokenizer(["sum of sales 2024"] * 4, 300)
    tokenizer.save_pretrained(tmp_path / "tokens")
    save(tmp_path / "out", len(tokenizer), 0)
    return tmp_path / "out", tmp_path / "tokens"


def save(folder: Path, vocabulary: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = SearchLMForCausalLM(profile_config("tiny", vocab_size=vocabulary))
    save_weights(model, weight_file(folder, "agent_grpo", model.config))


def test_eval_of_named_weights(
    built: Path, saved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, tokens = saved
    reports = tmp_path / "reports"
    command = ["eval", "--data", str(built / "test.jsonl"), "--weight", "agent_grpo", "--save_dir", str(weights)]
    command += ["--model_profile", "tiny", "--tokenizer", str(tokens), "--output", str(reports / "pred.jsonl")]
    command += ["--json_output", str(reports / "metrics.json"), "--bad_cases_output", str(reports / "bad.jsonl")]
    command += ["--output_dir", str(tmp_path / "run"), "--limit", "2", "--max_new_tokens", "8"]
    assert main(command) == 0
    summary = json.loads((reports / "metrics.json").read_text())
    assert summary["tasks"] == 2 and summary["metrics"]["task_success"]["mean"] == 0.0
    assert len((reports / "pred.jsonl").read_text().splitlines()) == 2
    assert len((reports / "bad.jsonl").read_text().splitlines()) == 2
    again = ["eval", "--data", str(built / "test.jsonl"), "--pred", str(reports / "pred.jsonl"), "--limit", "2"]
    assert main([*again, "--output_dir", str(tmp_path / "again")]) == 0
    assert json.loads((tmp_path / "again" / "metrics.json").read_text())["metrics"] == summary["metrics"]

    # The same name with other weights: what the first ones did is not taken for theirs.
    capsys.readouterr()
    save(weights, len(torch.load(weights / "agent_grpo_64_mla.pth", weights_only=True)["lm_head.weight"]), 1)
    assert main(command) == 2
    assert "holds trajectories of other weights under this name" in capsys.readouterr().err
    other = ["agent_sft" if word == "agent_grpo" else word for word in command]
    assert main([*other, "--output_dir", str(tmp_path / "other")]) == 2
    assert "agent_sft_64_mla.pth: no such weight file" in capsys.readouterr().err
