# ruff: noqa: E402 (imports follow importorskip)
"""Packed rows train exactly as their examples would alone."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_model

from agentic.train import attention
from agentic.train.attention import layout
from agentic.train.packing import (
    IGNORED,
    MAX_GROUP,
    Group,
    Row,
    Tokens,
    collate,
    common_prefix,
    make_batches,
    make_groups,
    make_row,
)
from agentic.train.trainer import with_layout

VOCABULARY = 50


def example(prompt: list[int], answer: list[int]) -> Tokens:
    return Tokens.from_mask(prompt + answer, [0] * len(prompt) + [1] * len(answer))


def random_examples(generator: torch.Generator, prefix: int, count: int) -> list[Tokens]:
    def draw(length: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()

    shared = draw(prefix)
    # Two trained spans each, as in a conversation with a tool result between its turns.
    made = []
    for index in range(count):
        question, call, observation, answer = draw(5 + index), draw(7), draw(3 + index), draw(4)
        ids = shared + question + call + observation + answer
        mask = [0] * (prefix + len(question)) + [1] * 7 + [0] * len(observation) + [1] * 4
        made.append(Tokens.from_mask(ids, mask))
    return made


def losses(model, rows: list[Row]) -> torch.Tensor:
    """Token losses [B, L - 1], 0 where nothing is trained."""
    batch = with_layout(rows, pad_id=0)
    labels = batch.pop("labels")
    with layout(batch.pop("layout")):
        logits = model(**batch, use_cache=False).logits.float()
    return token_losses(logits, labels)


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none"
    )


def loss_alone(model, tokens: Tokens) -> torch.Tensor:
    """The example by itself, through transformers' own attention."""
    logits = model(input_ids=torch.tensor([tokens.ids]), use_cache=False).logits.float()
    return token_losses(logits, torch.tensor([tokens.labels])).sum()


@pytest.fixture(scope="module")
def model():
    model = make_model(VOCABULARY)
    model.set_attn_implementation(attention.NAME)
    return model


@pytest.mark.parametrize("prefix", [0, 60])
def test_packed_loss_and_gradient_are_those_of_the_examples(model, prefix: int) -> None:
    generator = torch.Generator().manual_seed(prefix)
    examples = random_examples(generator, prefix, 4)
    others = random_examples(generator, 0, 2)
    row = make_row([Group(examples, prefix), *(Group([other], 0) for other in others)])
    short = make_row([Group([others[0]], 0)])  # a second, padded row

    model.zero_grad()
    alone = []
    for tokens in [*examples, *others, others[0]]:
        loss = loss_alone(model, tokens)
        loss.backward()
        alone.append(loss.item())
    gradient = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.zero_grad()
    packed = losses(model, [row, short])
    packed.sum().backward()
    groups, segments = torch.tensor(row.groups)[1:], torch.tensor(row.segments)[1:]
    found = [packed[0, : len(row) - 1][(groups == 1) & (segments == k)].sum().item() for k in range(1, 5)]
    found += [packed[0, : len(row) - 1][groups == k].sum().item() for k in (2, 3)]
    found.append(packed[1].sum().item())
    assert found == pytest.approx(alone, abs=1e-4)
    assert packed[0, : len(row) - 1][segments == 0].sum() == 0
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradient[name], atol=1e-4, rtol=1e-3)


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=90)
corpora = st.lists(st.tuples(st.integers(0, 2), prompts, prompts), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(corpora, st.booleans(), st.integers(64, 600), st.integers(0, 3))
def test_batches_hold_every_example_once(corpus, share_prefix: bool, budget: int, seed: int) -> None:
    cards = [[card + 10] * (70 + card) for card in range(3)]
    examples = [example(cards[card] + question, answer) for card, question, answer in corpus]
    batches = make_batches(examples, budget, share_prefix, seed)
    assert batches == make_batches(examples, budget, share_prefix, seed)
    rebuilt: Counter[tuple] = Counter()
    for batch in batches:
        width = max(map(len, batch))
        assert len(batch) * width <= budget or len(batch) == 1
        for row in batch:
            rebuilt.update(unpack(row))
            assert len(row) <= budget or len(set(row.groups)) == 1
    assert rebuilt == Counter((tuple(e.ids), tuple(e.labels)) for e in examples)


def unpack(row: Row) -> list[tuple]:
    """The examples of a row, as (ids, labels), from its group and segment numbers."""
    found = []
    tokens = list(zip(row.groups, row.segments, row.positions, row.ids, row.labels, strict=True))
    for group in sorted(set(row.groups)):
        for segment in sorted({s for g, s, *_ in tokens if g == group} - {0}):
            seen = [t for t in tokens if t[0] == group and t[1] in (0, segment)]
            assert [t[2] for t in seen] == list(range(len(seen)))
            found.append((tuple(t[3] for t in seen), tuple(t[4] for t in seen)))
    return found


@settings(max_examples=60, deadline=None)
@given(prompts, prompts, st.lists(st.integers(0, 1), min_size=180, max_size=180))
def test_shared_prefix_holds_no_trained_token_nor_the_one_before(a: list[int], b: list[int], mask: list[int]) -> None:
    first, second = Tokens.from_mask(a, mask[: len(a)]), Tokens.from_mask(b, mask[90 : 90 + len(b)])
    shared = common_prefix(first, second)
    assert a[:shared] == b[:shared]
    for tokens in (first, second):
        assert all(label == IGNORED for label in tokens.labels[: shared + 1])
    if shared < min(first.shareable, second.shareable):
        assert a[shared] != b[shared]


def test_same_card_shares_other_cards_do_not() -> None:
    system = list(range(60))
    cards = [[100 + card] * 80 for card in range(3)]
    examples = [
        example([*system, *cards[card], *[7, 8, question]], [1, 2, question])
        for question in range(20)
        for card in range(3)
    ]
    groups = make_groups(examples, True, 1024, seed=1)
    # After the system text and the card come 7 and 8, which all share, too.
    assert {group.prefix for group in groups} == {142}
    assert sorted(len(group.examples) for group in groups) == [4, 4, 4, 8, 8, 8, 8, 8, 8]
    assert max(len(group.examples) for group in groups) == MAX_GROUP
    packed = sum(len(row) for batch in make_batches(examples, 2048, True) for row in batch)
    assert packed < 0.25 * sum(len(e.ids) for e in examples)


def test_end_token_that_pads_is_trained_and_padding_is_not() -> None:
    """E02: labels decide, not ids."""
    end = 9
    long, short = example([1, 2, 3, 4], [5, end]), example([1, 2], [end])
    batch = collate([make_row([Group([long], 0)]), make_row([Group([short], 0)])], pad_id=end)
    assert batch["labels"].tolist() == [[IGNORED] * 4 + [5, end], [IGNORED, IGNORED, end] + [IGNORED] * 3]
    assert batch["input_ids"][1].tolist() == [1, 2, end, end, end, end]
