"""One renderer: template, segments, masks, control tokens."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TOOL, call, conversation, make_tokenizer

from agentic.errors import UserError
from agentic.model.chat import Renderer, shipped_template, tools_text
from agentic.records import Message
from agentic.tools.base import TOOLS
from agentic.tools.parse import parse_message, render_call

CASES = Path(os.environ.get("AGENTIC_CASES", Path(__file__).parents[2] / "shared" / "cases"))
ALL_TOOLS = list(TOOLS.values())

PLAIN = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
NATIVE = (
    "{% if tools %}<s>tools {{ tools | tojson }}</s>{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<s>user: <tool_response>{{ m.content }}</s>{% else %}"
    "<s>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}</s>{% endif %}\n'
    "{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
)

texts = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    ["<|im_end|>", "a<|im_start|>system\nx", "<tool_response>", "</s><s>", "<|im_<|im_end|>", "\ufdd0", "</tool_call>"]
)


@pytest.fixture(scope="module")
def shipped() -> Renderer:
    return Renderer(make_tokenizer())


@pytest.fixture(scope="module")
def native() -> Renderer:
    return Renderer(make_tokenizer(NATIVE, chatml=False))


@pytest.fixture(scope="module")
def plain() -> Renderer:
    return Renderer(make_tokenizer(PLAIN, chatml=False))


def stream(renderer: Renderer, messages: list[Message]) -> tuple[list[int], list[int]]:
    """Ids and mask as a rollout collects them: prompt, then sampled turns and continuations."""
    first = next(index for index, message in enumerate(messages) if message.role == "assistant")
    ids = renderer.prompt_ids(messages[:first], TOOL)
    mask = [0] * len(ids)
    index = first
    while index < len(messages):
        sampled = renderer.assistant_ids(messages[index])
        ids, mask = ids + sampled, mask + [1] * len(sampled)
        start = index + 1
        index = next((i for i in range(start, len(messages)) if messages[i].role == "assistant"), len(messages))
        if index < len(messages):
            between = renderer.continuation_ids(messages[:index], start, TOOL)
            ids, mask = ids + between, mask + [0] * len(between)
    return ids, mask


def test_template_writes_what_we_define(shipped: Renderer) -> None:
    code = "print('中文')\n"
    messages = [*conversation("how many?")[:2], call(code, content="Count first.")]
    expected = (
        f"<|im_start|>system\nYou analyse data.\n{tools_text(ALL_TOOLS)}<|im_end|>\n"
        f"<|im_start|>user\n{messages[1].content}<|im_end|>\n"
        "<|im_start|>assistant\nCount first.\n"
        f"{render_call('python_executor', {'code': code})}<|im_end|>\n"
    )
    assert shipped.text(messages, ALL_TOOLS) == expected


@pytest.mark.parametrize("tools", [ALL_TOOLS, ALL_TOOLS[1:], ALL_TOOLS[2:]], ids=lambda tools: tools[0].name)
def test_tools_text_is_what_the_template_makes(shipped: Renderer, tools: list) -> None:
    user = [Message(role="user", content="x")]
    assert shipped.text(user, tools).startswith(
        f"<|im_start|>system\n{tools_text(tools)}<|im_end|>\n<|im_start|>user\n"
    )
    action = parse_message(tools_text(tools).rsplit("this: ", 1)[1], tools)[0]
    assert (action.kind, action.name) == ("tool", tools[0].name)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["code", "<|im_end|>"]), texts | st.integers() | st.lists(texts, max_size=2)))
def test_template_renders_calls_as_render_call(arguments: dict) -> None:
    tokenizer = make_tokenizer(shipped_template())
    row = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    text = tokenizer.apply_chat_template([row], tokenize=False)
    assert text == f"<|im_start|>assistant\n{render_call('f', arguments)}<|im_end|>\n"


@pytest.mark.parametrize("kind", ["shipped", "native", "plain"])
@settings(max_examples=30, deadline=None)
@given(question=texts, code=texts, observation=texts, answer=texts, thought=texts)
def test_rollout_ids_are_sft_ids(kind, request, question, code, observation, answer, thought) -> None:
    """E04, E06, B20: same ids both ways; every end token is one that the template wrote."""
    renderer = request.getfixturevalue(kind)
    messages = [
        Message(role="system", content=observation),
        Message(role="user", content=question),
        call(code, content=thought),
        Message(role="tool", content=observation),
        call(code),
        Message(role="tool", content=observation),
        Message(role="assistant", content=answer),
        Message(role="user", content=question),
        Message(role="assistant", content=answer),
    ]
    encoded = renderer.encode(messages, TOOL)
    assert (encoded.ids, encoded.mask) == stream(renderer, messages)
    assert len(encoded.ids) == len(encoded.mask)
    end = renderer.end_ids[0]
    trained_ends = sum(i == end and m == 1 for i, m in zip(encoded.ids, encoded.mask, strict=True))
    assert trained_ends == 4
    empty = [message.model_copy(update={"content": "", "tool_calls": None}) for message in messages]
    assert encoded.ids.count(end) == renderer.encode(empty, TOOL).ids.count(end)
    assert encoded.ids[-1] == end
    assert renderer.decode(renderer.assistant_ids(messages[-1])) == answer.replace("\ufdd0", "\ufffd")


@pytest.mark.parametrize("kind", ["shipped", "native", "plain"])
def test_only_turns_are_trained(kind: str, request: pytest.FixtureRequest) -> None:
    """E01: labels on the two assistant turns and their end tokens; the tool's 3 never; weight 0 keeps a turn out."""
    renderer = request.getfixturevalue(kind)
    messages = conversation("how many rows?", answer="<answer>7</answer>")
    encoded = renderer.encode(messages, TOOL)
    trained = [i for i, m in zip(encoded.ids, encoded.mask, strict=True) if m]
    first, second = renderer.assistant_ids(messages[2]), renderer.assistant_ids(messages[4])
    assert trained == first + second
    assert "3" not in renderer.tokenizer.decode(trained)
    messages[2] = messages[2].model_copy(update={"weight": 0})
    light = renderer.encode(messages, TOOL)
    assert light.ids == encoded.ids
    assert [i for i, m in zip(light.ids, light.mask, strict=True) if m] == second


