# ruff: noqa: E402 (imports follow importorskip)
"""What RL is made of: token streams and masks, groups, the mixed loss, the timetable, samplers, alarms."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("peft")

from http_server import ScriptedServer
from rl_tiny import write_tasks
from test_chat import NATIVE, PLAIN
from tiny import call, make_model, make_tokenizer

from agentic.errors import UserError
from agentic.model.chat import Renderer
from agentic.policy.base import Conversation, Reply
from agentic.policy.generate import Engine, Generation
from agentic.policy.timetable import Timetable
from agentic.policy.tokens import TokenPolicy
from agentic.records import Message, StopReason, Task, Trajectory, Turn
from agentic.rollout import RolloutLimits, run_episode
from agentic.sandbox import Sandbox
from agentic.train.alarms import WINDOW, alarms
from agentic.train.packing import IGNORED, Tokens
from agentic.train.rl_batch import (
    MicroBatch,
    Piece,
    check_stream,
    empty_batch,
    micro_batches,
    sampled_logprobs,
    tokens_of,
)
from agentic.train.rl_data import Share, build, observe
from agentic.train.rl_endpoint import EndpointSampler, read_choice
from agentic.train.rl_loss import LossOptions, mixed_loss
from agentic.train.rl_rollouts import Collector, Episode, Plan, make_group
from agentic.train.rl_sampler import copy_weights
from agentic.train.rl_tasks import Expert, Order, Source, read_sources
from agentic.train.sums import Sums

PLAN = Plan(3, 1.0, RolloutLimits(), 8, 0, "keep", "group", 0)
OPTIONS = LossOptions("dapo", 0.2, 0.28, 2.0, 1.0)


pytest_plugins = ("shared_zygote",)
pytestmark = pytest.mark.usefixtures("shared_zygote")


@pytest.fixture(scope="module", params=["shipped", "native", "plain"])
def renderer(request: pytest.FixtureRequest) -> Renderer:
    template = {"shipped": None, "native": NATIVE, "plain": PLAIN}[request.param]
    return Renderer(make_tokenizer(template, chatml=template is None))


@pytest.fixture(scope="module")
def shipped() -> Renderer:
    return Renderer(make_tokenizer())


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner, shared_zygote: None) -> Iterator[Sandbox]:
    sandbox = Sandbox()
    yield sandbox
    runner.run(sandbox.close())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return read_sources([write_tasks(tmp_path_factory.mktemp("tasks"), count=4)])


class Playing(TokenPolicy):
    """Token in, token out with a script: each turn's ids are what the renderer makes of the message."""

    name, max_context = "playing", None

    def __init__(self, renderer: Renderer, turns: Sequence[Message | list[int]], version: str = "0") -> None:
        self.renderer, self.version, self.turns = renderer, version, iter(turns)
        self.prompts: list[list[int]] = []

    async def generate(self, prompt: list[int], budget: int, key: str) -> Generation:
        self.prompts.append(prompt)
        turn = next(self.turns)
        ids = turn if isinstance(turn, list) else self.renderer.assistant_ids(turn)
        return Generation(ids, [-0.5] * len(ids), "stop" if ids[-1] in self.renderer.end_ids else "length")


class PlayedSampler:
    """A Sampler whose episodes are played by the policies that `make(sample)` gives, ending in any order."""

    version = "0"
    generated = 0

    def __init__(self, make: Callable[[int], TokenPolicy]) -> None:
        self.make = make

    async def run(self, episodes: Sequence[Episode[Any]], **_: Any) -> list[Any]:
        return list(await asyncio.gather(*(one(self.make(i)) for i, one in enumerate(episodes))))


class Late(TokenPolicy):
    """Answers after a while."""

    name, version = "late", "0"

    def __init__(self, text: str, wait_s: float) -> None:
        self.text, self.wait_s = text, wait_s

    async def act(self, conversation: Conversation, max_new_tokens: int) -> Reply:
        await asyncio.sleep(self.wait_s)
        return Reply(self.text)


