"""Imports point one way, in the order of the pipeline (architecture.md), and modules stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "agentic"
MAX_LINES = 400

# Lowest first. A module may import modules of lower layers and of its own folder, also inside functions.
# A name is a module of agentic/ or one of its folders.
LAYERS = [
    "errors",
    "records",
    "jsonl",
    "config",
    "run_folder",
    "tables",
    "tools",
    "sandbox",
    "formats",
    "model",
    "reward",
    "data_analysis_env",
    "policy",
    "rollout",
    "tasks",
    "dataset",
    "data_check",
    "evaluate",
    "train",
    "serve",
    "quickstart",
    "sandbox_commands",
    "doctor",
    "cli",
]
RANK = {name: rank for rank, name in enumerate(LAYERS)}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_layers(path: Path) -> set[str]:
    """Layers of agentic that a module names in any import statement."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            module = node.module or ""
            # `from agentic import jsonl` names the layer after the keyword.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "agentic" else [module]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {part[1] for part in parts if part[0] == "agentic" and len(part) > 1 and part[1] != "__version__"}
    return found


def test_every_module_has_a_layer() -> None:
    unlisted = {layer(path) for path in MODULES} - {"__init__", *RANK}
    assert not unlisted, f"add {unlisted} to LAYERS where they belong in the pipeline"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = layer(path)
    wrong = {name for name in imported_layers(path) if name != own and RANK[name] >= RANK.get(own, -1)}
    assert not wrong, f"{own} comes before {wrong}"


def test_the_rule_sees_imports_inside_functions(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "from agentic import jsonl, __version__\ndef f():\n    import agentic.train.sft\n    from torch import nn\n"
    )
    assert imported_layers(file) == {"jsonl", "train"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_LINES, f"{lines} lines; split the module"


@pytest.mark.parametrize("module", ["agentic", "agentic.cli", "agentic.config", "agentic.records", "agentic.doctor"])
def test_light_modules_load_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, {module}; print(*(m for m in ('torch', 'transformers', 'pandas', 'openai') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == ""
