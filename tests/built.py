"""A small built data set, made once per test run. A test file that wants it names this module in `pytest_plugins`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic.cli import main

SIZES = ("--train_size=12", "--dev_size=4", "--test_size=8", "--general_size=16")


@pytest.fixture(scope="session")
def build() -> Callable[[Path], Path]:
    """A function that builds the data set, always with the same seed, in a folder."""

    def built_in(folder: Path) -> Path:
        assert main(["build", f"--output_dir={folder}", *SIZES]) == 0
        return folder

    return built_in


@pytest.fixture(scope="session")
def built(build: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder. Read only: several test files and the workers of pytest-xdist share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built-data"
    with (folder.parent / "built-data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return folder if (folder / "manifest.json").exists() else build(folder)
