# ruff: noqa: E402 (imports follow importorskip)
"""Data that is tokenised while training: the index of lines, and batches that cover every line once an epoch."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TOOL, conversation, make_folder, make_tokenizer, write_rows

from agentic import jsonl
from agentic.config import SftConfig
from agentic.errors import UserError
from agentic.formats import iter_examples
from agentic.model.chat import Renderer
from agentic.train.corpus import EMPTY, SAMPLE_EPOCH, LoadedBatches, StreamedBatches, load_corpus, shuffled
from agentic.train.lines import Lines, build_index
from agentic.train.packing import IGNORED, Row, Tokens
from agentic.train.sft import run

BUDGET = 1500


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files: messages, and the specified conversations; blank lines, a byte order mark, CRLF."""
    folder = tmp_path_factory.mktemp("files")
    rows = [
        conversation(
            f"Question {question}: {'多' * (question % 7)}?",
            card=f"Table {name}\n{name} (number)",
            answer=f"{name}{question}",
        )
        for name in ("price", "cost", "units")
        for question in range(20)
    ]
    first = write_rows(folder / "a.jsonl", rows[:40])
    first.write_bytes(b"\xef\xbb\xbf" + first.read_bytes().replace(b"\n", b"\r\n\n", 3))
    second = folder / "b.jsonl"
    tools = json.dumps([tool.schema() for tool in TOOL])
    with second.open("w", encoding="utf-8") as file:
        for messages in rows[40:]:
            turns = [
                {"role": m.role, "content": m.content, "reasoning_content": "", "tools": tools if m.role == "system" else "",
                 "tool_calls": json.dumps([call.model_dump(mode="json", exclude_none=True) for call in m.tool_calls or []])}
                for m in messages
            ]  # fmt: skip
            file.write(json.dumps({"conversations": turns}, ensure_ascii=False) + "\n")
    return [first, second]


def streamed(files: list[Path], cache: Path, renderer: Renderer, per_step: int = 3, **changes: Any) -> StreamedBatches:
    build_index(files, cache, lambda text: None)
    options = {
        "max_length": 2000,
        "tokens_per_batch": BUDGET,
        "share_prefix": True,
        "seed": 5,
        "batches_per_step": per_step,
    }
    return StreamedBatches(Lines(cache), renderer, **(options | changes))  # type: ignore[arg-type]


def trained_texts(rows: list[Row], renderer: Renderer) -> list[str]:
    """The trained tokens of every example in packed rows, as text."""
    texts = []
    for row in rows:
        parts: dict[tuple[int, int], list[int]] = {}
        for group, segment, label in zip(row.groups, row.segments, row.labels, strict=True):
            if label != IGNORED:
                parts.setdefault((group, segment), []).append(label)
        texts += [str(renderer.tokenizer.decode(ids)) for ids in parts.values()]
    return texts


def epoch_texts(batches: Any, epoch: int, renderer: Renderer) -> list[str]:
    return trained_texts([row for place in range(len(batches)) for row in batches.rows(epoch, place)], renderer)


def test_lines_are_those_of_the_files(files: list[Path], tmp_path: Path) -> None:
    data_hash = build_index(files, tmp_path, lambda text: None)
    lines = Lines(tmp_path)
    expected = [row.example for path in files for row in iter_examples(path)]
    found = [lines.example(index).example for index in range(len(lines))]
    assert [example.messages for example in found] == [example.messages for example in expected]
    assert [lines.where(index) for index in (0, 1, 39, 40)] == [
        f"{files[0]}, line 1", f"{files[0]}, line 3", f"{files[0]}, line 43", f"{files[1]}, line 1"]  # fmt: skip
    assert int(lines.lengths().sum()) == sum(path.stat().st_size for path in files)
    assert (tmp_path / "lines.u64").stat().st_size == 8 * (60 + 2)
    # Built once; again when a file is another one.
    stamp = (tmp_path / "lines.u64").stat().st_mtime_ns
    assert build_index(files, tmp_path, lambda text: None) == data_hash
    assert (tmp_path / "lines.u64").stat().st_mtime_ns == stamp
    assert build_index(files[:1], tmp_path, lambda text: None) != data_hash and len(Lines(tmp_path)) == 40


