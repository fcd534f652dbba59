# ruff: noqa: E402 (imports follow importorskip)
"""Policy losses and advantages against float64 numpy written from the papers, and against TRL's own loss code."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_model, make_tokenizer

from agentic.train.losses import LossType, group_advantages, policy_loss, token_weights, truncated_importance
from agentic.train.schedule import gamma

LOSSES: tuple[LossType, ...] = ("grpo", "dapo", "cispo")
LOW, HIGH = 0.2, 0.28

numbers = st.floats(-3, 3, width=32)
flags = st.booleans()


def loss_of(
    new: Any, old: Any, advantages: Any, weights: Any, loss_type: LossType, importance: Any = None
) -> tuple[float, np.ndarray, dict[str, float]]:
    """Our loss, its gradient with respect to `new`, and the metrics, as numbers."""
    leaf = torch.tensor(np.asarray(new), dtype=torch.float32, requires_grad=True)
    rest = [torch.tensor(np.asarray(x), dtype=torch.float32) for x in (old, advantages, weights)]
    extra = None if importance is None else torch.tensor(np.asarray(importance), dtype=torch.float32)
    loss, metrics = policy_loss(leaf, *rest, loss_type=loss_type, epsilon_low=LOW, epsilon_high=HIGH, importance=extra)
    loss.backward()
    assert loss.dtype == torch.float32 and not any(value.requires_grad for value in metrics.values())
    return float(loss.detach()), leaf.grad.numpy(), {name: float(value) for name, value in metrics.items()}


def reference(new: Any, old: Any, advantages: Any, loss_type: LossType) -> tuple[np.ndarray, np.ndarray]:
    """Token losses and their derivatives by `new`, float64, token by token as the papers write them."""
    losses, slopes = [], []
    for now, before, a in zip(*(np.asarray(x, dtype=np.float64) for x in (new, old, advantages)), strict=True):
        r = math.exp(now - before)
        if loss_type == "cispo":  # J = sg(r^) A log pi
            limited = min(r, 1 + HIGH)
            losses.append(-limited * a * now)
            slopes.append(-limited * a)
        else:  # J = min(r A, clip(r) A); r' = r
            kept, clipped = r * a, min(max(r, 1 - LOW), 1 + HIGH) * a
            losses.append(-min(kept, clipped))
            slopes.append(-r * a if kept <= clipped else 0.0)
    return np.array(losses), np.array(slopes)


def paper_weights(lengths: list[int], loss_type: LossType) -> list[float]:
    """1/n sum_i 1/|o_i| sum_t (GRPO), 1/sum|o_i| sum_i sum_t (DAPO, CISPO), over sequences with trained tokens."""
    used = [length for length in lengths if length]
    if loss_type == "grpo":
        return [1 / len(used) / length if length else 0.0 for length in lengths]
    return [1 / sum(used) if length else 0.0 for length in lengths]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[float], list[float], list[float]]:
    """Lengths of sequences, new and old logprobs of their tokens, and the token's advantage."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    count = sum(lengths)
    new = draw(st.lists(st.floats(-6, 0, width=32), min_size=count, max_size=count))
    shift = draw(st.lists(st.floats(-1, 1, width=32), min_size=count, max_size=count))
    per_sequence = draw(st.lists(numbers, min_size=len(lengths), max_size=len(lengths)))
    advantages = [a for a, length in zip(per_sequence, lengths, strict=True) for _ in range(length)]
    return lengths, new, [a - b for a, b in zip(new, shift, strict=True)], advantages


def spread(values: list[float], lengths: list[int]) -> list[float]:
    return [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]


