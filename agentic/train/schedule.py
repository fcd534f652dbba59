"""How the weight of the SFT term falls over a run of mixed training."""

from __future__ import annotations

import math
from typing import Literal, get_args

GammaSchedule = Literal["cosine", "linear", "constant"]


def gamma(step: int, total: int, kind: GammaSchedule = "cosine", start: float = 0.9, end: float = 0.05) -> float:
    """Weight of L_SFT in L = gamma * L_SFT + (1 - gamma) * L_RL at optimizer step `step` of `total`, counted from 0.

    The first step has exactly `start`, the last one (total - 1) and any later one exactly `end`; `constant` is `start`
    throughout. cosine: end + (start - end) * (1 + cos(pi * p)) / 2 with p = step / (total - 1), the half cosine of
    SGDR (Loshchilov and Hutter 2017, section 3, eq. 5). Raises ValueError for a step below 0, no steps, or a weight
    outside [0, 1].
    """
    if kind not in get_args(GammaSchedule):
        raise ValueError(f"schedule {kind!r} is unknown; use {', '.join(get_args(GammaSchedule))}")
    if step < 0 or total < 1:
        raise ValueError(f"step {step} of {total}: steps count from 0 and there is at least one")
    if not (0.0 <= start <= 1.0 and 0.0 <= end <= 1.0):
        raise ValueError(f"gamma from {start} to {end}: a weight is between 0 and 1")
    if kind == "constant" or step == 0:
        return start
    if step >= total - 1:
        return end
    progress = step / (total - 1)
    left = (1 + math.cos(math.pi * progress)) / 2 if kind == "cosine" else 1 - progress
    return end + (start - end) * left
