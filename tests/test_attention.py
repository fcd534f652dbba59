# ruff: noqa: E402 (imports follow importorskip)
"""Attention over segments equals attention through the dense mask that the segments stand for."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import make_model

from agentic.train import attention
from agentic.train.attention import Segment, layout
from agentic.train.packing import IGNORED, Group, Row, Tokens, collate, make_row, segment_bounds

VOCABULARY = 40
# (tokens of the shared prefix, or 0; tokens that each example adds)
Shape = tuple[int, list[int]]


def packed_row(shape: list[Shape], seed: int) -> Row:
    """Random tokens, all but the first of each example's own trained."""
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for prefix, own in shape:
        shared = torch.randint(0, VOCABULARY, (prefix,), generator=generator).tolist()
        members = []
        for count in own:
            ids = shared + torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()
            members.append(Tokens.from_mask(ids, [0] * (prefix + 1) + [1] * (count - 1)))
        groups.append(Group(members, prefix))
    return make_row(groups)


def segments(rows: list[Row]) -> list[list[Segment]]:
    return [[Segment(*bounds) for bounds in segment_bounds(row)] for row in rows]


def dense_mask(rows: list[Row]) -> torch.Tensor:
    """[B, 1, L, L], True where a token (row) sees a token (column), straight from the definition.

    Padding sees itself alone: a row of a mask without a True would give NaN.
    """
    length = max(map(len, rows))
    mask = torch.eye(length, dtype=torch.bool).repeat(len(rows), 1, 1)
    for b, row in enumerate(rows):
        group, segment = torch.tensor(row.groups), torch.tensor(row.segments)
        sees = (group[:, None] == group) & ((segment == 0) | (segment[:, None] == segment))
        mask[b, : len(row), : len(row)] = sees.tril()
    return mask[:, None]


def outputs(model: Any, rows: list[Row], implementation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, L, V] with padding zeroed, and labels [B, L]."""
    model.set_attn_implementation(implementation)
    batch = collate(rows, pad_id=0)
    labels = batch.pop("labels")
    if implementation == attention.NAME:
        with layout(segments(rows)):
            logits = model(**batch, attention_mask=torch.ones(len(rows), 1, 1, 1, dtype=torch.bool)).logits
    else:
        logits = model(**batch, attention_mask=dense_mask(rows)).logits
    padding = torch.tensor([[index >= len(row) for index in range(labels.shape[1])] for row in rows])
    return logits.masked_fill(padding[..., None], 0.0), labels


def loss_and_gradients(
    model: Any, rows: list[Row], implementation: str
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logits, labels = outputs(model, rows, implementation)
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="sum"
    )
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def model() -> Any:
    """float32, four query heads on two key heads."""
    model = make_model(VOCABULARY)
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    return model


SHAPES: dict[str, list[list[Shape]]] = {
    "one example": [[(0, [9])]],
    "one group": [[(12, [5, 3, 8])]],
    "several groups": [[(12, [5, 3]), (0, [7]), (6, [2, 2, 4]), (0, [3])]],
    "padded rows": [[(10, [4, 6])], [(0, [5]), (4, [3, 2])], [(0, [2])]],
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_gradients_are_those_of_the_dense_mask(model: Any, name: str) -> None:
    rows = [packed_row(shape, seed) for seed, shape in enumerate(SHAPES[name])]
    with torch.no_grad():
        packed, dense = (outputs(model, rows, implementation)[0] for implementation in (attention.NAME, "sdpa"))
    torch.testing.assert_close(packed, dense, atol=1e-4, rtol=1e-4)
    loss, gradients = loss_and_gradients(model, rows, attention.NAME)
    dense_loss, dense_gradients = loss_and_gradients(model, rows, "sdpa")
    torch.testing.assert_close(loss, dense_loss, atol=1e-3, rtol=1e-5)
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, dense_gradients[parameter], atol=1e-4, rtol=1e-3)


# A prefix belongs to several examples; a group of one has none (packing.py).
groups = st.one_of(
    st.tuples(st.just(0), st.lists(st.integers(1, 6), min_size=1, max_size=1)),
    st.tuples(st.integers(1, 8), st.lists(st.integers(1, 6), min_size=2, max_size=4)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(groups, min_size=1, max_size=4), min_size=1, max_size=3), st.sampled_from([1, 2, 4]))
def test_any_layout_is_its_dense_mask(shapes: list[list[Shape]], key_heads: int) -> None:
    rows = [packed_row(shape, seed) for seed, shape in enumerate(shapes)]
    length = max(map(len, rows))
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(len(rows), 4, length, 8, generator=generator)
    key, value = (torch.randn(len(rows), key_heads, length, 8, generator=generator) for _ in range(2))
    with layout(segments(rows)):
        packed, _ = attention.packed_attention(torch.nn.Identity(), query, key, value, None, scaling=0.3)
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense_mask(rows), scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    for b, row in enumerate(rows):
        torch.testing.assert_close(packed[b, : len(row)], dense[b, : len(row)], atol=1e-5, rtol=1e-5)
        assert not packed[b, len(row) :].any()


def test_outside_a_layout_it_is_plain_sdpa(model: Any) -> None:
    """Also left-padded, and again after a layout that ended in an error."""
    ids = torch.arange(12).reshape(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with pytest.raises(RuntimeError), layout([[Segment(0, 0, 0, 6)]] * 2):
        raise RuntimeError
    found = []
    for implementation in (attention.NAME, "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(ids, attention_mask=mask).logits[mask.bool()])
    torch.testing.assert_close(*found, atol=0, rtol=0)
