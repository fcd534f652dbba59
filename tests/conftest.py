"""The order of the test files, and folders outside the repository.

A test that needs such a folder is skipped, with a reason, where it is absent.
"""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

# The gate must not fail on a seed or a busy machine: the same examples each time. `--hypothesis-profile=search` draws new ones.
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("gate")

ROOT = Path(__file__).resolve().parents[1]


LONGEST_FIRST = (
    *(
        "isolation",
        "sandbox",
        "sql",
        "sft",
        "sft_documented",
        "tasks",
        "eval",
        "sandbox_commands",
        "documented_scripts",
        "endpoint",
    ),
    *(
        "end_to_end_endpoint",
        "ask",
        "doctor",
        "rollout",
        "environment",
        "tables_read",
        "hf",
        "rl_parts",
        "hostile",
        "searchlm",
    ),
    *("stream", "sandbox_soak", "cli"),
)
"""Test files that take seconds, in the order in which the workers of --dist loadfile take them: a file stays on one worker,
where its tests share what they need, and the short ones fill up the end. (--dist loadgroup does not group: pytest-xdist
3.8 sets an attribute that pytest 9.2 no longer reads.)"""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # --dist loadfile would begin with the files of the most tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {f"test_{name}": rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


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
