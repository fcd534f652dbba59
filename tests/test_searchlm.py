"""SearchLM against a plain float64 computation from the formulas of its design page, and as a transformers model."""

# ruff: noqa: E402 (imports follow importorskip)
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import conversation, write_rows
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentic.cli import main
from agentic.errors import UserError
from agentic.model.chat import Renderer
from agentic.model.searchlm import register
from agentic.model.searchlm.checkpoint import load_weights, save_weights, weight_file
from agentic.model.searchlm.configuration import PROFILES, profile_config
from agentic.model.searchlm.modeling import SearchLMForCausalLM
from agentic.model.searchlm.tokenizer import CONTROL, SMALLEST, TAGS, texts_of, train_tokenizer
from agentic.policy.generate import Engine
from agentic.records import Message
from agentic.tools.base import TOOLS

register()
VOCABULARY = 300


def make(attention: str = "mla", seed: int = 0, **changes: Any) -> SearchLMForCausalLM:
    """A tiny model with weights large enough that every part of the layer shows in the result."""
    torch.manual_seed(seed)
    model = SearchLMForCausalLM(profile_config("tiny", attention=attention, vocab_size=VOCABULARY, **changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(std=0.3 if "embed" in name else 1.5 / math.sqrt(weight.shape[1]))
    return model


def ids_of(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------------------------- reference


def norm(x: list[float], weight: list[float]) -> list[float]:
    scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + 1e-6)
    return [v * scale * w for v, w in zip(x, weight, strict=True)]


def matvec(matrix: list[list[float]], x: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, x, strict=True)) for row in matrix]


def rope(x: list[float], position: int, theta: float = 1e6) -> list[float]:
    half = len(x) // 2
    out = [0.0] * len(x)
    for i in range(half):
        angle = position / theta ** (2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def split(x: list[float], parts: int) -> list[list[float]]:
    size = len(x) // parts
    return [x[i * size : (i + 1) * size] for i in range(parts)]


def reference(model: SearchLMForCausalLM, tokens: list[int]) -> list[list[float]]:
    """Logits [T][V] in Python floats, one token and one head at a time; shares no code with the model."""
    config = model.config
    w = {name: tensor.double().tolist() for name, tensor in model.state_dict().items()}
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    hidden = [list(w["model.embed_tokens.weight"][token]) for token in tokens]
    for layer in range(config.num_hidden_layers):
        p = f"model.layers.{layer}."
        a = p + "self_attn."
        queries, keys, values = [], [], []
        for position, h in enumerate(hidden):
            x = norm(h, w[p + "input_layernorm.weight"])
            if config.attention == "mla":
                c_q = matvec(w[a + "q_compress.weight"], x)
                content = [norm(q, w[a + "q_norm.weight"]) for q in split(matvec(w[a + "q_up.weight"], c_q), heads)]
                turned = [rope(q, position) for q in split(matvec(w[a + "q_rope_proj.weight"], c_q), heads)]
                queries.append([c + t for c, t in zip(content, turned, strict=True)])
                c_kv = norm(matvec(w[a + "kv_compress.weight"], x), w[a + "kv_norm.weight"])
                shared = rope(matvec(w[a + "k_rope_proj.weight"], x), position)
                keys.append([k + shared for k in split(matvec(w[a + "kv_up_k.weight"], c_kv), kv)])
                values.append(split(matvec(w[a + "kv_up_v.weight"], c_kv), kv))
            else:
                normed_q = [norm(q, w[a + "q_norm.weight"]) for q in split(matvec(w[a + "q_proj.weight"], x), heads)]
                normed_k = [norm(k, w[a + "k_norm.weight"]) for k in split(matvec(w[a + "k_proj.weight"], x), kv)]
                queries.append([rope(q, position) for q in normed_q])
                keys.append([rope(k, position) for k in normed_k])
                values.append(split(matvec(w[a + "v_proj.weight"], x), kv))
        for position, h in enumerate(hidden):
            mixed: list[float] = []
            for head in range(heads):
                q, served = queries[position][head], head // (heads // kv)
                scores = [
                    sum(x * y for x, y in zip(q, keys[t][served], strict=True)) / math.sqrt(len(q))
                    for t in range(position + 1)
                ]
                weights = [math.exp(score - max(scores)) for score in scores]
                total = sum(weights)
                mixed += [
                    sum(weights[t] / total * values[t][served][d] for t in range(position + 1))
                    for d in range(config.head_dim)
                ]
            hidden[position] = [x + y for x, y in zip(h, matvec(w[a + "o_proj.weight"], mixed), strict=True)]
        for position, h in enumerate(hidden):
            x = norm(h, w[p + "post_attention_layernorm.weight"])
            gate = [v / (1 + math.exp(-v)) for v in matvec(w[p + "mlp.gate_proj.weight"], x)]
            inner = [g * u for g, u in zip(gate, matvec(w[p + "mlp.up_proj.weight"], x), strict=True)]
            hidden[position] = [u + v for u, v in zip(h, matvec(w[p + "mlp.down_proj.weight"], inner), strict=True)]
    return [matvec(w["lm_head.weight"], norm(h, w["model.norm.weight"])) for h in hidden]


@pytest.mark.parametrize("attention", ["mla", "gqa", "mha", "mqa"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_equals_the_formulas(attention: str, implementation: str) -> None:
    model = make(attention).double()
    model.set_attn_implementation(implementation)
    tokens = ids_of(1, 7)
    expected = torch.tensor(reference(model, tokens[0].tolist()), dtype=torch.float64)
    with torch.no_grad():
        found = model(tokens).logits[0]
    assert expected.std() > 0.5
    # The norms and the softmax are float32 by specification, also in a float64 model.
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------------------------------- cache and padding


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["mla", "gqa"]), st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 4))
def test_cached_equals_uncached_equals_left_padded(attention: str, pieces: list[int], padding: int) -> None:
    model = make(attention)
    tokens = ids_of(2, sum(pieces))
    mask = torch.ones_like(tokens)
    mask[1, : min(padding, tokens.shape[1] - 1)] = 0  # the second row is shorter
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask).logits
        alone = model(tokens[1:][:, mask[1].bool()]).logits
        torch.testing.assert_close(whole[1:, mask[1].bool()], alone, rtol=1e-4, atol=1e-4)
        cache, parts, at = None, [], 0
        for piece in pieces:
            output = model(
                tokens[:, at : at + piece], attention_mask=mask[:, : at + piece], cache=cache, use_cache=True
            )
            cache, at = output.cache, at + piece
            parts.append(output.logits)
        found = torch.cat(parts, dim=1)
    torch.testing.assert_close(found[mask.bool()], whole[mask.bool()], rtol=1e-4, atol=1e-4)


