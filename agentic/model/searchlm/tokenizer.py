"""Trains a tokenizer of the kind SearchLM uses: byte-level BPE, ChatML tokens first, tool tags as single tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentic import jsonl
from agentic.errors import MissingExtra, UserError
from agentic.model.chat import shipped_template

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1, 2: padding, start and end of a turn."""

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Single tokens that stay in the decoded text."""

SMALLEST = 256 + len(CONTROL) + len(TAGS)
"""Bytes, control tokens and tags: a vocabulary without merges."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A transformers tokenizer with `vocab_size` entries, fewer when the texts hold fewer pairs. Same texts, same tokenizer.

    Digits are tokens of their own, so that numbers are read alike whatever their neighbours. Raises UserError for a
    vocabulary that cannot hold the bytes.
    """
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        raise MissingExtra("agentic tokenizer", "train") from None
    if vocab_size < SMALLEST:
        raise UserError(
            f"--vocab_size must be at least {SMALLEST} (256 bytes and {SMALLEST - 256} tokens), not {vocab_size}"
        )
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=list(CONTROL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=CONTROL[1],
        eos_token=CONTROL[2],
        pad_token=CONTROL[0],
        unk_token=CONTROL[0],
        model_max_length=32768,
    )
    tokenizer.chat_template = shipped_template()
    return tokenizer


def texts_of(paths: Iterable[Path]) -> Iterator[str]:
    """Every string value of JSONL files, and the lines of any other text file. Streams."""
    for path in paths:
        if path.suffix == ".jsonl":
            for _, row in jsonl.iter_rows(path):
                yield from _strings(row)
        else:
            try:
                with path.open(encoding="utf-8") as file:
                    yield from file
            except OSError as error:
                raise UserError(f"{path}: {error.strerror}; name text or JSONL files") from None
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: is not UTF-8 (byte {error.start}); convert it first") from None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
