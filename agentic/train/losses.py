"""Policy gradient losses over flat trained tokens, and what goes into them. Pure functions.

N is the number of trained tokens (those the policy sampled) of a micro-batch, one after another, whatever trajectory
they come from. Weights that sum over a whole optimizer step make the loss a plain sum, so that micro-batches packed by
tokens and several processes add up to the loss of one big batch.

Papers: GRPO: Shao et al. 2024, "DeepSeekMath" (arXiv 2402.03300), section 4.1. DAPO: Yu et al. 2025 (2503.14476),
section 3. CISPO: MiniMax 2025, "MiniMax-M1" (2506.13585), section 3.1. Dr. GRPO: Liu et al. 2025 (2503.20783),
section 3. Truncated importance sampling: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy
RL Training". KL estimate: Schulman 2020, "Approximating KL Divergence", k3.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

if TYPE_CHECKING:
    import torch

LossType = Literal["grpo", "cispo", "dapo"]
AdvantageScale = Literal["group", "none"]
Key = TypeVar("Key", bound=Hashable)

EQUAL_REWARDS = 1e-6
"""Rewards of a group that lie within this span are equal. A computed variance would not do: in float32 that of seven
times 0.7 is not 0."""
STD_FLOOR = 1e-4
"""Added to a group's standard deviation, as TRL does: rewards that differ by next to nothing are not blown up to 1."""
MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here: e^89 is infinite in float32, and infinity times an advantage of 0 is not a number."""


def token_weights(lengths: Sequence[int], loss_type: LossType, excluded: Sequence[bool] | None = None) -> list[float]:
    """The weight of every trained token of sequence i of an optimizer step (all micro-batches, all processes).

    `lengths`: trained tokens of each sequence. Returns one weight a sequence, so that the step's loss is the plain sum
    of weight * token loss:
    - grpo: 1 / (n * length), the mean over a sequence's tokens, then over the n sequences (DeepSeekMath eq. 3);
    - dapo, cispo: 1 / (tokens of all sequences), the mean over tokens (DAPO eq. 8, MiniMax-M1 eq. 4).
    A sequence without trained tokens and an excluded one (a void trajectory) get 0 and count neither in n nor among
    the tokens; the weights of the others sum to 1.
    """
    _known("loss_type", loss_type, get_args(LossType))
    excluded = _excluded(excluded, len(lengths))
    if any(length < 0 for length in lengths):
        raise ValueError("a sequence has a negative length")
    counted = [0 if out else length for length, out in zip(lengths, excluded, strict=True)]
    if loss_type == "grpo":
        n = sum(length > 0 for length in counted)
        return [1.0 / (n * length) if length else 0.0 for length in counted]
    total = sum(counted)
    return [1.0 / total if length else 0.0 for length in counted]


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[Key],
    excluded: Sequence[bool] | None = None,
    scale: AdvantageScale = "group",
    tolerance: float = EQUAL_REWARDS,
) -> tuple[list[float], list[Key]]:
    """Advantage of every trajectory over its group (the samples of one prompt), and the groups without signal.

    scale "group": (r - mean) / (std + STD_FLOOR) with the sample standard deviation (DeepSeekMath section 4.1.2);
    "none": r - mean (Dr. GRPO). Excluded trajectories, and those whose reward is not a finite number (it could not be
    scored), get 0 and leave mean and deviation. A group has no signal, and advantages of exactly 0, when fewer than two
    trajectories are left in it or their rewards span no more than `tolerance`. Such groups are returned in order of
    their first trajectory.
    """
    _known("scale", scale, get_args(AdvantageScale))
    excluded = _excluded(excluded, len(rewards))
    members: dict[Key, list[int]] = {}
    for index, (group, reward, out) in enumerate(zip(groups, rewards, excluded, strict=True)):
        kept = members.setdefault(group, [])
        if not out and math.isfinite(reward):
            kept.append(index)
    advantages = [0.0] * len(rewards)
    without_signal: list[Key] = []
    for group, indices in members.items():
        values = [float(rewards[index]) for index in indices]
        if len(values) < 2 or max(values) - min(values) <= tolerance:
            without_signal.append(group)
            continue
        mean = math.fsum(values) / len(values)
        divisor = 1.0
        if scale == "group":
            variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
            divisor = math.sqrt(variance) + STD_FLOOR
        for index, value in zip(indices, values, strict=True):
            advantages[index] = (value - mean) / divisor
    return advantages, without_signal


def truncated_importance(
    trainer_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, cap: float = 2.0
) -> torch.Tensor:
    """min(p_trainer / p_sampler, cap), float32 [N], detached: the weight of a token whose sampler is not the trainer.

    Both [N], of the same weights before the update: `sampler_logprobs` as the other engine reported them,
    `trainer_logprobs` recomputed by the training forward (they are the `old_logprobs` of policy_loss, too). A token
    whose sampler logprob is not a finite number (the engine did not report it) gets 1.
    """
    import torch

    if cap <= 0:
        raise ValueError(f"cap {cap}: a truncated weight needs a cap above 0")
    sampled = sampler_logprobs.detach().float()
    gap = trainer_logprobs.detach().float() - sampled
    gap = torch.where(torch.isfinite(sampled), gap, torch.zeros_like(gap))
    return gap.clamp(max=MAX_LOG_RATIO).exp().clamp(max=cap)


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    *,
    loss_type: LossType,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.28,
    importance: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss (float32 scalar, differentiable in `logprobs`) and detached metrics of the trained tokens of a micro-batch.

    All [N]: log probabilities under the current and the old policy (the one that sampled, as the trainer computes it),
    the trajectory's advantage and the token's weight (`token_weights`). With r = exp(logprobs - old_logprobs):
    - grpo, dapo: -min(r * A, clip(r, 1 - epsilon_low, 1 + epsilon_high) * A) (DAPO eq. 8; DeepSeekMath eq. 3 has both
      epsilons equal). They differ in their weights;
    - cispo: -stopgrad(min(r, 1 + epsilon_high)) * A * logprobs: every token keeps its gradient (MiniMax-M1 eq. 4 and 5,
      without a lower bound as there).
    `importance` [N] multiplies the token losses (`truncated_importance`). There is no KL and no entropy term.

    A token of weight 0 moves neither loss nor metrics, whatever its numbers are. Metrics are means over the other
    tokens: `clip_low` and `clip_high` (share whose gradient the clip cut, for cispo: limited), `ratio` and `kl` (k3:
    r - 1 - log r, an estimate of KL(old || new)). `tokens` is their number: weigh by it when averaging over
    micro-batches. Without any token the loss is 0, with a gradient of 0.
    """
    import torch

    _known("loss_type", loss_type, get_args(LossType))
    shapes = {tuple(t.shape) for t in (logprobs, old_logprobs, advantages, weights, importance) if t is not None}
    if len(shapes) != 1 or logprobs.dim() != 1:
        raise ValueError(f"flat tensors of one length are needed, got the shapes {sorted(shapes)}")

    logprobs, weights = logprobs.float(), weights.detach().float()
    counts = weights != 0
    zero = torch.zeros((), dtype=torch.float32, device=logprobs.device)

    def only(values: torch.Tensor) -> torch.Tensor:
        """Not a product with the weight: 0 times infinity is not a number, in the gradient either."""
        return torch.where(counts, values, zero)

    current = only(logprobs)
    advantage = only(advantages.detach().float())
    log_ratio = (current - only(old_logprobs.detach().float())).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    if loss_type == "cispo":
        token_loss = -ratio.detach().clamp(max=1 + epsilon_high) * advantage * current
        cut_low = torch.zeros_like(counts)
        cut_high = (ratio > 1 + epsilon_high) & (advantage != 0)
    else:
        clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
        token_loss = -torch.minimum(ratio * advantage, clipped * advantage)
        cut_low = (ratio < 1 - epsilon_low) & (advantage < 0)
        cut_high = (ratio > 1 + epsilon_high) & (advantage > 0)
    if importance is not None:
        token_loss = token_loss * only(importance.detach().float())
    loss = (token_loss * weights).sum()

    tokens = counts.sum()

    def mean(values: torch.Tensor) -> torch.Tensor:
        return only(values.detach().float()).sum() / tokens.clamp(min=1)

    return loss, {
        "clip_low": mean(cut_low),
        "clip_high": mean(cut_high),
        "ratio": mean(ratio),
        "kl": mean(ratio - 1 - log_ratio),
        "tokens": tokens,
    }


def _known(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} {value!r} is unknown; use {', '.join(choices)}")


def _excluded(excluded: Sequence[bool] | None, count: int) -> Sequence[bool]:
    return [False] * count if excluded is None else excluded