def collector(sources: list[Source], sampler: Any, sandbox: Sandbox, **changes: Any) -> Collector:
    return Collector(sources, Order(len(sources), 0), sampler, sandbox, dataclasses.replace(PLAN, **changes), [0])


def trajectory(reward: float | None, sample: int = 0, **changes: Any) -> Trajectory:
    given: dict[str, Any] = {
        "task_id": "t",
        "sample": sample,
        "policy_version": "0",
        "reward": reward,
        "stop_reason": StopReason.ANSWERED,
        "prompt_ids": [1, 2, 3],
        "completion_ids": [4, 5],
        "mask": [1, 1],
        "logprobs": [-1.0, -2.0],
        "turns": [Turn(text="x", actions=[], generated_tokens=2)],
    }
    return Trajectory(**(given | changes))


# ------------------------------------------------------------------------------------ token streams and masks


def test_a_rollout_of_the_expert_is_the_sft_example(
    renderer: Renderer, sources: list[Source], runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    """E01, E04, E06 on three templates: ids and trained tokens are the same whether the agent or the file wrote them."""
    source = sources[0]
    turns = [message for message in source.task.expert_trajectory if message.role == "assistant"]
    policy = Playing(renderer, turns)
    found = runner.run(run_episode(source.task, source.base_dir, policy, sandbox))
    check_stream(found, renderer.end_ids)
    mine = tokens_of(found, 7)
    expert = Expert(sources, renderer, 4096)[0]
    assert expert is not None and mine.key == 7
    assert mine.ids == expert.ids and mine.labels == expert.labels
    # The first token of the agent is trained; the observation and the token behind an end of turn are not.
    first = len(found.prompt_ids)
    assert mine.labels[:first] == [IGNORED] * first and mine.labels[first] == mine.ids[first]
    trained = [label for label in mine.labels if label != IGNORED]
    assert trained == [token for turn in turns for token in renderer.assistant_ids(turn)]
    # The prompt of the second turn begins with exactly the ids so far.
    one, two = policy.prompts
    assert two[: len(one)] == one and two[: len(one) + len(renderer.assistant_ids(turns[0]))] == (
        one + renderer.assistant_ids(turns[0])
    )
    assert len(sampled_logprobs(found)) == mine.trained


def test_a_cut_turn_gets_an_end_that_nobody_trains(
    shipped: Renderer, sources: list[Source], runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    """A turn that ran into its budget is completed in the stream, not in the loss (E04)."""
    policy = Playing(shipped, [[65, 66], Message(role="assistant", content="3")])
    conversation = Conversation(messages=[Message(role="user", content="q")], tools=[])

    async def two_turns() -> None:
        await policy.act(conversation, 2)
        conversation.messages.append(Message(role="assistant", content="AB"))
        conversation.messages.append(Message(role="user", content="go on"))
        await policy.act(conversation, 9)

    runner.run(two_turns())
    assert conversation.completion_ids[:3] == [65, 66, shipped.end_ids[0]]
    assert conversation.mask[:4] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mask": [1, 1, 1]}, "2 ids, 3 mask"),
        ({"logprobs": [-1.0]}, "2 mask, 1 logprobs"),
        ({"mask": [0, 1]}, "1 tokens are trained, 2 were sampled"),
        ({"mask": [0, 1], "turns": [Turn(text="x", actions=[], generated_tokens=1)], "logprobs": [0.0, -1.0]}, "first"),
        ({"completion_ids": [9, 5]}, "behind an end of turn"),
        (
            {
                "completion_ids": [4, 9, 5],
                "mask": [1, 1, 0],
                "logprobs": [-1.0, -1.0, -1.0],
            },
            "logprobs moved",
        ),
        ({"prompt_ids": []}, "without a prompt"),
    ],
)
def test_a_stream_that_breaks_its_promise_is_found(change: dict[str, Any], said: str) -> None:
    """E06, and the published mask that was off by one and skipped the first token."""
    check_stream(trajectory(1.0), [9])
    with pytest.raises(AssertionError, match=said):
        check_stream(trajectory(1.0, **change), [9])


