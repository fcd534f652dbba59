# ruff: noqa: E402 (imports follow importorskip)
"""`agentic sft` end to end on a random two-layer Llama."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("peft")

from tiny import TOOL, call, conversation, make_folder, make_model, make_tokenizer, write_rows

from agentic.config import SftConfig
from agentic.errors import UserError
from agentic.formats import iter_examples
from agentic.model.card import write_card
from agentic.model.chat import Renderer
from agentic.records import Message
from agentic.run_folder import open_run
from agentic.train import attention
from agentic.train.checkpoints import Checkpoints, read_seal, seal
from agentic.train.corpus import load_corpus
from agentic.train.packing import make_batches
from agentic.train.sft import run
from agentic.train.trainer import with_layout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        conversation(
            f"Question {question}?", card=f"Table {name}: 9 rows\n{name} (number): 1 to 3", answer=f"{name} {question}."
        )
        for name in ("price", "cost", "units")
        for question in range(6)
    ]
    return write_rows(tmp_path_factory.mktemp("data") / "sft.jsonl", rows)


@pytest.fixture
def config(base: Path, data: Path, tmp_path: Path) -> SftConfig:
    return SftConfig(
        data_path=(data,),
        output_dir=tmp_path / "run",
        model_name_or_path=str(base),
        lora_rank=0,
        learning_rate=5e-3,
        warmup_steps=1,
        max_steps=6,
        tokens_per_batch=1200,
        save_steps=2,
        logging_steps=1,
        dtype="float32",
    )


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_full_run_and_resume_are_the_same(
    config: SftConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uninterrupted == stopped at step 8 with a newer, half-written checkpoint, in epoch 2 (E10, E11)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = dataclasses.replace(config, max_steps=10)
    steps = list(range(1, 11))
    assert run(config) == 0
    final = config.output_dir / "final"
    assert [row["step"] for row in metrics(config.output_dir)] == steps
    assert metrics(config.output_dir)[-1]["loss"] < metrics(config.output_dir)[0]["loss"]
    assert metrics(config.output_dir)[7]["epoch"] > 1

    # A folder that transformers loads, with one stop id and the template.
    model, tokenizer = AutoModelForCausalLM.from_pretrained(final), AutoTokenizer.from_pretrained(final)
    renderer = Renderer(tokenizer)
    assert model.generation_config.eos_token_id in (renderer.end_ids, renderer.end_ids[0])
    assert tokenizer.eos_token_id == renderer.end_ids[0]
    about = json.loads((final / "agentic.json").read_text())
    stored = json.loads((config.output_dir / "run.json").read_text())
    assert about["template_hash"] == stored["facts"]["template_hash"] == renderer.template_hash
    assert about["data_hash"] in (final / "README.md").read_text()
    assert (final / "chat_template.jinja").exists()

    # The folder of a run that was killed while it saved step 10.
    again = dataclasses.replace(config, output_dir=tmp_path / "again", resume_from_checkpoint=True)
    config.output_dir.rename(again.output_dir)
    whole = weights(again.output_dir / "final")
    trained = metrics(again.output_dir)[-1]["trained_tokens"]
    (again.output_dir / "final").rename(tmp_path / "final")
    newest = again.output_dir / "checkpoint-10"
    for path in newest.rglob("*"):
        os.truncate(path, path.stat().st_size // 2)
    capsys.readouterr()
    assert run(again) == 0
    said = capsys.readouterr().out
    assert "checkpoint-10: half-written" in said and f"resuming from {again.output_dir / 'checkpoint-8'}" in said
    assert [row["step"] for row in metrics(again.output_dir)] == steps
    # The card counts what was trained before the resume as well.
    assert json.loads((again.output_dir / "final" / "agentic.json").read_text())["trained_tokens"] == trained
    assert metrics(again.output_dir)[-1]["trained_tokens"] == trained == about["trained_tokens"]
    resumed = weights(again.output_dir / "final")
    assert whole.keys() == resumed.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=0)


def test_lora_adapter_loads_and_is_small(config: SftConfig, base: Path, recwarn: pytest.WarningsRecorder) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = dataclasses.replace(config, lora_rank=4, max_steps=2, dtype="auto", learning_rate=1e-3)
    assert run(config) == 0
    assert [str(warning.message) for warning in recwarn if issubclass(warning.category, FutureWarning)] == []
    final = config.output_dir / "final"
    adapter = weights(final)
    assert {tensor.dtype for tensor in adapter.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in weights(config.output_dir / "checkpoint-2").values()} == {torch.float32}
    # q, k, v, o, gate, up, down of two layers, A and B each; not the output layer.
    assert len(adapter) == 2 * 7 * 2
    assert any(tensor.abs().sum() > 0 for name, tensor in adapter.items() if "lora_B" in name)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), final)
    assert model.peft_config["default"].lora_alpha == 8
    card = (final / "README.md").read_text()
    assert "\n# run\n" in card
    assert "library_name: peft" in card and "Not evaluated yet" in card
    write_card(final, scores={"success": "0.9 [0.8, 1.0]"})
    card = (final / "README.md").read_text()
    assert "- success: 0.9 [0.8, 1.0]" in card and "LoRA, rank 4" in card


@pytest.mark.slow
def test_an_adapter_is_trained_on(config: SftConfig, base: Path, tmp_path: Path) -> None:
    """The second run starts where the first ended, resumes like any other, and its adapter names the same base."""
    first = dataclasses.replace(config, lora_rank=4, max_steps=3, learning_rate=3e-3, warmup_steps=0)
    assert run(first) == 0
    begun = first.output_dir / "final"
    second = dataclasses.replace(first, model_name_or_path=str(begun), output_dir=tmp_path / "second", save_steps=2)
    with pytest.raises(UserError, match=r"adapter of rank 4, .*--lora_rank 4, not 8; .* start from its base model"):
        run(dataclasses.replace(second, lora_rank=8))
    assert run(dataclasses.replace(second, learning_rate=0.0, output_dir=tmp_path / "still")) == 0
    before, still = weights(begun), weights(tmp_path / "still" / "final")
    assert before.keys() == still.keys() and all(torch.equal(before[name], still[name]) for name in before)
    assert run(second) == 0
    assert metrics(second.output_dir)[0]["loss"] < metrics(first.output_dir)[0]["loss"]
    after = weights(second.output_dir / "final")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    about = json.loads((second.output_dir / "final" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == config.model_name_or_path and about["r"] == 4
    assert f"continued from {begun}" in (second.output_dir / "final" / "README.md").read_text()
    shutil.rmtree(second.output_dir / "checkpoint-3")
    assert run(dataclasses.replace(second, resume_from_checkpoint=True)) == 0
    again = weights(second.output_dir / "final")
    assert all(torch.equal(after[name], again[name]) for name in after)


def test_loss_is_the_mean_over_the_tokens_of_the_step(config: SftConfig, base: Path) -> None:
    """The first logged loss equals that of the plain model over the same tokens, accumulation included."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = dataclasses.replace(config, max_steps=1, gradient_accumulation_steps=100, warmup_steps=0)
    assert run(config) == 0
    model = AutoModelForCausalLM.from_pretrained(base)
    renderer = Renderer(AutoTokenizer.from_pretrained(base))
    examples = load_corpus(config.data_path, renderer, 2048).examples
    total = trained = 0.0
    for example in examples:
        labels = torch.tensor([example.labels])
        with torch.no_grad():
            logits = model(torch.tensor([example.ids])).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, labels[0, 1:], ignore_index=-100, reduction="sum").item()
        trained += example.trained
    row = metrics(config.output_dir)[0]
    assert row["loss"] == pytest.approx(total / trained, abs=1e-4)
    assert row["trained_tokens"] == trained


