"""Folders outside the repository; tests that need one are skipped, with a reason, where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _shared(variable: str, name: str) -> Path:
    folder = Path(os.environ.get(variable) or ROOT.parent / "shared" / name)
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent; set {variable}")
    return folder


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """Public failure cases: cases.md and files/."""
    return _shared("AGENTIC_CASES", "cases")


@pytest.fixture(scope="session")
def bench_dir() -> Path:
    """Benchmark files: dabench, opsdata, ..."""
    return _shared("AGENTIC_BENCH", "bench")


@pytest.fixture()
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxies and no keys of the machine that runs the tests."""
    for name in os.environ:
        if name.lower().endswith("_proxy") or name in ("AGENTIC_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.delenv(name)