@pytest.mark.parametrize("loss_type", LOSSES)
@given(batch=batches())
@settings(max_examples=40, deadline=None)
def test_loss_and_gradient_equal_the_papers_in_float64(loss_type: LossType, batch: Any) -> None:
    lengths, new, old, advantages = batch
    ratios = np.exp(np.asarray(new) - np.asarray(old))
    for edge in (1 - LOW, 1 + HIGH):  # at the kink itself either side's slope is right
        if np.any(np.abs(ratios - edge) < 1e-4):
            return
    weights = spread(paper_weights(lengths, loss_type), lengths)
    losses, slopes = reference(new, old, advantages, loss_type)
    ours, gradient, metrics = loss_of(
        new, old, advantages, spread(token_weights(lengths, loss_type), lengths), loss_type
    )
    assert ours == pytest.approx(float(losses @ np.array(weights)) if new else 0.0, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(gradient, slopes * weights, rtol=1e-4, atol=1e-6)
    if new:
        assert metrics["ratio"] == pytest.approx(ratios.mean(), rel=1e-4)
        assert metrics["kl"] == pytest.approx((ratios - 1 - np.log(ratios)).mean(), rel=1e-3, abs=1e-5)
        assert metrics["tokens"] == len(new)


@pytest.mark.parametrize("loss_type", LOSSES)
@given(batch=batches(), cut=st.integers(0, 30))
@settings(max_examples=25, deadline=None)
def test_micro_batches_add_up_to_the_step(loss_type: LossType, batch: Any, cut: int) -> None:
    lengths, new, old, advantages = batch
    weights = spread(token_weights(lengths, loss_type), lengths)
    whole, gradient, _ = loss_of(new, old, advantages, weights, loss_type)
    parts = [
        loss_of(new[s], old[s], advantages[s], weights[s], loss_type) for s in (slice(None, cut), slice(cut, None))
    ]
    assert sum(part[0] for part in parts) == pytest.approx(whole, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(np.concatenate([part[1] for part in parts]), gradient, rtol=1e-6)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_token_of_weight_zero_moves_nothing(loss_type: LossType) -> None:
    """Case E17: masked tokens with any old logprob, infinite and not a number included."""
    new, old, advantages = [-1.0, -2.0], [-1.2, -1.9], [1.0, -0.5]
    expected = loss_of(new, old, advantages, [0.5, 0.5], loss_type, [0.7, 1.3])
    for bad in (0.0, 7.0, -math.inf, math.inf, math.nan):
        for where in range(4):  # which of logprob, old logprob, advantage and importance is bad
            extra = [-3.0, -3.0, 1.0, 1.0]
            extra[where] = bad
            loss, gradient, metrics = loss_of(
                [*new, extra[0]],
                [*old, extra[1]],
                [*advantages, extra[2]],
                [0.5, 0.5, 0.0],
                loss_type,
                [0.7, 1.3, extra[3]],
            )
            assert loss == expected[0] and metrics == expected[2]
            assert gradient.tolist() == [*expected[1].tolist(), 0.0]


@pytest.mark.parametrize("loss_type", LOSSES)
def test_extreme_ratios_stay_finite(loss_type: LossType) -> None:
    loss, gradient, metrics = loss_of(
        [0.0, -500.0, 0.0], [-500.0, 0.0, -500.0], [0.0, 1.0, -1.0], [0.3, 0.3, 0.4], loss_type
    )
    assert math.isfinite(loss) and np.isfinite(gradient).all() and all(map(math.isfinite, metrics.values()))


def test_no_token_is_a_loss_of_zero_that_can_be_stepped() -> None:
    loss, gradient, metrics = loss_of([], [], [], [], "dapo")
    assert loss == 0 and gradient.shape == (0,) and metrics["tokens"] == 0 and metrics["ratio"] == 0


def test_clip_shares_and_the_gradient_the_clip_cuts() -> None:
    ratios = np.array([1.0, 0.5, 0.5, 2.0, 2.0])
    advantages = np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    new = np.log(ratios) - 1.0
    _, gradient, metrics = loss_of(new, np.full(5, -1.0), advantages, np.full(5, 0.2), "dapo")
    assert (gradient == 0).tolist() == [False, True, False, True, False]
    assert metrics["clip_low"] == pytest.approx(0.2) and metrics["clip_high"] == pytest.approx(0.2)
    _, gradient, metrics = loss_of(new, np.full(5, -1.0), advantages, np.full(5, 0.2), "cispo")
    assert (gradient != 0).all()  # CISPO cuts nobody's gradient, it limits the weight
    np.testing.assert_allclose(gradient[3:], [-1.28 * 0.2, 1.28 * 0.2], rtol=1e-6)
    assert metrics["clip_low"] == 0 and metrics["clip_high"] == pytest.approx(0.4)


def test_half_precision_inputs_are_computed_in_float32() -> None:
    new = torch.tensor([-1.0, -2.0], dtype=torch.bfloat16, requires_grad=True)
    old = torch.tensor([-1.001, -1.999])  # bfloat16 would round both to the values of `new`
    loss, metrics = policy_loss(new, old, torch.ones(2), torch.full((2,), 0.5), loss_type="grpo")
    assert loss.dtype == torch.float32
    assert float(metrics["kl"]) == pytest.approx(5e-7, rel=0.2)


def test_wrong_shapes_and_names_are_refused() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    with pytest.raises(ValueError, match="flat tensors of one length"):
        policy_loss(two, two, two, one, loss_type="grpo")
    with pytest.raises(ValueError, match="flat tensors of one length"):
        policy_loss(*[torch.zeros(1, 2)] * 4, loss_type="grpo")
    with pytest.raises(ValueError, match="'ppo' is unknown; use grpo, cispo, dapo"):
        policy_loss(one, one, one, one, loss_type="ppo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown"):
        token_weights([1], "ppo")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize("loss_type", LOSSES)
@given(st.lists(st.tuples(st.integers(0, 9), flags), max_size=8))
def test_weights_of_a_step_sum_to_one(loss_type: LossType, sequences: list[tuple[int, bool]]) -> None:
    lengths = [length for length, _ in sequences]
    out = [flag for _, flag in sequences]
    weights = token_weights(lengths, loss_type, out)
    used = [length > 0 and not flag for length, flag in sequences]
    assert [weight > 0 for weight in weights] == used
    total = sum(weight * length for weight, length in zip(weights, lengths, strict=True))
    assert total == pytest.approx(1.0 if any(used) else 0.0)
    # An excluded sequence is as if it had never been there.
    kept = [length for length, flag in sequences if not flag]
    assert [w for w, flag in zip(weights, out, strict=True) if not flag] == token_weights(kept, loss_type)
    assert weights == pytest.approx(paper_weights([0 if flag else n for n, flag in sequences], loss_type))


def test_weights_need_lengths() -> None:
    with pytest.raises(ValueError, match="negative"):
        token_weights([3, -1], "grpo")
    with pytest.raises(ValueError):
        token_weights([3, 1], "grpo", [True])


# --------------------------------------------------------------------------------------------- advantages


# Cases E07 and E18 of the collection, copied: the shared folder is not part of the package.
@pytest.mark.parametrize("rewards", [[0.3] * 8, [0.7] * 7, [0.35] * 7, [1.0], [0.1 + 0.2, 0.3, 0.3]])
@pytest.mark.parametrize("scale", ["group", "none"])
def test_equal_rewards_have_no_signal(rewards: list[float], scale: Any) -> None:
    for values in (rewards, np.float32(rewards).tolist(), list(np.float32(rewards))):
        assert group_advantages(values, ["g"] * len(values), scale=scale) == ([0.0] * len(values), ["g"])


def test_a_group_is_scaled_by_itself_alone() -> None:
    advantages, silent = group_advantages([1, 0, 1, 0, 0.5, 0.5, 0.5, 0.5], [0, 0, 0, 0, 1, 1, 1, 1])
    assert advantages[4:] == [0.0] * 4 and silent == [1]
    assert advantages[:4] == group_advantages([1, 0, 1, 0], [0] * 4)[0]
    one_bad, _ = group_advantages([0.7] * 7 + [0.1], [0] * 8)
    assert all(math.isfinite(a) and abs(a) < 10 for a in one_bad) and one_bad[0] > 0 > one_bad[7]


def test_rows_that_cannot_be_scored_leave_the_statistics() -> None:
    advantages, silent = group_advantages([1.0, math.nan, 0.0, 1.0], [0] * 4)
    assert advantages[1] == 0.0 and silent == []
    assert [advantages[i] for i in (0, 2, 3)] == group_advantages([1.0, 0.0, 1.0], [0] * 3)[0]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0, math.nan]), st.sampled_from("abc"), flags), max_size=14),
    st.sampled_from(["group", "none"]),
)
def test_advantages_equal_numpy_over_the_trajectories_that_count(rows: Any, scale: Any) -> None:
    rewards, groups, out = ([row[i] for row in rows] for i in range(3))
    advantages, silent = group_advantages(rewards, groups, out, scale)
    for group in set(groups):
        inside = [i for i, g in enumerate(groups) if g == group]
        used = [i for i in inside if not out[i] and not math.isnan(rewards[i])]
        assert all(advantages[i] == 0 for i in inside if i not in used)
        values = np.array([rewards[i] for i in used])
        flat = len(used) < 2 or values.min() == values.max()
        assert (group in silent) == flat
        if flat:
            assert all(advantages[i] == 0 for i in used)
        else:
            expected = (values - values.mean()) / (values.std(ddof=1) + 1e-4 if scale == "group" else 1.0)
            np.testing.assert_allclose([advantages[i] for i in used], expected, rtol=1e-9)
    assert silent == [g for g in dict.fromkeys(groups) if g in silent]


