"""What a session may say about a cell, checked field by field: hostile code can write any bytes to its socket."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from agentic.sandbox.protocol import FrameError

MAX_NUMBER = 1 << 53

MAX_PATH = 4096
"""Characters of a file name that a session reports."""


class ReplyError(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    type: Annotated[str, StringConstraints(max_length=200)]
    message: Annotated[str, StringConstraints(max_length=3000)]
    line: Annotated[int, Field(ge=0, le=MAX_NUMBER)] | None


def _inside(name: str) -> str:
    """A relative path that stays in its folder."""
    if len(name) > MAX_PATH or name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise ValueError("no path inside the work folder")
    return name


class CellReply(BaseModel):
    """What a session says about a cell. It can lie about its own cell; it cannot send anything else."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["result"]
    id: int
    status: Literal["ok", "error", "timeout", "memory", "blocked"]
    stdout: str
    dropped_chars: Annotated[int, Field(ge=0, le=MAX_NUMBER)]
    value: str | None
    error: ReplyError | None
    figures: Annotated[list[Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,200}\.png$")]], Field(max_length=10)]
    files_changed: Annotated[list[Annotated[str, AfterValidator(_inside)]], Field(max_length=50)]
    cpu_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    peak_mb: Annotated[float, Field(ge=0, allow_inf_nan=False)]


def parse_reply(message: dict[str, Any], request: int) -> CellReply:
    """Typed answer to request number `request`. Raises FrameError."""
    try:
        reply = CellReply.model_validate(message)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise FrameError(f"answer with a bad field {field}: {first['msg']}") from None
    if reply.id != request:
        raise FrameError("answer to another request")
    return reply
