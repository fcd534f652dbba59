"""What a training command has to know about how it was started: launcher, processes, device, number types."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import agentic
from agentic.errors import MissingExtra, UserError

T = TypeVar("T")
Dtype = Literal["float32", "bfloat16", "float16"]

STARTUP_S = 12 * 3600
"""How long processes wait for each other: the first one may index a large file meanwhile."""


def rank() -> int:
    """Number of this process among those of the run; launchers set it."""
    return int(os.environ.get("RANK", "0"))


def say(text: str) -> None:
    """A line for the person at the terminal, from the first process only."""
    if rank() == 0:
        print(text, flush=True)


def autocast_type(dtype: str) -> Dtype:
    """The type to compute in on this machine. float16 becomes another one on a CPU, which is said."""
    import torch

    gpu = torch.cuda.is_available()
    fast = torch.cuda.is_bf16_supported() if gpu else torch.cpu._is_avx512_bf16_supported()
    best: Dtype = "bfloat16" if fast else "float32"
    if dtype == "float16" and not gpu:
        say(f"--dtype float16 needs a GPU (a CPU overflows and is slow in it): using {best} here")
        return best
    return (
        best
        if dtype == "auto"
        else "float16"
        if dtype == "float16"
        else "bfloat16"
        if dtype == "bfloat16"
        else "float32"
    )


def deepspeed_config(choice: str) -> str | None:
    """The DeepSpeed configuration file to train with, or None for none.

    `auto` is ZeRO-2 under the deepspeed launcher and none otherwise (`accelerate launch` brings its own). Raises
    UserError for a missing file and for a missing DeepSpeed.
    """
    if choice == "auto":
        # The launcher sets these; torchrun and accelerate do not.
        started_by_deepspeed = "CROSS_SIZE" in os.environ and "LOCAL_RANK" in os.environ
        choice = "zero2" if started_by_deepspeed and os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true" else "none"
    if choice == "none":
        return None
    named = choice in ("zero2", "zero3")
    # Of the code, not of the data: AGENTIC_ROOT does not move them.
    path = (
        Path(agentic.__file__).absolute().parents[1] / "configs" / f"deepspeed_{choice}.json" if named else Path(choice)
    )
    if not path.is_file():
        raise UserError(f"--deepspeed {choice}: no file {path}; choose zero2, zero3, none or a DeepSpeed JSON file")
    try:
        import deepspeed  # noqa: F401
    except ImportError:
        raise MissingExtra("--deepspeed", "deepspeed") from None
    # DeepSpeed calls it by its old name at every step of a save.
    warnings.filterwarnings("ignore", "`torch.distributed.all_gather_into_tensor` is deprecated", FutureWarning)
    return str(path)


@contextmanager
def first_process_speaks() -> Iterator[None]:
    """What is wrong for all processes is said once: a launcher ends the others as soon as the first one ends.

    What only another process knows is said by it, a little later.
    """
    try:
        yield
    except UserError:
        if rank() > 0:
            time.sleep(10)
        raise


def first_process_does(work: Callable[[], T]) -> T:
    """`work()` on the first process; every process gets its result.

    The other processes wait (the process group must exist: build TrainingArguments first). A UserError of the work is
    raised in all of them; see `first_process_speaks`.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return work()
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            box[0] = work()
        except UserError as error:
            box[1] = str(error)
            dist.broadcast_object_list(box, src=0)
            raise
    dist.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise UserError(box[1])
    result: T = box[0]
    return result