@given(st.permutations(range(6)))
def test_the_order_of_completion_does_not_matter(order: list[int]) -> None:
    """Rewards stay with their trajectories: what the published code appended in completion order."""
    rewards, groups = [1.0, 0.0, 0.5, 0.2, 0.2, 0.9], list("ababab")
    straight, _ = group_advantages(rewards, groups)
    mixed, _ = group_advantages([rewards[i] for i in order], [groups[i] for i in order])
    assert mixed == pytest.approx([straight[i] for i in order])


# --------------------------------------------------------------------------------------------- importance


def test_truncated_importance() -> None:
    trainer = torch.tensor([-1.0, -1.0, -1.0, -1.0, 0.0], requires_grad=True)
    sampler = torch.tensor([-1.0, -1.5, -4.0, math.nan, -900.0])
    weights = truncated_importance(trainer, sampler, cap=2.0)
    np.testing.assert_allclose(weights.numpy(), [1.0, math.exp(0.5), 2.0, 1.0, 2.0], rtol=1e-6)
    assert not weights.requires_grad
    assert float(truncated_importance(torch.tensor([-4.0]), torch.tensor([-1.0]))) == pytest.approx(math.exp(-3))
    with pytest.raises(ValueError, match="cap"):
        truncated_importance(trainer, sampler, cap=0)


