from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.cli import main

ROOT = Path(__file__).resolve().parents[1]


def doctor(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    values = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "agentic.cli", "doctor", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=values, timeout=60)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """With an empty model cache, whatever this machine has."""
    done = doctor("--json", AGENTIC_CACHE=str(tmp_path_factory.mktemp("cache")))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_is_usable_and_fast(report: dict) -> None:
    assert report["usable"]
    # The best of two: other tests run beside this one.
    assert report["seconds"] < 5 or json.loads(doctor("--json").stdout)["seconds"] < 5


def test_sandbox_ran_a_cell_at_a_known_level(report: dict) -> None:
    assert report["sandbox"]["works"]
    assert report["sandbox"]["level"] in ("L0", "L1", "L2", "L3")
    assert report["sandbox"]["why"]


def test_versions_and_machine(report: dict) -> None:
    assert report["versions"]["python"] == sys.version.split()[0]
    assert report["versions"]["pandas"]
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["memory_gb"] > 0
    assert report["device"].startswith(("cpu", "cuda"))


def test_absent_model_is_a_note_with_a_remedy(report: dict) -> None:
    assert report["model"]["base"] == "absent"
    notes = [problem for problem in report["problems"] if "base model" in problem["what"]]
    assert notes and not notes[0]["required"]
    assert "agentic models fetch" in notes[0]["remedy"]


def test_damaged_model_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "smollm2-135m-instruct").mkdir()
    (tmp_path / "smollm2-135m-instruct" / "config.json").write_text("{")
    monkeypatch.setenv("AGENTIC_CACHE", str(tmp_path))
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "smollm2 damaged" in said and "sandbox     level L" in said