def test_every_line_once_an_epoch_in_another_order(files: list[Path], tmp_path: Path, renderer: Renderer) -> None:
    batches = streamed(files, tmp_path, renderer)
    loaded = load_corpus(tuple(files), renderer, 2000)
    expected = Counter(trained_texts([_alone(tokens) for tokens in loaded.examples], renderer))
    first, second = epoch_texts(batches, 0, renderer), epoch_texts(batches, 1, renderer)
    assert Counter(first) == Counter(second) == expected
    assert first != second
    assert len(batches) % 3 == 0
    sizes = [sum(map(len, batches.rows(0, place))) for place in range(len(batches))]
    assert max(sizes) <= 1.2 * BUDGET


def _alone(tokens: Tokens) -> Row:
    return Row(tokens.ids, tokens.labels, list(range(len(tokens.ids))), [1] * len(tokens.ids), [1] * len(tokens.ids))


@pytest.mark.slow
def test_a_batch_depends_on_its_place_only(files: list[Path], tmp_path: Path, renderer: Renderer) -> None:
    """Another process, another worker, a resumed run: any place can be asked for first."""
    whole, other = (streamed(files, tmp_path, renderer, per_step=2) for _ in range(2))
    for epoch, place in ((1, 3), (0, 2), (1, 3), (0, 0)):
        assert other.rows(epoch, place) == whole.rows(epoch, place)
    assert streamed(files, tmp_path, renderer, per_step=2, seed=6).rows(0, 0) != whole.rows(0, 0)


@settings(max_examples=8, deadline=None)
@given(per_step=st.integers(1, 9), budget=st.integers(200, 4000), seed=st.integers(0, 99))
def test_nothing_is_lost_whatever_the_sizes(
    files: list[Path], tmp_path_factory: pytest.TempPathFactory, per_step: int, budget: int, seed: int
) -> None:
    cache = tmp_path_factory.getbasetemp() / "sizes"
    batches = streamed(files, cache, _Lengths(), per_step, tokens_per_batch=budget, seed=seed)  # type: ignore[arg-type]
    trained = [
        sum(label != IGNORED for row in batches.rows(2, place) for label in row.labels) for place in range(len(batches))
    ]
    assert sum(trained) == 60 * _Lengths.TRAINED and len(batches) % per_step == 0


class _Lengths:
    """A renderer without text: a question's length decides the number of tokens."""

    TRAINED = 5

    def encode(self, messages: Any, tools: Any) -> Any:
        size = len(messages[1].content)
        return dataclasses.make_dataclass("E", ["ids", "mask"])(list(range(size)), [0] * (size - 5) + [1] * 5)

    def encode_row(self, row: Any) -> Any:
        return self.encode(row.example.messages, row.example.tools)


def test_loaded_batches_fill_the_last_step_with_empty_rows(files: list[Path], renderer: Renderer) -> None:
    corpus = load_corpus(tuple(files), renderer, 2000)
    batches = LoadedBatches(corpus, BUDGET, True, 0, 7)
    assert len(batches) % 7 == 0 and len(batches) - len(batches.batches) < 7
    assert [batches.rows(0, place) for place in range(len(batches.batches), len(batches))] == [
        [EMPTY] for _ in range(len(batches) - len(batches.batches))
    ]
    assert Counter(epoch_texts(batches, 0, renderer)) == Counter(epoch_texts(batches, 3, renderer))


# ------------------------------------------------------------------------------------------------ training


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture
def config(base: Path, files: list[Path], tmp_path: Path) -> SftConfig:
    return SftConfig(
        data_path=tuple(files),
        output_dir=tmp_path / "run",
        model_name_or_path=str(base),
        lora_rank=0,
        learning_rate=5e-3,
        warmup_steps=1,
        tokens_per_batch=2500,
        save_steps=2,
        logging_steps=1,
        dtype="float32",
        stream_above_mb=0,
        max_steps=3,
    )