# --------------------------------------------------------------------------------------------------- TRL


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """TRL's trainer over the tiny model with a batch of 4 completions of unequal length, one token of each a tool's output."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = make_tokenizer("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    model = make_model(len(tokenizer)).eval()
    arguments = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        per_device_train_batch_size=4,
        num_generations=4,
        epsilon=LOW,
        epsilon_high=HIGH,
        report_to=[],
        bf16=False,
        temperature=1.0,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a"]}),
        processing_class=tokenizer,
    )
    model.eval()
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 256, (4, 11), generator=generator)
    lengths = torch.tensor([7, 5, 3, 6])
    tool_mask = torch.ones(4, 7, dtype=torch.long)
    tool_mask[:, 2] = 0
    completion_mask = (torch.arange(7) < lengths[:, None]).long()
    batch = {
        "prompt_ids": ids[:, :4],
        "prompt_mask": torch.ones(4, 4, dtype=torch.long),
        "completion_ids": ids[:, 4:],
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor([1.2, -0.7, 0.4, -1.1]),
        "num_items_in_batch": (completion_mask * tool_mask).sum(),
    }
    with torch.no_grad():
        logprobs = flat_logprobs(model, batch)
    noise = torch.randn(4, 7, generator=generator) * 0.3
    old = torch.zeros(4, 7)
    mask = (completion_mask * tool_mask).bool()
    old[mask] = logprobs
    batch["old_per_token_logps"] = old + noise
    batch["importance_sampling_ratio"] = torch.rand(4, 7, generator=generator) + 0.5
    return SimpleNamespace(trainer=trainer, model=model, batch=batch, mask=mask)


def flat_logprobs(model: Any, batch: dict[str, Any]) -> Any:
    """[N] logprobs of the trained tokens, by a plain forward."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    logits = model(input_ids=ids).logits[:, 3:-1].float()
    chosen = logits.log_softmax(-1).gather(-1, batch["completion_ids"][..., None])[..., 0]
    return chosen[mask]