def test_the_cache_holds_latent_and_rope_key_only() -> None:
    config = profile_config("tiny", vocab_size=VOCABULARY)
    model = SearchLMForCausalLM(config).eval()
    with torch.no_grad():
        cache = model(ids_of(2, 5), use_cache=True).cache
    sizes = {cache.layers[0].keys.shape[-1], cache.layers[0].values.shape[-1]}
    assert sizes == {config.kv_lora_rank, config.rope_head_dim} and cache.layers[0].keys.shape[:3] == (2, 1, 5)
    full = profile_config("SearchLM-300M")
    assert full.kv_lora_rank + full.rope_head_dim == 256


@pytest.mark.parametrize("attention", ["mla", "gqa"])
def test_generate_and_the_rollout_engine_agree(attention: str) -> None:
    model = make(attention)
    prompts = [ids_of(1, length, seed=length)[0].tolist() for length in (9, 4, 6)]
    expected = []
    for prompt in prompts:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=2)
        expected.append(out[0, len(prompt) :].tolist())
    found = [one.ids for one in Engine(model, [2]).generate(prompts, [8] * 3)]
    assert found == expected


def test_gradient_checkpointing_and_logits_to_keep() -> None:
    tokens = ids_of(2, 6)
    gradients = []
    for checkpointing in (False, True):
        model = make().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(tokens, labels=tokens).loss.backward()
        gradients.append(model.model.layers[0].self_attn.kv_up_k.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0
    model = make()
    with torch.no_grad():
        whole = model(tokens).logits
        torch.testing.assert_close(model(tokens, logits_to_keep=2).logits, whole[:, -2:])
        torch.testing.assert_close(model(tokens, logits_to_keep=torch.tensor([0, 3])).logits, whole[:, [0, 3]])
        shifted = torch.nn.functional.cross_entropy(whole[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        torch.testing.assert_close(model(tokens, labels=tokens).loss, shifted)


@pytest.mark.parametrize("attention", ["mla", "gqa"])
def test_packed_rows_train_like_single_examples(attention: str) -> None:
    """Examples that share a prompt, packed behind one copy of it, have the losses they have alone."""
    from agentic.train import attention as packed
    from agentic.train.packing import Tokens, make_batches
    from agentic.train.trainer import with_layout

    model = make(attention)
    prompt = ids_of(1, 80)[0].tolist()
    examples = [Tokens.from_mask(prompt + ids_of(1, n, n)[0].tolist(), [0] * 80 + [1] * n) for n in (3, 5, 4)]
    (batch,) = make_batches(examples, 512, True, 0)
    inputs = with_layout(batch, 0)
    model.set_attn_implementation(packed.NAME)
    with torch.no_grad(), packed.layout(inputs.pop("layout")):
        labels = inputs.pop("labels")
        logits = model(**inputs, use_cache=False).logits
    found = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
    )
    model.set_attn_implementation("sdpa")
    expected = 0.0
    for example in examples:
        with torch.no_grad():
            alone = model(torch.tensor([example.ids])).logits[0, :-1]
        target = torch.tensor(example.labels[1:])
        expected += torch.nn.functional.cross_entropy(alone, target, ignore_index=-100, reduction="sum")
    assert len(inputs["input_ids"].flatten()) < sum(len(example.ids) for example in examples)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


# ------------------------------------------------------------------------------------------------- files


def test_profiles() -> None:
    with torch.device("meta"):
        sizes = {name: SearchLMForCausalLM(profile_config(name)).num_parameters() / 1e6 for name in PROFILES}
    assert (
        300 < sizes["SearchLM-300M"] < 315 and 85 < sizes["SearchLM-100M"] < 115 and 450 < sizes["SearchLM-500M"] < 570
    )
    with pytest.raises(UserError, match="'SearchLM-3B': choose one of SearchLM-100M, SearchLM-300M"):
        profile_config("SearchLM-3B")
    with pytest.raises(UserError, match="attention 'flash'"):
        profile_config("tiny", attention="flash")


def test_names_of_the_state_dict() -> None:
    names = {name.removeprefix("model.layers.1.self_attn.") for name in make().state_dict() if ".1.self_attn." in name}
    linear = ("q_compress", "q_up", "q_rope_proj", "kv_compress", "kv_up_k", "kv_up_v", "k_rope_proj", "o_proj")
    assert names == {f"{name}.weight" for name in (*linear, "q_norm", "kv_norm")}
    assert not [name for name in make().state_dict() if not name.endswith(".weight")]


def test_save_pretrained_round_trip(tmp_path: Path) -> None:
    model, tokens = make(), ids_of(1, 5)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).attention == "mla"
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is SearchLMForCausalLM and again.lm_head.weight is again.model.embed_tokens.weight
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits)


