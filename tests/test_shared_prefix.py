"""Prefixes that rows of the decoding engine share: the same numbers as without, held and read once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra: train")
pytest.importorskip("transformers", reason="needs the extra: train")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from test_hf import END, LLAMA, Counter, check, prompts_of  # noqa: E402

from agentic.policy import attention  # noqa: E402
from agentic.policy.generate import MIN_BASE, Engine  # noqa: E402


def pretend_model(heads: int) -> Any:
    return SimpleNamespace(config=SimpleNamespace(_attn_implementation="sdpa"), heads=heads)


@settings(max_examples=25, deadline=None)
@given(
    prefixes=st.lists(st.integers(1, 9), max_size=3),
    owner=st.lists(st.integers(-1, 2), min_size=1, max_size=6),
    length=st.integers(1, 4),
    past=st.integers(0, 5),
    repeats=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_attention_equals_that_over_prefix_and_own_tokens_together(
    prefixes: list[int], owner: list[int], length: int, past: int, repeats: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    rows, kv, width, columns = len(owner), 2, 8, past + length
    owner = [o if o < len(prefixes) else -1 for o in owner]
    query = random(rows, kv * repeats, length, width)
    key, value = random(rows, kv, columns, width), random(rows, kv, columns, width)
    held = [(random(kv, size, width), random(kv, size, width)) for size in prefixes]
    # Left padding in each row, at least the last token is there; causal among the new ones.
    padding = torch.randint(0, columns, (rows,), generator=generator)
    open_ = torch.ones(length, columns, dtype=torch.bool).tril(past)[None] & (
        torch.arange(columns) >= padding[:, None, None]
    )
    groups = [
        attention.Shared(torch.tensor([row for row, o in enumerate(owner) if o == number]), [pair])
        for number, pair in enumerate(held)
        if number in owner
    ]
    module = SimpleNamespace(layer_idx=0)
    with attention.sharing(pretend_model(kv * repeats), groups):
        found, _ = attention.shared_prefix_attention(module, query, key, value, open_[:, None], scaling=0.3)
    for row, number in enumerate(owner):
        k, v, sees = key[row], value[row], open_[row]
        if number >= 0:
            k, v = torch.cat([held[number][0], k], 1), torch.cat([held[number][1], v], 1)
            sees = torch.cat([torch.ones(length, prefixes[number], dtype=torch.bool), sees], 1)
        k, v = k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
        scores = (query[row] @ k.transpose(1, 2) * 0.3).masked_fill(~sees, -torch.inf)
        expected = (scores.softmax(-1) @ v).transpose(0, 1)
        seen = open_[row].any(-1)  # what a query in the padding finds is read by nobody, and is finite
        assert torch.allclose(found[row][seen], expected[seen], atol=1e-5)
        assert torch.isfinite(found[row]).all()


def test_a_pass_without_padding_is_causal() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 2, 3, 8, generator=generator) for _ in range(3))
    held = (torch.randn(2, 4, 8, generator=generator), torch.randn(2, 4, 8, generator=generator))
    open_ = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    groups = [attention.Shared(torch.tensor([0, 1]), [held])]
    module = SimpleNamespace(layer_idx=0)
    results = []
    for mask in (None, open_):  # transformers leaves the mask out where nothing is padded
        with attention.sharing(pretend_model(2), groups):
            results.append(attention.shared_prefix_attention(module, query, key, value, mask)[0])
    assert torch.equal(*results)


def test_the_model_is_as_it_was_also_after_an_error() -> None:
    model = pretend_model(2)
    with pytest.raises(RuntimeError), attention.sharing(model, []):
        assert model.config._attn_implementation == attention.NAME
        raise RuntimeError
    assert model.config._attn_implementation == "sdpa"


@settings(max_examples=4, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=3),
    shared=st.sampled_from([0, 40, 80]),
    batch_size=st.sampled_from([2, 5, 16]),
    keep=st.sampled_from([0, 60_000, 1 << 22]),
)
def test_samples_of_shared_prompts_equal_single_ones(
    groups: list[tuple[int, int, int]], shared: int, batch_size: int, keep: int
) -> None:
    """Any number of samples of any number of prompts, over two turns."""
    prefix = prompts_of([shared], seed=9)[0]
    distinct = prompts_of([n for n, _, _ in groups])
    prompts = [prefix + p for p, (_, samples, _) in zip(distinct, groups, strict=True) for _ in range(samples)]
    budgets = [budget + number % 3 for number, (_, samples, budget) in enumerate(groups) for _ in range(samples)]
    engine = Engine(LLAMA, [END], batch_size=batch_size, keep_bytes=keep)
    for turn in range(2):
        results = engine.generate(prompts, budgets)
        check(LLAMA, prompts, budgets, results)
        held = sum(past.size for past in (*engine.pasts.entries, *engine.pasts.bases))
        assert held <= keep
        prompts = [p + r.ids + [7 + i % 4, 8 + turn] for i, (p, r) in enumerate(zip(prompts, results, strict=True))]


def test_a_prompt_of_several_samples_is_held_once() -> None:
    prompt = prompts_of([100])[0]
    engine = Engine(LLAMA, [], batch_size=8)
    for _ in range(4):
        engine.submit(prompt, 3)
    engine.step()
    # All 100 tokens stand in the base: the running rows have no columns of their own yet.
    assert engine.mask.shape == (4, 0) and [len(base.ids) for base in engine.pasts.bases] == [100]
    engine.step()
    assert engine.cache is not None and engine.cache.layers[0].keys.shape[:3] == (4, 2, 1)
    while not engine.idle:
        engine.step()
    with Counter(LLAMA) as counter:
        engine.generate([prompt, prompt], [1, 1])  # again, later: only the last token, for its logits
    assert counter.shapes == [(1, 1)]


def test_a_short_prompt_is_not_worth_a_base() -> None:
    engine = Engine(LLAMA, [], batch_size=8)
    for _ in range(4):
        engine.submit(prompts_of([MIN_BASE - 1])[0], 3)
    engine.step()
    assert not engine.pasts.bases and engine.mask.shape == (4, MIN_BASE - 1)


def test_models_with_other_attention_do_not_share() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaForCausalLM

    assert Engine(LLAMA, []).sharing
    small = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    assert not Engine(Gemma2ForCausalLM(Gemma2Config(**small)), []).sharing
    eager = LlamaForCausalLM._from_config(LLAMA.config, attn_implementation="eager")
    assert not Engine(eager, []).sharing
