"""From trajectories to what one optimizer step trains on: token streams with weights, packed into micro-batches.

Everything is counted over the whole step (all micro-batches, all processes), so that a micro-batch's loss is a plain sum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentic.records import StopReason, Trajectory
from agentic.train.packing import Row, Tokens, make_batches

if TYPE_CHECKING:
    import torch

HARNESS = frozenset({StopReason.SANDBOX_LOST, StopReason.POLICY_ERROR, StopReason.DEADLINE})
"""Ends that say nothing about the policy: such a trajectory leaves loss and baseline."""
CUT = frozenset({StopReason.TRUNCATED, StopReason.MAX_TOKENS})
"""Ends by a token budget, as the rollout says; never guessed from a width."""


def check_stream(trajectory: Trajectory, end_ids: Collection[int]) -> None:
    """Assert what the token stream of a trajectory promises (training.md, "Masks"); AssertionError says which."""
    where = f"task {trajectory.task_id}, sample {trajectory.sample}"
    ids, mask, logprobs = trajectory.completion_ids, trajectory.mask, trajectory.logprobs
    assert len(ids) == len(mask) == len(logprobs), (
        f"{where}: {len(ids)} ids, {len(mask)} mask, {len(logprobs)} logprobs"
    )
    sampled = sum(turn.generated_tokens for turn in trajectory.turns)
    assert sum(mask) == sampled, f"{where}: {sum(mask)} tokens are trained, {sampled} were sampled"
    if not ids:
        return
    assert trajectory.prompt_ids, f"{where}: sampled without a prompt"
    assert mask[0] == 1, f"{where}: the first token of the agent is not trained"
    for index in range(1, len(ids)):
        if ids[index - 1] in end_ids and mask[index - 1]:
            assert not mask[index], f"{where}: token {index} stands behind an end of turn and is trained"
    assert all(value == 0.0 for value, one in zip(logprobs, mask, strict=True) if not one), f"{where}: logprobs moved"


def tokens_of(trajectory: Trajectory, key: int) -> Tokens:
    """The stream as a training example; its trained tokens are exactly the sampled ones."""
    ids = [*trajectory.prompt_ids, *trajectory.completion_ids]
    return Tokens.from_mask(ids, [0] * len(trajectory.prompt_ids) + trajectory.mask, key)


def sampled_logprobs(trajectory: Trajectory) -> list[float]:
    """What the sampler said about each trained token, in order."""
    return [value for value, one in zip(trajectory.logprobs, trajectory.mask, strict=True) if one]


@dataclass(frozen=True)
class Piece:
    """One sequence of the step: an expert trajectory (`logprobs` empty) or one of the agent's own."""

    tokens: Tokens
    weight: float
    """Of each of its trained tokens, within its term of the loss."""
    advantage: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    """The sampler's, one a trained token."""

    @property
    def sampled(self) -> bool:
        return bool(self.logprobs)


@dataclass
class MicroBatch:
    """One forward pass: packed rows and, for their N trained tokens in the order of the rows, what the loss needs."""

    rows: list[Row]
    sampled: torch.Tensor
    """bool [N]: of the agent's own trajectories."""
    weights: torch.Tensor
    advantages: torch.Tensor
    logprobs: torch.Tensor
    """float32 [N]; logprobs of the sampler, 0 for expert tokens."""
    old: torch.Tensor | None = None
    """float32 [sampled tokens]: logprobs of the trainer before the first update on this batch."""

    @property
    def tokens(self) -> int:
        """Computed tokens, padding included."""
        return len(self.rows) * max(map(len, self.rows))


def micro_batches(pieces: Sequence[Piece], tokens_per_batch: int, seed: int) -> list[MicroBatch]:
    """Pack the pieces by tokens; prompts that pieces share are stored once. Same pieces and seed: same batches."""
    by_key = {piece.tokens.key: piece for piece in pieces}
    assert len(by_key) == len(pieces), "two pieces have one key"
    packed = make_batches([piece.tokens for piece in pieces], tokens_per_batch, seed=seed) if pieces else []
    # The largest first: what does not fit into memory shows in the first pass.
    return [_micro_batch(rows, by_key) for rows in reversed(packed)]


def empty_batch(end_id: int) -> MicroBatch:
    """One token of weight 0: a process with fewer batches than the others takes part in their collective operations."""
    key = -2
    piece = Piece(Tokens([end_id, end_id], [-100, end_id], key), 0.0)
    return _micro_batch(make_batches([piece.tokens], 2)[0], {key: piece})


def _micro_batch(rows: list[Row], by_key: dict[int, Piece]) -> MicroBatch:
    import torch

    sampled: list[bool] = []
    weights: list[float] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    for piece in (by_key[key] for row in rows for key in row.keys):
        count = piece.tokens.trained
        assert not piece.sampled or len(piece.logprobs) == count, "a sequence with another number of logprobs"
        sampled += [piece.sampled] * count
        weights += [piece.weight] * count
        advantages += [piece.advantage] * count
        logprobs += piece.logprobs or [0.0] * count
    return MicroBatch(
        rows,
        torch.tensor(sampled, dtype=torch.bool),
        torch.tensor(weights, dtype=torch.float32),
        torch.tensor(advantages, dtype=torch.float32),
        torch.tensor(logprobs, dtype=torch.float32),
    )
