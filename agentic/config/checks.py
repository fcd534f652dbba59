"""What several configs check of their fields."""

from __future__ import annotations

from pathlib import Path

from agentic.errors import UserError


def check_files(files: tuple[Path, ...], option: str = "") -> None:
    """The command line accepts a list without an element; no command can use one."""
    if not files:
        raise UserError(f"no file given; name one or more files{option}")