def test_light_weights(tmp_path: Path) -> None:
    model = make()
    path = weight_file(tmp_path / "out", "agent_sft", model.config)
    assert path.name == "agent_sft_64_mla.pth" and weight_file(tmp_path, "x", make("gqa").config).name == "x_64.pth"
    assert (
        weight_file(Path(), "pretrain_searchlm", profile_config("SearchLM-300M")).name
        == "pretrain_searchlm_1024_mla.pth"
    )
    save_weights(model, path)
    stored = torch.load(path, weights_only=True)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16} and [
        p.name for p in path.parent.iterdir()
    ] == [path.name]
    again = make(seed=1)
    load_weights(again, path)
    torch.testing.assert_close(again.lm_head.weight, model.lm_head.weight, rtol=1e-3, atol=1e-3)
    del stored["lm_head.weight"]  # the original does not always write the tied head
    torch.save(stored, path)
    load_weights(again, path)


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    save_weights(make(), path)
    with pytest.raises(UserError, match=r"does not fit this model: 8 missing .*q_proj.* and 2 more\); 16 unexpected"):
        load_weights(make("mha"), path)
    with pytest.raises(
        UserError, match=r"of another shape \(model.layers.0.mlp.gate_proj.weight \(160, 64\), expected \(96, 64\)"
    ):
        load_weights(make(intermediate_size=96), path)
    stored = torch.load(path, weights_only=True)
    torch.save(stored | {"lm_head.weight": stored["lm_head.weight"] + 1}, path)
    with pytest.raises(UserError, match=r"lm_head\.weight differs"):
        load_weights(make(), path)
    torch.save([1], path)
    with pytest.raises(UserError, match="holds no state dict"):
        load_weights(make(), path)
    path.write_bytes(b"PK not really")
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_weights(make(), path)
    with pytest.raises(UserError, match="no such weight file"):
        load_weights(make(), tmp_path / "absent.pth")
    model = make()
    with torch.no_grad():
        model.model.norm.weight[0] = 1e6
    with pytest.raises(UserError, match="do not fit float16"):
        save_weights(model, tmp_path / "large.pth")
    assert not (tmp_path / "large.pth").exists()


