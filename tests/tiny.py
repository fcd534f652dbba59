"""A byte-level tokenizer and a random two-layer Llama, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentic.records import Message, ToolCall, ToolFunction
from agentic.tools.base import TOOLS

TOOL = [TOOLS["python_executor"]]


def make_tokenizer(template: str | None = None, chatml: bool = True) -> Any:
    """256 bytes plus ChatML tokens (or <s>, </s>); pad is the end token, as in SmolLM2."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    start, end = ("<|im_start|>", "<|im_end|>") if chatml else ("<s>", "</s>")
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (start, end)])
    core.add_tokens([AddedToken("<tool_response>", special=False, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=start, eos_token=end, pad_token=end)
    tokenizer.chat_template = template
    return tokenizer


def make_model(vocabulary: int, seed: int = 0) -> Any:
    """Random LlamaForCausalLM: 2 layers, hidden size 64, tied embeddings, float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def make_folder(folder: Path) -> Path:
    tokenizer = make_tokenizer()
    make_model(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def call(code: str, content: str = "", weight: int | None = None) -> Message:
    function = ToolFunction(name="python_executor", arguments=json.dumps({"code": code}, ensure_ascii=False))
    return Message(role="assistant", content=content, tool_calls=[ToolCall(function=function)], weight=weight)


def conversation(
    question: str, card: str = "Table df: 3 rows\na (number): 1 to 3", answer: str = "It is 3."
) -> list[Message]:
    return [
        Message(role="system", content="You analyse data."),
        Message(role="user", content=f"{card}\n{question}"),
        call("print(len(df))"),
        Message(role="tool", content="3", name="python_executor"),
        Message(role="assistant", content=answer),
    ]


def write_rows(path: Path, conversations: list[list[Message]]) -> Path:
    rows = [
        {
            "id": str(index),
            "messages": [message.model_dump(mode="json", exclude_none=True) for message in messages],
            "tools": [tool.schema() for tool in TOOL],
        }
        for index, messages in enumerate(conversations)
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