@pytest.mark.slow
def test_streamed_run_resumes_and_workers_change_nothing(config: SftConfig, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    assert run(config) == 0
    whole = load_file(tmp_path / "run" / "final" / "model.safetensors")
    for path in (tmp_path / "run" / "checkpoint-3", tmp_path / "run" / "final"):
        assert path.exists()
        path.rename(tmp_path / path.name)
    assert run(dataclasses.replace(config, resume_from_checkpoint=True, dataloader_num_workers=1)) == 0
    again = load_file(tmp_path / "run" / "final" / "model.safetensors")
    assert whole.keys() == again.keys() and all(torch.equal(whole[name], again[name]) for name in whole)
    assert [row["step"] for _, row in jsonl.iter_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


def test_dry_run_leaves_nothing(config: SftConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(dataclasses.replace(config, dry_run=True, max_steps=-1)) == 0
    said = capsys.readouterr().out
    assert "60 lines, tokenised while training" in said and "optimizer steps" in said
    assert config.output_dir is not None and not config.output_dir.exists()


def test_a_bad_line_is_named(config: SftConfig, tmp_path: Path, files: list[Path]) -> None:
    """Broken JSON before the start; a turn that no reader understands when its line comes up, also from a worker."""
    data = tmp_path / "bad.jsonl"
    lines = files[1].read_bytes().splitlines(keepends=True)
    config = dataclasses.replace(config, data_path=(data,), dataloader_num_workers=1, tokens_per_batch=20000)
    data.write_bytes(b"".join([*lines[:7], b'{"messages": [\n', *lines[7:]]))
    with pytest.raises(UserError, match=r"bad.jsonl, line 8: broken JSON"):
        run(config)
    # Not among the lines that are sampled at the start.
    data.write_bytes(b"".join([*lines * 15, b'{"messages": [{"role": "robot", "content": "x"}]}\n']))
    unseen = next(seed for seed in range(99) if 300 not in shuffled(301, seed, SAMPLE_EPOCH)[:256])
    with pytest.raises(UserError, match=r"^\S+bad.jsonl, line 301: turn 1: role 'robot'"):
        run(dataclasses.replace(config, seed=unseen))


# --------------------------------------------------------------------------------------------------- memory

_MEASURE = """
import resource, sys
from pathlib import Path
from agentic.train.lines import Lines, build_index
from agentic.train.corpus import StreamedBatches
sys.path.insert(0, {tests!r})
from tiny import make_tokenizer
from agentic.model.chat import Renderer
import numpy, torch
def rss(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) / 1024
data, cache = Path(sys.argv[1]), Path(sys.argv[2])
renderer = Renderer(make_tokenizer())
before = rss()
build_index([data], cache, print)
batches = StreamedBatches(Lines(cache), renderer, 20000, 8000, True, 0, 8)
for place in range(0, len(batches), max(1, len(batches) // 40)):
    batches.rows(0, place)
print(f"MB {{rss() - before:.1f}}")
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file 20 times as large needs at most what its index and order take: 12 bytes a line."""
    import subprocess
    import sys

    used = {}
    for lines in (2_000, 40_000):
        path = tmp_path / f"{lines}.jsonl"
        text = json.dumps([m.model_dump(mode="json", exclude_none=True) for m in conversation("x" * 2000)])
        with path.open("w") as file:
            for index in range(lines):
                file.write(f'{{"id": "{index}", "messages": {text}}}\n')
        script = [
            sys.executable,
            "-c",
            _MEASURE.format(tests=str(Path(__file__).parent)),
            str(path),
            str(tmp_path / f"{lines}"),
        ]
        done = subprocess.run(script, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        used[lines] = float(done.stdout.split("MB ")[-1])
    assert used[40_000] - used[2_000] < 15, used
