from __future__ import annotations

import ast
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro

from agentic import __version__, cli, config
from agentic.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


def agentic(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    command = [sys.executable, "-m", "agentic.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=60)


def test_help_lists_every_command_quickly() -> None:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        done = agentic("--help")
        times.append(time.perf_counter() - started)
    assert done.returncode == 0
    assert all(re.search(rf"^  {name} +\w", done.stdout, re.MULTILINE) for name in cli.COMMANDS)
    assert min(times) < 0.3
    assert agentic().stdout == done.stdout


def test_version() -> None:
    assert agentic("--version").stdout.strip() == f"agentic {__version__}"


def test_every_config_has_one_command_and_every_module_its_function() -> None:
    configs = [config_name for config_name, _, _ in cli.COMMANDS.values()]
    assert sorted(configs) == sorted(config.__all__)
    for _, target, _ in cli.COMMANDS.values():
        module, function = target.split(":")
        path = ROOT / (module.replace(".", "/") + ".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body), target


def test_every_command_and_option_is_explained() -> None:
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "agentic" / "config").glob("*.py")]
    classes = [node for tree in modules for node in tree.body if isinstance(node, ast.ClassDef)]
    assert {node.name for node in classes} == set(config.__all__)
    for node in classes:
        assert ast.get_docstring(node), node.name
        for statement, following in itertools.pairwise([*node.body, ast.Pass()]):
            if isinstance(statement, ast.AnnAssign):
                explained = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                assert explained, f"{node.name}, line {statement.lineno}"


def test_help_of_one_command_shows_field_docstrings_and_documented_spelling() -> None:
    done = agentic("build", "--help")
    assert done.returncode == 0
    assert "--train_size" in done.stdout
    assert "Number of training tasks." in done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["evl"], "did you mean: eval?"),
        (["models"], "did you mean: models fetch, models create, models export?"),
        (["model", "fetch"], "did you mean: models fetch"),
        (["data", "chek"], "did you mean: data check?"),
        (["zzz"], "agentic --help"),
        (["--hlep"], "agentic --help"),
    ],
)
def test_unknown_command_names_the_nearest(given: list[str], said: str) -> None:
    done = agentic(*given)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and said in done.stderr


@pytest.mark.parametrize("options", [["--bogus"], ["--train_size", "many"], ["--language", "fr"]])
def test_bad_option_exits_2(options: list[str]) -> None:
    done = agentic("build", *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_both_spellings_of_an_option() -> None:
    for option in ("--train_size", "--train-size"):
        assert tyro.cli(config.BuildConfig, args=[option, "7"], use_underscores=True).train_size == 7


@pytest.mark.parametrize(
    "given", [["card"], ["questions"], ["ask", "how many?"], ["sft", "--output_dir", "x", "--data_path"]]
)
def test_no_file_is_one_sentence(given: list[str]) -> None:
    done = agentic(*given)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no file given") and done.stderr.count("\n") == 1


def test_two_word_commands_are_cut_first() -> None:
    assert cli.split_command(["data", "check", "x.jsonl"]) == ("data check", ["x.jsonl"])
    assert cli.split_command(["build", "--seed", "1"]) == ("build", ["--seed", "1"])
    with pytest.raises(UserError):
        cli.split_command(["data", "--seed"])


def test_user_error_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    done = agentic("data", "check", "absent.jsonl", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: absent.jsonl: no such file\n"


def _rows(path: Path, count: int) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    # An unknown field with a long name in every row makes the report longer than a pipe's buffer.
    rows = ({"messages": turns, f"field_{index}_{'x' * 60}": 1} for index in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    _rows(tmp_path / "rows.jsonl", 3000)
    command = f"{sys.executable} -m agentic.cli data check rows.jsonl | head -1; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout == "rows.jsonl\n"
    assert done.stderr == ""
    assert done.returncode == 141


def test_interrupt_is_one_sentence_and_130(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    process = subprocess.Popen(
        [sys.executable, "-m", "agentic.cli", "data", "check", "rows.jsonl"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The writer's end opens when the command has opened its own: from here on it waits for a first row.
    with (tmp_path / "rows.jsonl").open("w"):
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert said.startswith("interrupted") and said.count("\n") == 1


def test_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    """In an interpreter that finds the core's packages, but neither torch nor transformers."""
    _rows(tmp_path / "rows.jsonl", 1)
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('transformers', 'torch'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from agentic.cli import main\n"
        "sys.exit(main(['data', 'check', 'rows.jsonl', '--model', 'smollm2']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "pip install 'agentic-data-analysis[train]'" in done.stderr
    assert done.stderr.count("\n") == 1