# ---------------------------------------------------------------------------------------- groups and rewards


def test_rewards_stay_with_their_trajectories_whatever_the_order_of_completion(
    sources: list[Source], runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    """The published code appended rewards as episodes ended."""
    right = {source.task.id: source.task.answer for source in sources}
    order = Order(len(sources), 0)
    tasks = [sources[order[slot]].task.id for slot in range(2) for _ in range(3)]

    def make(index: int) -> TokenPolicy:  # samples 0 and 2 are right, and end last
        return Late(right[tasks[index]] if index % 3 != 1 else "1000", 0.05 - 0.008 * index)

    collected = runner.run(collector(sources, PlayedSampler(make), sandbox).collect(0, range(2), 2))
    for group in collected.groups:
        assert [one.parts["task_success"] for one in group.trajectories] == [1.0, 0.0, 1.0]
        assert [advantage > 0 for advantage in group.advantages] == [True, False, True]
        assert [one.task_id for one in group.trajectories] == [sources[group.source].task.id] * 3
    samples = [one.sample for group in collected.groups for one in group.trajectories]
    assert samples == sorted(set(samples))  # each has random numbers of its own


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stop_reason": StopReason.SANDBOX_LOST}, "sandbox_lost"),
        ({"stop_reason": StopReason.POLICY_ERROR}, "policy_error"),
        ({"stop_reason": StopReason.DEADLINE}, "deadline"),
        ({"policy_version": "step-3"}, "stale"),
        ({"reward": None}, "unjudged"),
        ({"reward": math.nan}, "unjudged"),
        ({"void": True, "stop_reason": StopReason.PARSE_ERROR}, "void"),
        ({"void": True, "stop_reason": StopReason.TRUNCATED}, None),
        ({"stop_reason": StopReason.MAX_TURNS}, None),
    ],
)
def test_what_says_nothing_about_the_policy_leaves_loss_and_baseline(
    change: dict[str, Any], reason: str | None
) -> None:
    """A judge that is out of reach counted as reward 0 in the published code; E18: a row that is no number."""
    odd = trajectory(**({"reward": -50.0, "sample": 2} | change))
    group = make_group(0, 0, 0, [trajectory(1.0), trajectory(0.0, 1), odd], "0")
    assert group.left_out == [None, None, reason]
    assert len(group.trained) == (2 if reason else 3)
    if reason:
        alone = make_group(0, 0, 0, [trajectory(1.0), trajectory(0.0, 1)], "0")
        assert group.advantages == [*alone.advantages, 0.0]
        assert all(math.isfinite(advantage) for advantage in group.advantages)


def test_truncated_is_its_own_reason_and_option() -> None:
    """E09: by the reason that the rollout kept, not by a width."""
    cut = trajectory(-1.0, 1, stop_reason=StopReason.TRUNCATED)
    whole = [trajectory(1.0), trajectory(0.0, 2)]
    assert make_group(0, 0, 0, [whole[0], cut, whole[1]], "0", "keep").left_out == [None, None, None]
    assert make_group(0, 0, 0, [whole[0], cut, whole[1]], "0", "drop").left_out == [None, "truncated", None]


