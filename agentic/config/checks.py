"""What several configs share: checks of their fields, and a switch with an optional value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import FlagConversionOff
from tyro.constructors import PrimitiveConstructorSpec

from agentic.errors import UserError


def check_files(files: tuple[Path, ...], option: str = "") -> None:
    """The command line accepts a list without an element; no command can use one."""
    if not files:
        raise UserError(f"no file given; name one or more files{option}")


_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _switch(words: list[str]) -> bool:
    if not words:
        return True
    if len(words) > 1 or words[0].lower() not in _WORDS:
        raise ValueError(f"{' '.join(words)!r} is neither 1 nor 0")
    return _WORDS[words[0].lower()]


Switch = Annotated[
    bool,
    PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[1|0]",
        instance_from_str=_switch,
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: ["1" if value else "0"],
    ),
    FlagConversionOff,
]
"""An option that is on when it stands alone, and takes 1 or 0: --from_resume, --from_resume 1."""
