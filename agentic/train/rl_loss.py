"""L = gamma * L_SFT + (1 - gamma) * L_RL over the trained tokens of one forward pass. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from agentic.train.losses import LossType, policy_loss, truncated_importance
from agentic.train.rl_batch import MicroBatch
from agentic.train.sums import Sums


@dataclass(frozen=True)
class LossOptions:
    loss_type: LossType
    epsilon_low: float
    epsilon_high: float
    importance_cap: float
    """0: no correction for the gap between sampler and trainer."""
    temperature: float
    """Of sampling: the policy gradient is that of softmax(logits / temperature)."""


def mixed_loss(
    logits: torch.Tensor, targets: torch.Tensor, batch: MicroBatch, gamma: float, options: LossOptions
) -> tuple[torch.Tensor, Sums]:
    """The share of this forward pass in the step's loss, and what is logged about it.

    logits [N, V] that predict targets [N], in the order of the batch's trained tokens. The batch's weights sum to 1 over
    the step for each term. On the first pass over a batch its own logprobs are the old ones: the ratio is exactly 1,
    whatever sampled; they are kept in the batch for further passes.
    """
    device = logits.device
    sampled = batch.sampled.to(device)
    weights = batch.weights.to(device)
    assert len(targets) == len(sampled), f"{len(targets)} trained tokens, {len(sampled)} expected"
    scaled = logits.float()
    if options.temperature != 1.0:  # in place: [N, V] is the largest tensor of the step
        scaled = scaled.div_(torch.where(sampled, options.temperature, 1.0)[:, None])
    logprobs = -F.cross_entropy(scaled, targets, reduction="none")  # [N]

    expert = torch.where(sampled, torch.zeros_like(weights), weights)
    sft = -(logprobs * expert).sum()
    own = logprobs[sampled]
    if batch.old is None:
        batch.old = own.detach()
    importance, sampler = None, batch.logprobs.to(device)[sampled]
    if options.importance_cap > 0:
        importance = truncated_importance(batch.old, sampler, options.importance_cap)
    rl, shown = policy_loss(
        own,
        batch.old,
        batch.advantages.to(device)[sampled],
        weights[sampled],
        loss_type=options.loss_type,
        epsilon_low=options.epsilon_low,
        epsilon_high=options.epsilon_high,
        importance=importance,
    )
    sums = Sums()
    sums.add("loss_sft", float(sft.detach()), 0.0)
    sums.add("loss_rl", float(rl.detach()), 0.0)
    count = float(shown["tokens"])
    if count:
        for name in ("clip_low", "clip_high", "ratio", "kl"):
            sums.add(name, float(shown[name]) * count, count)
        # The mean of -log p over what was sampled estimates the entropy (per token, at the sampling temperature).
        sums.add("entropy", -float(own.detach().sum()), len(own))
        gap = (batch.old - sampler).abs()
        gap = gap[torch.isfinite(gap)]
        if len(gap):
            sums.add("gap/mean", float(gap.sum()), len(gap))
            sums.top("gap/max", float(gap.max()))
        if importance is not None:
            sums.add("gap/importance", float(importance.sum()), len(importance))
            sums.add("gap/capped", float((importance >= options.importance_cap).sum()), len(importance))
    return gamma * sft + (1 - gamma) * rl, sums