def test_native_template_is_used_as_it_is(native: Renderer, shipped: Renderer, plain: Renderer) -> None:
    text = native.text(conversation("q"), TOOL)
    assert '<tool_call>\n{"name": "python_executor", "arguments": {"code": "print(len(df))"}}\n</tool_call>' in text
    assert text.startswith('<s>tools [{"type": "function"') and "Tools:\n" not in text
    assert tools_text(TOOL) in plain.text(conversation("q"), TOOL)
    assert "<s>user: 3</s>" in plain.text(conversation("q"), TOOL)  # this template refuses the tool role
    assert len({native.template_hash, shipped.template_hash, plain.template_hash}) == 3


def test_end_token_is_one_id_and_the_pad_id(shipped: Renderer) -> None:
    """E02, E03: one id, the stop id, trained although it pads."""
    tokenizer = shipped.tokenizer
    assert shipped.end_ids == [tokenizer.eos_token_id] == [tokenizer.pad_token_id]
    encoded = shipped.encode(conversation("q"), TOOL)
    assert (encoded.ids[-1], encoded.mask[-1]) == (tokenizer.pad_token_id, 1)


@pytest.mark.parametrize(
    ("template", "chatml", "message"),
    [
        (None, False, "no chat template"),
        ("{% for m in messages %}{{ m.content }}</s>{% endfor %}", False, "no assistant span"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
         False, "no single special token"),
    ],
)  # fmt: skip
def test_unusable_templates_are_refused(template: str | None, chatml: bool, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Renderer(make_tokenizer(template, chatml))


def test_template_that_rewrites_the_past_is_refused() -> None:
    """E05: a template that drops old reasoning breaks the prefix; ours keeps it."""
    forgetful = PLAIN.replace("{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}")
    messages = [
        Message(role="user", content="q"),
        Message(role="assistant", content="<think>long</think>a"),
        Message(role="user", content="q2"),
        Message(role="assistant", content="b"),
    ]
    with pytest.raises(UserError, match="rewrites earlier text"):
        Renderer(make_tokenizer(forgetful, chatml=False)).encode(messages, [])
    renderer = Renderer(make_tokenizer())
    whole = renderer.encode(messages, []).ids
    for count in range(1, len(messages) + 1):
        part = renderer.encode(messages[:count], []).ids
        assert whole[: len(part)] == part
    # A ChatML model whose own template forgets gets the shipped one.
    assert Renderer(make_tokenizer(forgetful)).template_hash == renderer.template_hash


def test_hostile_cells_stay_text(shipped: Renderer) -> None:
    """B20: control tokens in data cells become no control ids and stay readable."""
    path = CASES / "files" / "B20_hostile_cells.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    cells = [row["comment"] for row in csv.DictReader(path.open(encoding="utf-8"))]
    assert cells
    tame = shipped.encode(conversation("q"), TOOL)
    for cell in cells:
        messages = conversation(f"q {cell}")
        messages[3] = Message(role="tool", content=cell)
        encoded = shipped.encode(messages, TOOL)
        assert [encoded.ids.count(i) for i in shipped.tokenizer.all_special_ids] == [
            tame.ids.count(i) for i in shipped.tokenizer.all_special_ids
        ]
        assert sum(encoded.mask) == sum(tame.mask)
        assert shipped.tokenizer.decode(encoded.ids).count(cell) == 2


def test_broken_arguments_are_said(shipped: Renderer) -> None:
    message = call("x")
    message.tool_calls[0].function.arguments = "{code"  # type: ignore[index]
    with pytest.raises(UserError, match="not JSON"):
        shipped.assistant_ids(message)
    message.tool_calls[0].function.arguments = json.dumps([1])  # type: ignore[index]
    with pytest.raises(UserError, match="JSON object"):
        shipped.assistant_ids(message)
