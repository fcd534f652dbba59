"""Signs of reward hacking and of a policy that drifts, from the rows of metrics.jsonl alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WINDOW = 10
"""Steps compared with the steps before them."""
LESS_SUCCESS = 0.1
"""Fall of the success rate that counts, beside a reward or part that rises."""
RISE = 0.1
"""Rise of a reward or a part that counts."""
DRIFT = 1.6
"""Growth or shrinking of the response length against the first steps that counts."""
CALL_FREE = 0.2
TRUNCATED = 0.2
LEFT_OUT = 0.5
CAPPED = 0.1

# The parts that pay although the task may be wrong; more of the others is nothing to wonder about.
_PAYING = ("tool_selection_f1", "schema_valid_rate", "exec_success_rate", "format_score", "turn_efficiency")


def alarms(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Name -> one line, for the newest of the rows (in order, one a step). A function of the rows: resuming changes nothing."""
    rows = [row for row in rows if row.get("reward") is not None]
    found: dict[str, str] = {}
    if not rows:
        return found
    now, before, first = rows[-WINDOW:], rows[-2 * WINDOW : -WINDOW], rows[:WINDOW]
    if len(before) == WINDOW:
        fell = _mean(before, "success") - _mean(now, "success")
        if fell > LESS_SUCCESS:
            risen = [
                name for name in ("reward", *(f"parts.{part}" for part in _PAYING)) if _rise(before, now, name) > RISE
            ]
            if risen:
                names = ", ".join(name.removeprefix("parts.") for name in risen)
                found["hacking"] = (
                    f"{names} rose while success fell by {fell:.2f} over {WINDOW} steps: the reward pays for something "
                    "else than right answers; look at samples.jsonl"
                )
        if len(rows) >= 3 * WINDOW:
            length, start = _mean(now, "length"), _mean(first, "length")
            if start and not 1 / DRIFT < length / start < DRIFT:
                found["length"] = f"responses have {length:.0f} tokens, {start:.0f} at the start"
    if len(now) == WINDOW:
        if (share := _mean(now, "call_free")) > CALL_FREE:
            found["call_free"] = f"{share:.0%} of the answers come without any call: answers are guessed"
        if (share := _mean(now, "truncated")) > TRUNCATED:
            found["truncated"] = (
                f"{share:.0%} of the trajectories are cut by a token budget; raise --max_new_tokens or "
                "--max_total_tokens, or take them out of the loss with --truncated drop"
            )
        if (share := _mean(now, "left_out.share")) > LEFT_OUT:
            found["left_out"] = f"{share:.0%} of the trajectories leave the loss (void turns, failures); see left_out"
        if (share := _mean(now, "gap.capped")) > CAPPED:
            found["gap"] = f"{share:.0%} of the tokens reach the importance cap: sampler and trainer differ too much"
    return found


def _value(row: dict[str, Any], name: str) -> float | None:
    value: Any = row
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    """0 where nothing was logged."""
    values = [value for row in rows if (value := _value(row, name)) is not None]
    return sum(values) / len(values) if values else 0.0


def _rise(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]], name: str) -> float:
    return _mean(now, name) - _mean(before, name)