def test_groups_without_signal_are_sampled_again_within_bounds(
    sources: list[Source], runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    """Another task takes the slot; rewards are logged as the first attempts gave them."""
    good = {source.task.id: source.task.answer for source in sources}
    attempts: list[int] = []

    class Sampler(PlayedSampler):
        async def run(self, episodes: Sequence[Episode[Any]], **_: Any) -> list[Any]:
            attempts.append(len(episodes))
            # Slot 0 has signal from its second attempt on, slot 1 never has.
            policies = [
                Late("1000" if len(attempts) == 1 or place >= 3 or place % 3 else "2 3 4 5", 0.0)
                for place in range(len(episodes))
            ]
            if len(attempts) == 2:
                policies[0] = Copy(good)
            return list(await asyncio.gather(*(one(p) for one, p in zip(episodes, policies, strict=True))))

    class Copy(Late):
        def __init__(self, answers: dict[str, str]) -> None:
            super().__init__("", 0.0)
            self.answers = answers

        async def act(self, conversation: Conversation, max_new_tokens: int) -> Reply:
            return Reply(self.answers[conversation.task_id])

    collected = runner.run(collector(sources, Sampler(Late), sandbox, max_resamples=2).collect(0, range(2), 2))  # type: ignore[arg-type]
    assert attempts == [6, 6, 3] and collected.retries == 3
    assert [group.signal for group in collected.groups] == [True, False]
    assert [group.attempt for group in collected.groups] == [1, 2]
    sums = Sums()
    observe(collected, sums)
    assert sums.mean("success") == 0.0 and sums.mean("kept_groups") == 0.5 and sums.total("retries") == 3


def test_episodes_of_one_task_have_files_of_their_own_and_run_beside_each_other(
    sources: list[Source], runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    """The published code wrote all rollouts of a task into one file, and blocked the loop while code ran."""

    def make(index: int) -> TokenPolicy:
        code = (
            f"import time; open('result.txt', 'w').write('{index}'); time.sleep(0.3); print(open('result.txt').read())"
        )
        return Playing(renderer, [call(code), Message(role="assistant", content="3")])

    renderer = Renderer(make_tokenizer())
    one = collector(sources, PlayedSampler(make), sandbox, num_generations=8)
    runner.run(one.sampler.run([one.episode(0, 0)]))  # the sandbox is warm
    started = time.monotonic()
    found = runner.run(one.sampler.run([one.episode(0, sample) for sample in range(8)]))
    assert time.monotonic() - started < 8 * 0.3
    assert [t.turns[0].observations[0].text for t in found] == [str(index) for index in range(8)]


@given(st.integers(1, 30), st.integers(0, 3))
def test_the_order_of_tasks_visits_each_once_an_epoch(tasks: int, seed: int) -> None:
    order = Order(tasks, seed)
    epochs = [[order[epoch * tasks + place] for place in range(tasks)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(tasks)) for epoch in epochs)
    again = Order(tasks, seed)  # asked from anywhere: a resumed run starts in the middle
    assert again[2 * tasks] == epochs[2][0] and again[0] == epochs[0][0]


def test_task_files_are_checked_before_anything_starts(sources: list[Source], tmp_path: Path) -> None:
    task = sources[0].task
    rows = tmp_path / "tasks.jsonl"

    def write(*tasks: Task) -> None:
        rows.write_text("".join(one.model_dump_json() + "\n" for one in tasks))

    write(task)
    with pytest.raises(UserError, match=r"t0\.csv does not exist"):
        read_sources([rows])
    write(task.model_copy(update={"tables": [], "checks": []}))
    with pytest.raises(UserError, match="has no checks"):
        read_sources([rows])
    write(*[task.model_copy(update={"tables": []})] * 2)
    with pytest.raises(UserError, match="occurs twice"):
        read_sources([rows])


# ------------------------------------------------------------------------------------------------------ loss


def pieces(seed: int = 0) -> list[Piece]:
    """Two expert and three sampled sequences, two of which share a prompt."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for key, (prompt, length) in enumerate([(60, 5), (60, 9), (50, 7), (60, 4), (60, 8)]):
        ids = torch.randint(0, 250, (prompt + length,), generator=generator).tolist()
        if key == 4:
            ids[:60] = found[3].tokens.ids[:60]
        tokens = Tokens.from_mask(ids, [0] * prompt + [1] * length, key)
        if key < 2:
            found.append(Piece(tokens, 1 / 14))
        else:
            logprobs = (-3 * torch.rand(length, generator=generator)).tolist()
            found.append(Piece(tokens, 1 / 19, [1.3, -0.4, 0.7][key - 2], logprobs))
    return found


def selected(model: Any, batch: MicroBatch) -> tuple[Any, Any]:
    """Logits and targets of the trained tokens, every sequence computed alone: no packing, no selection."""
    rows = {key: row for row in batch.rows for key in row.keys}
    assert rows
    logits, targets = [], []
    for piece in (by_key[key] for row in batch.rows for key in row.keys):
        ids = torch.tensor([piece.tokens.ids])
        found = model(input_ids=ids).logits[0]
        places = [i for i, label in enumerate(piece.tokens.labels) if label != IGNORED]
        logits.append(found[[i - 1 for i in places]])
        targets += [piece.tokens.labels[i] for i in places]
    return torch.cat(logits), torch.tensor(targets)


by_key = {piece.tokens.key: piece for piece in pieces()}


def gradient(model: Any, gamma: float, options: LossOptions = OPTIONS, tokens_per_batch: int = 4096) -> dict[str, Any]:
    model.zero_grad()
    for batch in micro_batches(pieces(), tokens_per_batch, seed=1):
        loss, _ = mixed_loss(*selected(model, batch), batch, gamma, options)
        loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(258)


@pytest.mark.parametrize("loss_type", ["grpo", "cispo", "dapo"])
def test_the_mixed_gradient_is_the_weighted_sum_of_both(model: Any, loss_type: Any) -> None:
    """Against gradients computed separately, in one batch or several, at a temperature other than 1."""
    options = dataclasses.replace(OPTIONS, loss_type=loss_type, temperature=0.7)
    sft, rl = gradient(model, 1.0, options), gradient(model, 0.0, options)
    for tokens_per_batch in (4096, 130):
        mixed = gradient(model, 0.3, options, tokens_per_batch)
        for name, value in mixed.items():
            torch.testing.assert_close(value, 0.3 * sft[name] + 0.7 * rl[name], atol=2e-6, rtol=1e-4)
    # And both against plain formulas.
    expected_sft = expected_rl = 0.0
    for piece in pieces():
        logits = model(input_ids=torch.tensor([piece.tokens.ids])).logits[0, :-1]
        labels = torch.tensor(piece.tokens.labels[1:])
        kept = labels != IGNORED
        scale = 0.7 if piece.sampled else 1.0
        logp = torch.log_softmax(logits[kept] / scale, -1).gather(-1, labels[kept][:, None])[:, 0]
        if piece.sampled:
            importance = (logp.detach() - torch.tensor(piece.logprobs)).exp().clamp(max=2.0)
            expected_rl = expected_rl - (piece.weight * piece.advantage * importance * logp).sum()
        else:
            expected_sft = expected_sft - (piece.weight * logp).sum()
    for total, found in ((expected_sft, sft), (expected_rl, rl)):
        wanted = torch.autograd.grad(total, list(model.parameters()))  # type: ignore[arg-type]
        for value, name in zip(wanted, found, strict=True):
            torch.testing.assert_close(found[name], value, atol=2e-6, rtol=1e-4)


def test_masked_tokens_move_nothing(model: Any) -> None:
    """E17: whatever a sampler says about tokens that are not trained, or does not say at all."""
    (batch,) = micro_batches(pieces(), 4096, seed=1)
    loss, sums = mixed_loss(*selected(model, batch), batch, 0.3, OPTIONS)
    odd = dataclasses.replace(batch, logprobs=batch.logprobs.clone(), old=None)
    odd.logprobs[~odd.sampled] = float("nan")
    again, others = mixed_loss(*selected(model, odd), odd, 0.3, OPTIONS)
    assert torch.equal(loss, again) and others.held == sums.held and others.largest == sums.largest
    assert sums.mean("ratio") == 1.0 and sums.mean("clip_low") == sums.mean("clip_high") == 0.0


def test_a_second_pass_clips_against_the_first(model: Any) -> None:
    """num_iterations: the old logprobs are those of the trainer before its first update, not the sampler's."""
    import copy

    trained = copy.deepcopy(model)
    (batch,) = micro_batches(pieces(), 4096, seed=1)
    optimizer = torch.optim.SGD(trained.parameters(), lr=1.0)
    clipped = []
    for _ in range(2):
        loss, sums = mixed_loss(*selected(trained, batch), batch, 0.0, OPTIONS)
        clipped.append((sums.mean("clip_low") or 0.0) + (sums.mean("clip_high") or 0.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert clipped[0] == 0.0 and clipped[1] > 0.0


def test_an_empty_batch_takes_part_with_a_gradient_of_zero(model: Any) -> None:
    batch = empty_batch(5)
    logits = model(input_ids=torch.tensor([batch.rows[0].ids])).logits[0, :1]
    loss, _ = mixed_loss(logits, torch.tensor([5]), batch, 0.5, OPTIONS)
    model.zero_grad()
    loss.backward()
    assert loss.item() == 0.0 and all(not p.grad.any() for p in model.parameters())


def test_weights_are_those_of_the_whole_step(sources: list[Source], shipped: Renderer) -> None:
    """Two processes: their weights sum to 1 together, and equal those of one process with everything (E14)."""
    groups = [
        make_group(
            slot,
            slot,
            0,
            [
                trajectory(1.0, 0),
                trajectory(
                    0.0,
                    1,
                    completion_ids=[4],
                    mask=[1],
                    logprobs=[-1.0],
                    turns=[Turn(text="x", actions=[], generated_tokens=1)],
                ),
            ],
            "0",
        )
        for slot in range(2)
    ]
    expert = Expert(sources, shipped, 4096)
    order = Order(len(sources), 0)

    def collected(mine: list[Any]) -> Any:
        from agentic.train.rl_rollouts import Collected

        return Collected(mine, mine, 0, mine)

    def total(batches: list[MicroBatch]) -> tuple[float, float]:
        own = sum(float(batch.weights[batch.sampled].sum()) for batch in batches)
        return own, sum(float(batch.weights[~batch.sampled].sum()) for batch in batches)

    whole = build(0, 0.5, collected(groups), order, expert, Share(0, 1, 2), "grpo", 4096, lambda items: items)
    assert total(whole[0]) == pytest.approx((1.0, 1.0))
    theirs: list[Any] = []
    for rank in range(2):  # what each would send
        build(
            0,
            0.5,
            collected(groups[rank : rank + 1]),
            order,
            expert,
            Share(rank, 2, 2),
            "grpo",
            4096,
            lambda items: theirs.extend(items) or items,
        )
    halves = [
        build(
            0,
            0.5,
            collected(groups[rank : rank + 1]),
            order,
            expert,
            Share(rank, 2, 2),
            "grpo",
            4096,
            lambda _: list(theirs),
        )
        for rank in range(2)
    ]
    sums = [total(half[0]) for half in halves]
    assert sum(own for own, _ in sums) == pytest.approx(1.0) and sum(sft for _, sft in sums) == pytest.approx(1.0)
    assert whole[1:] == halves[0][1:] == halves[1][1:]


def test_means_are_over_everything_seen() -> None:
    """E14: ranks with 4 rewards of 1 and one of 0 have the mean 0.8, not 0.5 or 1."""
    ranks = []
    for rewards in ([1.0] * 4, [0.0]):
        sums = Sums()
        for reward in [*rewards, math.nan]:
            sums.add("reward", reward)
        ranks.append(sums)
    assert Sums().merge(ranks).mean("reward") == 0.8
    assert Sums().mean("reward") is None


# ------------------------------------------------------------------------------------------------- timetable


def test_logical_time_gives_the_same_tokens_however_long_things_take(shipped: Renderer, runner: asyncio.Runner) -> None:
    """Bits and order: results stand in the order of the episodes, and delays of the environment change nothing."""
    model = make_model(len(shipped.tokenizer))

    def play(waits: list[float], deterministic: bool = True, concurrency: int = 3) -> list[Any]:
        engine = Engine(model, shipped.end_ids, temperature=1.0, seed="7", batch_size=3)
        table = Timetable(engine, shipped, name="x", deterministic=deterministic)

        def episode(index: int) -> Episode[Any]:
            async def run(policy: TokenPolicy) -> Any:
                found = []
                for turn in range(3):
                    await asyncio.sleep(waits[(index + turn) % len(waits)])
                    prompt = [60 + index, 61, 62 + turn] * (5 + index)
                    one = await policy.generate(prompt, 3 + (index * turn) % 5, f"{index}/{turn}")
                    found.append((one.ids, one.logprobs))
                return found

            return run

        found = runner.run(table.run([episode(index) for index in range(5)], concurrency))
        assert table.generated == sum(len(ids) for episode_ in found for ids, _ in episode_)
        return found

    first = play([0.0])
    assert play([0.02, 0.0, 0.011]) == first  # to the last bit
    loose = play([0.003, 0.0], deterministic=False)
    assert [[ids for ids, _ in one] for one in loose] == [[ids for ids, _ in one] for one in first]


def test_one_that_waits_for_the_others_to_end_is_not_waited_for(shipped: Renderer, runner: asyncio.Runner) -> None:
    """As when its session starts only once another one's memory is free."""
    engine = Engine(make_model(len(shipped.tokenizer)), shipped.end_ids, temperature=1.0)
    table = Timetable(engine, shipped, name="x")
    table.patience_s = 0.05
    free = asyncio.Event()

    async def holding(policy: TokenPolicy) -> int:
        for turn in range(3):
            await policy.generate([60, 61, 62], 3, str(turn))
        free.set()
        return 1

    async def waiting(policy: TokenPolicy) -> int:
        await policy.generate([60, 61], 2, "a")
        await free.wait()
        await policy.generate([60, 61], 2, "b")
        return 2

    assert runner.run(table.run([waiting, holding, waiting], 3)) == [2, 1, 2]


def test_an_episode_that_fails_ends_all_and_a_failing_engine_is_an_error_reply(
    shipped: Renderer, runner: asyncio.Runner
) -> None:
    engine = Engine(make_model(len(shipped.tokenizer)), shipped.end_ids, temperature=1.0)
    table = Timetable(engine, shipped, name="x")

    async def broken(policy: TokenPolicy) -> None:
        await policy.generate([1, 2], 2, "k")
        raise UserError("mend this")

    async def fine(policy: TokenPolicy) -> Reply:
        return await policy.act(Conversation([Message(role="user", content="q")], []), 3)

    with pytest.raises(UserError, match="mend this"):
        runner.run(table.run([broken, fine], 2))  # type: ignore[list-item]
    assert engine.idle
    (reply,) = runner.run(table.run([fine], 2))
    assert reply.tokens >= 1
    with torch.no_grad():
        next(engine.model.parameters()).fill_(math.nan)
    engine.forget()
    (reply,) = runner.run(table.run([fine], 2))
    assert reply.finish == "error" and "not finite" in str(reply.error)


def test_the_copy_follows_the_trained_weights(tmp_path: Path) -> None:
    """E13: after a large step, sampled and recomputed logprobs differ by no more than noise; adapters are merged."""
    from peft import LoraConfig, get_peft_model

    base = make_model(258)
    copy = make_model(258, seed=1)
    trained = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in trained.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    copy_weights(trained, copy)
    ids = torch.arange(40)[None]
    torch.testing.assert_close(copy(ids).logits, trained(ids).logits, atol=2e-4, rtol=1e-4)
    before = copy(ids).logits
    for name, parameter in trained.named_parameters():
        if "lora_B" in name:
            parameter.data += 0.5
    copy_weights(trained, copy, only_trained=True)
    torch.testing.assert_close(copy(ids).logits, trained(ids).logits, atol=1e-3, rtol=1e-3)
    assert (copy(ids).logits - before).abs().max() > 1


# --------------------------------------------------------------------------------------------------- endpoint


def completion(request: dict[str, Any]) -> dict[str, Any]:
    """What vLLM answers to a prompt of token ids with return_token_ids."""
    ids = [65 + request["seed"] % 20, 257]
    return {
        "choices": [
            {
                "text": "A",
                "finish_reason": "stop",
                "prompt_token_ids": request["prompt"],
                "token_ids": ids,
                "logprobs": {"tokens": ["token_id:65", "token_id:257"], "token_logprobs": [-0.1, -0.2]},
            }
        ]
    }


@pytest.mark.usefixtures("bare_environment")
def test_an_endpoint_samples_token_ids_with_their_logprobs(
    shipped: Renderer, sources: list[Source], runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    from http_server import Scripted

    models = {"data": [{"id": "served"}]}
    with ScriptedServer([models, Scripted(status=503), completion], repeat=True) as server:
        sampler = EndpointSampler(server.url, shipped, sync="none")
        sampler.sync(make_model(258), "step-4")
        one = Collector(sources, Order(len(sources), 0), sampler, sandbox, PLAN, shipped.end_ids)
        collected = runner.run(one.collect(0, range(1), 1))
    (group,) = collected.groups
    assert {t.policy_version for t in group.trajectories} == {f"own weights of {sampler.base_url}"}
    assert all(t.completion_ids[-1] == 257 and t.logprobs == [-0.1, -0.2] for t in group.trajectories)
    sent = [request.body for request in server.requests[1:]]
    assert all(body["model"] == "served" and body["return_token_ids"] and body["logprobs"] == 0 for body in sent)
    assert len({body["seed"] for body in sent}) == 3  # one request of the four is a retry
    assert all(body["prompt"] == group.trajectories[0].prompt_ids for body in sent)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("not json", "no token_ids"),
        ({"choices": [{"text": "x"}]}, "no token_ids"),
        ({"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}}]}, "2 token ids and 1 logprobs"),
        (
            {"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}, "prompt_token_ids": [8]}]},
            "changed the prompt",
        ),
    ],
)
def test_answers_that_cannot_be_trained_on_are_refused(body: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        read_choice(body if isinstance(body, str) else json.dumps(body), [9], [7])


# ----------------------------------------------------------------------------------------------------- alarms


def logged(**columns: Sequence[float]) -> list[dict[str, Any]]:
    count = max(map(len, columns.values()))
    base = {"reward": 1.0, "success": 0.5, "length": 50.0, "call_free": 0.0, "truncated": 0.0}
    rows = []
    for index in range(count):
        row: dict[str, Any] = {**base, "parts": {"format_score": 0.5}, "step": index + 1}
        row |= {name: values[index] for name, values in columns.items() if name != "format_score"}
        if "format_score" in columns:
            row["parts"] = {"format_score": columns["format_score"][index]}
        rows.append(row)
    return rows


def test_alarms() -> None:
    steady = [0.5] * WINDOW
    assert alarms(logged(success=steady * 3)) == {}
    assert alarms([{"step": 0, "dev": {}}]) == {}
    hacked = logged(success=[*steady, *[0.3] * WINDOW], format_score=[*steady, *[0.9] * WINDOW])
    assert "format_score rose while success fell by 0.20" in alarms(hacked)["hacking"]
    both = logged(success=[*steady, *[0.9] * WINDOW], format_score=[*steady, *[0.9] * WINDOW])
    assert alarms(both) == {}  # more right answers, too
    assert "length" in alarms(logged(length=[50.0] * 2 * WINDOW + [90.0] * WINDOW))
    assert "length" in alarms(logged(length=[50.0] * 2 * WINDOW + [20.0] * WINDOW))
    assert "guessed" in alarms(logged(call_free=[0.3] * WINDOW))["call_free"]
    assert "--truncated drop" in alarms(logged(truncated=[0.3] * WINDOW))["truncated"]  # E09: a warning above a limit
