"""The benchmark scripts run, on a tiny model, and say what they promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("script", ["rollout.py", "train_step.py"])
def test_help(script: str) -> None:
    assert "--threads" in run(script, "--help")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("trl", reason="needs the extra: train")
    from tiny import make_folder

    return make_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", ["0", "4"])
def test_the_bare_loop_trains_as_the_trainer_does(folder: Path, tmp_path: Path, lora_rank: str) -> None:
    output = tmp_path / "step.json"
    options = ["--model", str(folder), "--lora_rank", lora_rank, "--dtype", "float32", "--steps", "3"]
    run("train_step.py", *options, "--threads", "1", "--output", str(output))
    report = json.loads(output.read_text())
    assert report["losses"]["trainer"] == pytest.approx(report["losses"]["bare"], abs=2e-4)
    assert len(report["ratios"]) == 3 and report["ratio"] > 0


@pytest.mark.slow
def test_all_ways_to_roll_out_do_the_same_work(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "rollout.json"
    options = ["--model", str(folder), "--dtype", "float32", "--prompts", "1", "--samples", "2"]
    shown = run("rollout.py", *options, "--threads", "1", "--repetitions", "1", "--output", str(output))
    methods: dict[str, Any] = json.loads(output.read_text())["methods"]
    assert set(methods) == {"ours", "one by one", "batched generate", "TRL"}
    assert {name: m["rounds"][0]["trajectories"] for name, m in methods.items()} == {
        "ours": 2,
        "one by one": 1,
        "batched generate": 2,
        "TRL": 2,
    }
    for name, method in methods.items():
        assert name in shown and method["sampled_tokens"] > 0 and method["tokens_per_s"] > 0
        assert method["times_ours"][0] > 0 and method["times_ours_cpu"][0] > 0
