"""The README shows commands that exist, and the two languages show the same ones."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
import tyro

from agentic.cli import COMMANDS, main, split_command

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "README_zh.md"]


def shown_commands(page: Path) -> list[list[str]]:
    """Arguments of every `agentic ...` line in a code block or inline code."""
    text = page.read_text(encoding="utf-8")
    blocks = [block for kind, block in re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL) if kind != "python"]
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(agentic [^`]+)`", text)
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("agentic ")]
    return [words for words in commands if words[0] in {name.split()[0] for name in COMMANDS}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path) -> None:
    commands = shown_commands(page)
    assert len(commands) >= 12
    for words in commands:
        name, options = split_command(words)
        if not options:  # the text speaks of the command
            continue
        config = getattr(importlib.import_module("agentic.config"), COMMANDS[name][0])
        tyro.cli(config, args=[option for option in options if option != "..."], use_underscores=True)


def test_both_languages_show_the_same_commands() -> None:
    english, chinese = (
        {
            tuple(word for word in words if word.isascii() and " " not in word and word not in {"question", "FILE..."})
            for words in shown_commands(page)
        }
        for page in PAGES
    )
    assert english == chinese


def test_every_command_is_in_the_readme() -> None:
    shown = {split_command(words)[0] for words in shown_commands(PAGES[0])}
    assert set(COMMANDS) - shown <= {"quickstart", "card"}


def test_quickstart_needs_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["quickstart", "--file", str(tmp_path / "none.csv"), "--output_dir", str(tmp_path / "out")])
    assert code == 2 and "none.csv" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
