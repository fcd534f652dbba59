"""A small built data set, made once per test session: 12 train, 4 dev, 8 test and 16 general tasks."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from agentic.cli import main

SIZES = {"train": 12, "dev": 4, "test": 8, "general": 16}


def build(folder: Path, seed: int = 0) -> Path:
    sizes = [f"--{name}_size={size}" for name, size in SIZES.items()]
    assert main(["build", f"--output_dir={folder}", f"--seed={seed}", *sizes]) == 0
    return folder


@functools.cache
def built_in(base: Path) -> Path:
    return build(base / "built")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder. Read only: several test files share it."""
    return built_in(tmp_path_factory.getbasetemp())