@pytest.mark.parametrize("importance", [False, True])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_loss_and_gradients_equal_those_of_trl(trl: Any, loss_type: LossType, importance: bool) -> None:
    trainer, model, batch, mask = trl.trainer, trl.model, trl.batch, trl.mask
    trainer.loss_type = loss_type
    # TRL's epsilon_high is the ceiling itself for cispo; ours is the paper's, above 1.
    trainer.epsilon_high = 1 + HIGH if loss_type == "cispo" else HIGH
    trainer.use_vllm = importance
    theirs = trainer._compute_loss(model, batch)
    theirs.backward()
    theirs = theirs.item()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    their_metrics = {name: values[-1] for name, values in trainer._metrics["eval"].items()}
    model.zero_grad()

    lengths = mask.sum(1)
    weights = torch.tensor(token_weights(lengths.tolist(), loss_type)).repeat_interleave(lengths)
    loss, metrics = policy_loss(
        flat_logprobs(model, batch),
        batch["old_per_token_logps"][mask],
        batch["advantages"].repeat_interleave(lengths),
        weights,
        loss_type=loss_type,
        epsilon_low=LOW,
        epsilon_high=HIGH,
        importance=batch["importance_sampling_ratio"][mask] if importance else None,
    )
    loss.backward()
    loss = loss.item()
    assert loss == pytest.approx(theirs, rel=1e-5) and abs(loss) > 1e-3
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6)
    model.zero_grad()
    if loss_type != "cispo":  # TRL counts only tokens of positive advantage for cispo
        assert float(metrics["clip_low"]) == pytest.approx(their_metrics["clip_ratio/low_mean"])
        assert float(metrics["clip_high"]) == pytest.approx(their_metrics["clip_ratio/high_mean"])
        assert float(metrics["clip_low"]) > 0 and float(metrics["clip_high"]) > 0


# ------------------------------------------------------------------------------------------------ schedule


@given(st.integers(1, 400), st.sampled_from(["cosine", "linear", "constant"]), st.floats(0, 1), st.floats(0, 1))
def test_gamma_is_exact_at_both_ends_and_goes_one_way(total: int, kind: Any, start: float, end: float) -> None:
    values = [gamma(step, total, kind, start, end) for step in range(total + 2)]
    assert values[0] == start
    if kind == "constant":
        assert set(values) == {start}
        return
    assert values[-1] == values[-2] == end and (total == 1 or values[total - 1] == end)
    low, high = min(start, end), max(start, end)
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in values)
    steps = np.diff(values) * (1 if end >= start else -1)
    assert (steps >= -1e-12).all()


def test_gamma_in_the_middle() -> None:
    assert gamma(0, 350) == 0.9 and gamma(349, 350) == 0.05
    assert gamma(50, 101) == pytest.approx(0.475) and gamma(50, 101, "linear") == pytest.approx(0.475)
    assert gamma(25, 101) == pytest.approx(0.05 + 0.85 * (1 + math.cos(math.pi / 4)) / 2)
    assert gamma(25, 101, "linear") == pytest.approx(0.9 - 0.85 / 4)
    assert gamma(7, 101, "constant", start=0.3) == 0.3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 10), "count from 0"),
        ((0, 0), "at least one"),
        ((0, 10, "step"), "'step' is unknown"),
        ((0, 10, "cosine", 1.2), "between 0 and 1"),
    ],
)
def test_gamma_refuses_what_makes_no_sense(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gamma(*arguments)
