"""The decoding engine against transformers' own generate, and the local policy through its public interface."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra: train")
pytest.importorskip("transformers", reason="needs the extra: train")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from agentic.errors import UserError  # noqa: E402
from agentic.model.chat import shipped_template  # noqa: E402
from agentic.policy.base import Conversation  # noqa: E402
from agentic.policy.generate import Engine, Generation  # noqa: E402
from agentic.policy.hf import HFPolicy, sampling_dtype  # noqa: E402
from agentic.records import Message  # noqa: E402
from agentic.tools.base import TOOLS  # noqa: E402

VOCABULARY = 64
END = 5


def tiny_llama(vocabulary: int = VOCABULARY, context: int = 256) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


def prompts_of(lengths: list[int], seed: int = 1, vocabulary: int = VOCABULARY) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(6, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def reference(model: Any, prompt: list[int], budget: int) -> list[int]:
    """transformers' own greedy decoding of one prompt alone."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=budget, do_sample=False, eos_token_id=END, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


def recomputed(model: Any, prompt: list[int], ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


def check(model: Any, prompts: list[list[int]], budgets: list[int], results: list[Generation]) -> None:
    for prompt, budget, result in zip(prompts, budgets, results, strict=True):
        assert result.ids == reference(model, prompt, budget)
        assert result.stop_reason == ("stop" if result.ids[-1] == END else "length")
        assert torch.allclose(torch.tensor(result.logprobs), recomputed(model, prompt, result.ids), atol=1e-4)


class Counter:
    """Counts the columns that a model computes, through torch's own hooks."""

    def __init__(self, model: Any) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.handle = model.register_forward_pre_hook(self._hook, with_kwargs=True)

    def _hook(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.shapes.append(tuple(kwargs["input_ids"].shape))

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


# ------------------------------------------------------------------------------------------------ engine


def test_batched_equals_single_with_unequal_prompts_and_budgets(llama: Any) -> None:
    """Case E16: padding changes neither tokens nor log-probabilities."""
    prompts = prompts_of([3, 40, 17, 1, 90, 8, 8, 55])
    budgets = [30, 5, 1, 60, 20, 40, 2, 33]
    check(llama, prompts, budgets, Engine(llama, [END], batch_size=3).generate(prompts, budgets))


@settings(max_examples=6, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=7),
    batch_size=st.integers(1, 5),
    prefill_tokens=st.sampled_from([1, 64, 4096]),
    shared=st.integers(0, 50),
    keep=st.sampled_from([0, 20_000, 1 << 20]),
)
def test_any_mix_of_requests_equals_single(
    rows: list[tuple[int, int]], batch_size: int, prefill_tokens: int, shared: int, keep: int
) -> None:
    model = LLAMA
    prefix = prompts_of([shared], seed=9)[0]
    prompts = [prefix + prompt for prompt in prompts_of([n for n, _ in rows])]
    budgets = [budget for _, budget in rows]
    engine = Engine(model, [END], batch_size=batch_size, prefill_tokens=prefill_tokens, keep_bytes=keep)
    results = engine.generate(prompts, budgets)
    check(model, prompts, budgets, results)
    # A second turn continues from kept keys and values.
    again = [p + r.ids + [7, 8] for p, r in zip(prompts, results, strict=True)]
    check(model, again, budgets, engine.generate(again, budgets))


LLAMA = tiny_llama()


def test_finished_rows_leave_the_batch_and_waiting_ones_enter(llama: Any) -> None:
    engine = Engine(llama, [], batch_size=2)
    requests = [engine.submit(p, b) for p, b in zip(prompts_of([100, 4, 4]), [2, 6, 6], strict=True)]
    ended = engine.step()
    assert (ended, len(engine.rows), len(engine.waiting)) == ([], 2, 1)
    assert engine.step() == [requests[0]]
    # The long row is gone and its columns with it.
    assert engine.rows == [requests[1]] and engine.mask.shape == (1, 5)
    assert engine.cache.layers[0].keys.shape[0] == 1 and engine.cache.get_seq_length() == 5
    engine.step()
    assert engine.rows == [requests[1], requests[2]]
    while not engine.idle:
        engine.step()
    assert [len(r.ids) for r in requests] == [2, 6, 6] and engine.cache is None


def test_cancelled_requests_leave(llama: Any) -> None:
    engine = Engine(llama, [], batch_size=1)
    first, second, third = (engine.submit(p, 50) for p in prompts_of([4, 5, 6]))
    engine.step()
    first.cancelled = third.cancelled = True
    assert set(engine.step()) == {first, third}
    while not engine.idle:
        engine.step()
    assert len(second.ids) == 50 and len(first.ids) < 5 and not third.ids


def test_equal_prompts_are_prefilled_once_and_a_next_turn_computes_only_its_new_tokens(llama: Any) -> None:
    prompt = prompts_of([80])[0]
    engine = Engine(llama, [], batch_size=8)
    with Counter(llama) as counter:
        results = engine.generate([prompt] * 4, [3] * 4)
        assert counter.shapes == [(1, 80), (4, 1), (4, 1)]
        counter.shapes.clear()
        engine.generate([prompt + results[0].ids + [9, 9, 9]], [1])
        # The last sampled token was never fed, so it is computed with the three new ones.
        assert counter.shapes == [(1, 4)]
        engine.forget()
        counter.shapes.clear()
        engine.generate([prompt], [1])
        assert counter.shapes == [(1, 80)]


def test_shared_prefix_is_computed_once(llama: Any) -> None:
    prefix, *rest = prompts_of([70, 5, 9, 7])
    with Counter(llama) as counter:
        Engine(llama, []).generate([prefix + r for r in rest], [1] * 3)
    assert counter.shapes == [(1, 70), (3, 9)]


def test_sliding_window_models_use_their_own_cache() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
        initializer_range=0.3,
    )
    model = MistralForCausalLM(config).eval()
    engine = Engine(model, [END], batch_size=3)
    assert engine.layers == 0
    prompts, budgets = prompts_of([3, 20, 11, 30]), [12, 20, 3, 9]
    prompts.append(prompts[0])
    check(model, prompts, [*budgets, 4], engine.generate(prompts, [*budgets, 4]))