def test_interrupt_saves_and_says_how_to_go_on(config: SftConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(config, max_steps=100_000, save_steps=100_000, save_total_limit=1)
    rows = config.output_dir / "metrics.jsonl"

    def interrupt() -> None:
        while not rows.exists() or len(rows.read_text().splitlines()) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    assert run(config) == 130
    assert signal.getsignal(signal.SIGINT) is handler
    assert "--resume_from_checkpoint" in capsys.readouterr().out
    assert not (config.output_dir / "final").exists()
    checkpoint, broken = Checkpoints(config.output_dir).newest_whole()
    assert checkpoint is not None and not broken
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    assert run(dataclasses.replace(config, resume_from_checkpoint=True, max_steps=step + 1)) == 0
    assert metrics(config.output_dir)[-1]["step"] == step + 1


@pytest.mark.slow
def test_time_limit_ends_the_schedule(config: SftConfig, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    config = dataclasses.replace(config, max_steps=100_000, max_minutes=1 / 60, save_steps=100_000, logging_steps=5)
    assert run(config) == 0
    assert time.monotonic() - started < 20
    rates = [row["learning_rate"] for row in metrics(config.output_dir)]
    assert rates[-1] < 0.3 * max(rates)
    assert "time limit" in capsys.readouterr().out
    assert (config.output_dir / "final" / "model.safetensors").exists()


def test_dry_run_counts_and_trains_nothing(
    config: SftConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = write_rows(tmp_path / "long.jsonl", [conversation("x" * 3000), conversation("short"), [
        Message(role="user", content="q"), call("1", weight=0)]])  # fmt: skip
    assert run(dataclasses.replace(config, data_path=(long,), dry_run=True)) == 0
    said = capsys.readouterr().out
    assert "1 examples" in said and "dropped 1 longer than 2048 tokens, 1 without trained tokens" in said
    assert not config.output_dir.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_path": (Path("absent.jsonl"),)}, "absent.jsonl: No such file"),
        ({"resume_from_checkpoint": True}, "no whole checkpoint"),
        ({"lr_scheduler_type": "wavy"}, "choose one of"),
        ({"max_length": 10}, "18 longer than 10 tokens"),
    ],
)
def test_user_errors_are_sentences(config: SftConfig, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(dataclasses.replace(config, **change))


def test_a_run_is_not_overwritten_and_other_data_not_resumed(config: SftConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, max_steps=2)
    assert run(config) == 0
    with pytest.raises(UserError, match="holds a run already"):
        run(config)
    other = write_rows(tmp_path / "other.jsonl", [conversation("else")])
    with pytest.raises(UserError, match="data_hash was"):
        run(dataclasses.replace(config, data_path=(other,), resume_from_checkpoint=True))
    with pytest.raises(UserError, match=r"learning_rate was 0\.005, now 1\.0"):
        run(dataclasses.replace(config, learning_rate=1.0, resume_from_checkpoint=True))
    (config.output_dir / "run.json").unlink()
    for _ in range(2):  # the refusal itself must not leave a record behind
        with pytest.raises(UserError, match=r"no run\.json"):
            run(dataclasses.replace(config, resume_from_checkpoint=True))


def test_broken_checkpoints_alone_do_not_block_the_folder(config: SftConfig) -> None:
    (config.output_dir / "checkpoint-1").mkdir(parents=True)
    with pytest.raises(UserError, match="start without --resume_from_checkpoint"):
        run(dataclasses.replace(config, resume_from_checkpoint=True))
    assert run(dataclasses.replace(config, max_steps=1)) == 0


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_anew(config: SftConfig) -> None:
    open_run(config.output_dir, dataclasses.replace(config, learning_rate=1.0), "sft", facts={"data_hash": "old"})
    (config.output_dir / "metrics.jsonl").write_text('{"step": 1}\n')
    assert run(dataclasses.replace(config, max_steps=1)) == 0
    assert len(metrics(config.output_dir)) == 1
    assert json.loads((config.output_dir / "run.json").read_text())["options"]["learning_rate"] == config.learning_rate


def test_padding_does_not_change_the_logits(config: SftConfig) -> None:
    """E16: the same row alone and padded beside a longer one."""
    renderer = Renderer(make_tokenizer())
    corpus = load_corpus(config.data_path, renderer, 2048)
    rows = sorted((row for batch in make_batches(corpus.examples, 900) for row in batch), key=len)
    assert len(rows[0]) < len(rows[-1])
    model = make_model(len(renderer.tokenizer))
    model.set_attn_implementation(attention.NAME)
    found = []
    for batch in (
        with_layout(members, renderer.tokenizer.pad_token_id) for members in ([rows[0], rows[-1]], [rows[0]])
    ):
        batch.pop("labels")
        with torch.no_grad(), attention.layout(batch.pop("layout")):
            found.append(model(**batch).logits[0, : len(rows[0])])
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------------- data files


def test_the_forms_of_a_file_give_the_same_ids(tmp_path: Path) -> None:
    """messages, the specified conversations (all strings), and sharegpt."""
    messages = [message for message in conversation("q") if message.role != "tool"]
    schemas = [tool.schema() for tool in TOOL]
    arguments = {"code": "print(len(df))"}
    plain = write_rows(tmp_path / "messages.jsonl", [messages])
    specified = [
        {"role": m.role, "content": m.content, "reasoning_content": "", "tools": "", "tool_calls": ""} for m in messages
    ]
    specified[0]["tools"] = json.dumps(schemas)
    specified[2]["tool_calls"] = json.dumps([{"name": "python_executor", "arguments": arguments}])
    shared = [
        {"from": "human", "value": messages[1].content},
        {"from": "function_call", "value": json.dumps({"name": "python_executor", "arguments": arguments})},
        {"from": "gpt", "value": messages[3].content},
    ]
    forms = [
        {"conversations": specified, "note": None, "source": "x"},
        {"conversations": shared, "system": messages[0].content, "tools": json.dumps(schemas)},
        {"messages": [
            {**m.model_dump(mode="json"), "extra": 1} for m in messages], "tools": json.dumps(schemas)},
    ]  # fmt: skip
    path = tmp_path / "forms.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in forms))
    renderer = Renderer(make_tokenizer())
    (expected,) = [renderer.encode_row(row) for row in iter_examples(plain)]
    found = list(iter_examples(path))
    assert [renderer.encode_row(row) for row in found] == [expected] * 3
    assert [row.dropped for row in found] == [["source"], [], ["messages.extra"]]
    assert found[2].nulls > 0


def test_seal_sees_missing_and_cut_files(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"x" * 100)
        seal(folder, step=step)
    assert Checkpoints(tmp_path).newest_whole() == (tmp_path / "checkpoint-10", [])
    os.truncate(tmp_path / "checkpoint-10" / "weights", 50)
    (tmp_path / "checkpoint-2" / "weights").unlink()
    assert read_seal(tmp_path / "checkpoint-2") is None
    assert Checkpoints(tmp_path).newest_whole() == (
        tmp_path / "checkpoint-1",
        [tmp_path / "checkpoint-10", tmp_path / "checkpoint-2"],
    )