# ---------------------------------------------------------------------------------------------- tokenizer

TEXTS = [
    "2024年第一季度的销售额是多少？ What were the total sales in 2024-03?",
    "print(round(df['sales'].sum(), 4))",
] * 20


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(TEXTS, 400)


def test_tokenizer_ids_and_tags(tokenizer: Any, tmp_path: Path) -> None:
    assert [tokenizer.convert_tokens_to_ids(token) for token in CONTROL] == [0, 1, 2]
    assert all(len(tokenizer.encode(tag, add_special_tokens=False)) == 1 for tag in TAGS)
    assert len(tokenizer) <= 400
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.bos_token_id, again.eos_token_id, again.pad_token_id) == (1, 2, 0)
    assert again.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert len(again.encode("12345", add_special_tokens=False)) == 5


@given(st.text(max_size=60))
def test_every_text_comes_back(tokenizer: Any, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def test_the_shipped_template_renders_calls_and_ends_turns(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    messages = [Message(role="user", content="How many rows?"), Message(role="assistant", content="There are 3.")]
    encoded = renderer.encode(messages, [TOOLS["calculator"]])
    trained = [token for token, mask in zip(encoded.ids, encoded.mask, strict=True) if mask]
    assert trained[-1] == renderer.end_ids[0] == 2 and tokenizer.decode(trained[:-1]) == "There are 3."


def test_same_texts_same_tokenizer(tokenizer: Any) -> None:
    assert train_tokenizer(TEXTS, 400).get_vocab() == tokenizer.get_vocab()
    with pytest.raises(UserError, match=f"at least {SMALLEST}"):
        train_tokenizer(TEXTS, 100)


def test_texts_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": [{"content": "one"}], "n": 3}\n', encoding="utf-8")
    (tmp_path / "b.txt").write_text("two\nthree\n", encoding="utf-8")
    assert list(texts_of([tmp_path / "a.jsonl", tmp_path / "b.txt"])) == ["one", "two\n", "three\n"]
    with pytest.raises(UserError, match=r"c\.txt: No such file"):
        list(texts_of([tmp_path / "c.txt"]))


# ----------------------------------------------------------------------------------------------- commands


@pytest.mark.slow
def test_from_texts_to_a_trained_weight_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tokenizer -> create -> sft -> export -> create with those weights: the model that was trained comes back."""
    data = write_rows(tmp_path / "sft.jsonl", [conversation(f"Question {i}?") for i in range(6)])
    tokens, model, run = tmp_path / "tokens", tmp_path / "model", tmp_path / "run"
    assert main(["tokenizer", str(data), "--output_dir", str(tokens), "--vocab_size", "320"]) == 0
    create = ["models", "create", "--tokenizer", str(tokens), "--profile", "tiny", "--output_dir"]
    assert main([*create, str(model)]) == 0
    train = ["sft", "--data_path", str(data), "--output_dir", str(run), "--model_name_or_path", str(model)]
    assert main([*train, "--lora_rank", "0", "--max_steps", "2", "--dtype", "float32", "--learning_rate", "1e-3"]) == 0
    assert main(["models", "export", str(run / "final"), "--save_dir", str(tmp_path / "out")]) == 0
    weights = tmp_path / "out" / "agent_sft_64_mla.pth"
    assert main([*create, str(tmp_path / "again"), "--weights", str(weights)]) == 0
    trained, again, before = (
        AutoModelForCausalLM.from_pretrained(f) for f in (run / "final", tmp_path / "again", model)
    )
    for name, tensor in trained.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=1e-3, atol=1e-3)
    assert not torch.equal(before.model.norm.weight, trained.model.norm.weight)
    capsys.readouterr()
    for wrong, said in (
        ([*create, str(model)], "exists and is not empty"),
        (["tokenizer", str(data), "--output_dir", str(data / "x")], "cannot write there"),
        ([*create, str(tmp_path / "x"), "--weights", str(tmp_path / "no.pth")], "no such weight file"),
        ([*create, str(tmp_path / "x"), "--weights", str(weights), "--attention", "gqa"], "does not fit this model"),
        (["models", "export", str(run / "final"), "--save_dir", str(weights)], "cannot be written"),
        (["tokenizer", str(tmp_path / "no.txt"), "--output_dir", str(tmp_path / "x")], "No such file"),
    ):
        assert main(wrong) == 2 and said in capsys.readouterr().err
        assert not (tmp_path / "x").exists()