def test_sampling_depends_on_seed_and_key_only(llama: Any) -> None:
    prompts = prompts_of([10, 30, 5])

    def sample(seed: int, batch_size: int, order: list[int]) -> dict[int, list[int]]:
        engine = Engine(llama, [], temperature=0.8, seed=seed, batch_size=batch_size)
        requests = {i: engine.submit(prompts[i], 20, key=f"task{i}") for i in order}
        while not engine.idle:
            engine.step()
        return {i: request.ids for i, request in requests.items()}

    assert sample(0, 3, [0, 1, 2]) == sample(0, 1, [2, 0, 1])
    assert sample(0, 3, [0, 1, 2]) != sample(1, 3, [0, 1, 2])


def test_sampled_tokens_follow_the_distribution_and_carry_untempered_logprobs(llama: Any) -> None:
    prompt, count, temperature = prompts_of([6])[0], 4000, 1.5
    results = Engine(llama, [], temperature=temperature, batch_size=count).generate([prompt] * count, [1] * count)
    with torch.no_grad():
        logits = llama(input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = torch.softmax(logits / temperature, -1)
    seen = torch.bincount(torch.tensor([r.ids[0] for r in results]), minlength=VOCABULARY) / count
    assert (seen - expected).abs().max() < 0.03
    one = results[0]
    assert one.logprobs[0] == pytest.approx(torch.log_softmax(logits, -1)[one.ids[0]].item(), abs=1e-5)


def test_requests_that_cannot_be_answered_are_refused_and_long_budgets_are_cut(llama: Any) -> None:
    engine = Engine(llama, [])
    for prompt, budget in (([], 5), ([1], 0), (list(range(6, 62)) * 5, 5)):
        with pytest.raises(ValueError):
            engine.submit(prompt, budget)
    (result,) = engine.generate([[7] * 250], [100])
    assert len(result.ids) == 6 and result.stop_reason == "length"


def test_weights_that_are_not_finite_are_an_error() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="not finite"):
        Engine(model, []).generate([[7, 8]], [2])


# ------------------------------------------------------------------------------------------------ policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a byte-level ChatML tokenizer, saved as any other model folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = shipped_template()
    path = tmp_path_factory.mktemp("model")
    tiny_llama(len(vocabulary), context=2048).save_pretrained(path)
    fast.save_pretrained(path)
    return path


def conversation(question: str = "How many rows?", sample: int = 0) -> Conversation:
    messages = [Message(role="system", content="You analyse data."), Message(role="user", content=question)]
    return Conversation(messages, [TOOLS["python_executor"]], task_id="t", sample=sample)


def answer_tool(talk: Conversation, text: str) -> None:
    """What the environment does between two turns."""
    talk.messages.append(Message(role="assistant", content=text))
    talk.messages.append(Message(role="tool", content="42", name="python_executor"))


def assert_stream(policy: HFPolicy, talk: Conversation) -> None:
    assert len(talk.completion_ids) == len(talk.mask) == len(talk.logprobs)
    expected = recomputed(policy.model, talk.prompt_ids, talk.completion_ids)
    for value, own, logprob in zip(expected.tolist(), talk.mask, talk.logprobs, strict=True):
        assert logprob == pytest.approx(value, abs=1e-3) if own else logprob == 0.0


def test_turns_extend_one_token_stream(folder: Path) -> None:
    async def run() -> None:
        policy = HFPolicy(str(folder), dtype="float32", temperature=1.0)
        talk = conversation()
        reply = await policy.act(talk, 12)
        assert talk.prompt_ids == policy.renderer.prompt_ids(talk.messages, talk.tools)
        assert reply.tokens == len(talk.completion_ids) and all(talk.mask) and talk.rendered == 3
        assert reply.text == policy.renderer.decode(talk.completion_ids)
        before = list(talk.completion_ids)
        answer_tool(talk, reply.text)
        second = await policy.act(talk, 12)
        assert talk.completion_ids[: len(before)] == before
        assert sum(talk.mask) == reply.tokens + second.tokens
        between = talk.completion_ids[len(before) : len(talk.completion_ids) - second.tokens]
        if reply.finish == "length":
            assert between.pop(0) == policy.renderer.end_ids[0]
        assert between == policy.renderer.continuation_ids(talk.messages, 3, talk.tools)
        assert_stream(policy, talk)
        await policy.close()
        assert (await policy.act(conversation(), 5)).error == "the policy is closed"

    asyncio.run(run())


def test_many_episodes_share_batches_and_the_loop_stays_free(folder: Path) -> None:
    async def run() -> None:
        policy = HFPolicy(str(folder), dtype="float32", temperature=1.0, batch_size=8)
        talks = [conversation(f"Question {i}?", i) for i in range(12)]
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticker = asyncio.create_task(tick())
        with Counter(policy.model) as counter:
            started = time.monotonic()
            replies = await asyncio.gather(*(policy.act(talk, 40) for talk in talks))
            wall = time.monotonic() - started
        ticker.cancel()
        assert max(rows for rows, _ in counter.shapes) == 8
        assert len(counter.shapes) < 150 and ticks > 10 * wall
        for talk, reply in zip(talks, replies, strict=True):
            assert reply.error is None and reply.tokens == len(talk.completion_ids) > 0
            assert_stream(policy, talk)
        # The same task and sample give the same turn when they come alone.
        alone = conversation("Question 5?", 5)
        await policy.act(alone, 40)
        assert alone.completion_ids == talks[5].completion_ids
        await policy.close()

    asyncio.run(run())


def test_a_full_context_is_an_error_reply(folder: Path) -> None:
    async def run() -> None:
        policy = HFPolicy(str(folder), dtype="float32")
        talk = conversation("x" * 4000)
        reply = await policy.act(talk, 5)
        assert reply.finish == "error" and "2048" in (reply.error or "")
        assert not talk.prompt_ids and not talk.completion_ids
        await policy.close()

    asyncio.run(run())


def test_a_cancelled_turn_leaves_the_stream_and_the_policy_whole(folder: Path) -> None:
    async def run() -> None:
        policy = HFPolicy(str(folder), dtype="float32", temperature=1.0)
        talk = conversation()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(policy.act(talk, 1500), 0.05)
        assert not talk.prompt_ids and not talk.completion_ids
        assert (await policy.act(talk, 5)).error is None
        assert_stream(policy, talk)
        await policy.close()

    asyncio.run(run())


def test_failing_weights_are_an_error_reply_for_every_episode(folder: Path) -> None:
    async def run() -> None:
        policy = HFPolicy(str(folder), dtype="float32")
        with torch.no_grad():
            policy.model.lm_head.weight.fill_(float("nan"))
        replies = await asyncio.gather(*(policy.act(conversation(sample=i), 5) for i in range(3)))
        assert all(r.finish == "error" and "not finite" in (r.error or "") for r in replies)
        await policy.close()

    asyncio.run(run())


def test_adapters_are_merged_and_named_in_the_version(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(tmp_path)
    (tmp_path / "agentic.json").write_text('{"template_hash": "other"}')
    model.eval()

    async def run() -> None:
        with caplog.at_level(logging.WARNING):
            policy = HFPolicy(str(tmp_path), dtype="float32")
        assert "chat template other" in caplog.text
        plain = HFPolicy(str(folder), dtype="float32")
        put_on = HFPolicy(str(folder), adapter=str(tmp_path), dtype="float32")
        assert policy.version == put_on.version != plain.version
        ids = torch.tensor([[5, 6, 7, 8]])
        with torch.no_grad():
            expected = model(input_ids=ids).logits
            assert torch.allclose(policy.model(input_ids=ids).logits, expected, atol=1e-4)
            assert not torch.allclose(plain.model(input_ids=ids).logits, expected, atol=1e-2)
        for each in (policy, plain, put_on):
            await each.close()

    asyncio.run(run())


def test_broken_model_folders_are_said_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UserError, match="tokenizer"):
        HFPolicy(str(tmp_path))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(UserError, match="cannot be loaded"):
        HFPolicy(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:2000])
    with pytest.raises(UserError, match="cannot be loaded"):
        HFPolicy(str(tmp_path))
    with pytest.raises(UserError, match="bfloat16"):
        HFPolicy(str(folder), dtype="bf16")
    assert sampling_dtype("auto", "cpu") in (torch.float32, torch.bfloat16)
