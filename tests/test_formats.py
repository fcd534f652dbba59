from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import data_check, dataset, formats, jsonl
from agentic.config import DataCheckConfig, DatasetConfig
from agentic.errors import UserError
from agentic.formats import Example
from agentic.records import Check, Message, TableRef, Task, ToolCall, ToolFunction
from agentic.tools.base import TOOLS

FORMS = {
    "messages": dataset.messages_row,
    "conversations": dataset.conversations_row,
    "sharegpt": dataset.sharegpt_row,
}


def call(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(function=ToolFunction(name=name, arguments=json.dumps(arguments, ensure_ascii=False)))


def trajectory() -> list[Message]:
    return [
        Message(
            role="assistant",
            content="<think>\nfirst the 定义\n</think>\n\n",
            tool_calls=[call("retriever", {"query": "退款率", "top_k": 1})],
        ),
        Message(role="tool", content="退款率 = refund / gmv", name="retriever"),
        Message(role="assistant", tool_calls=[call("python_executor", {"code": 'print("a\\n")\n1'})]),
        Message(role="tool", content="0.125", name="python_executor"),
        Message(role="assistant", content="The refund rate is 12.5%."),
    ]


def example() -> Example:
    prompt = [Message(role="system", content="You analyse data."), Message(role="user", content="退款率?")]
    return Example("t1", [*prompt, *trajectory()], [TOOLS["retriever"], TOOLS["python_executor"]])


def read_back(row: dict[str, Any]) -> Example:
    return formats.parse_row(json.loads(jsonl.dumps(row)), "file.jsonl, line 1").example


@pytest.fixture
def tasks_file(tmp_path: Path) -> Path:
    (tmp_path / "sales.csv").write_text("month,refund,gmv\n2024-01,10,80\n2024-02,15,120\n")
    task = Task(
        id="t1",
        question="What is the refund rate?",
        tables=[TableRef(name="sales", path="sales.csv")],
        tools=["retriever", "python_executor"],
        answer="12.5%",
        checks=[Check(kind="number", value=12.5, unit="%")],
        expert_trajectory=trajectory(),
        metadata={"category": "ratio"},
    )
    mistake = [trajectory()[2].model_copy(update={"weight": 0}), *trajectory()[3:]]
    rows = [
        task,
        task.model_copy(update={"id": "t2", "expert_trajectory": []}),
        task.model_copy(update={"id": "t3", "expert_trajectory": mistake}),
    ]
    jsonl.write(tmp_path / "tasks.jsonl", rows)
    return tmp_path / "tasks.jsonl"


# ------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("form", FORMS)
def test_an_example_survives_every_form(form: str) -> None:
    found = read_back(FORMS[form](example()))
    assert found.messages == example().messages
    assert found.tools == example().tools


# What a form separates by itself (white space around calls, text that is a reasoning block) is left to the cases above.
_text = st.text(st.characters(codec="utf-8"), max_size=30)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_calls = st.lists(
    st.builds(call, st.sampled_from(sorted(TOOLS)), st.dictionaries(_text, _json, max_size=3)), min_size=1
)
_thought = _text.filter(lambda text: text and "</think>" not in text)


@st.composite
def _examples(draw: st.DrawFn) -> Example:
    messages = [Message(role="system", content=draw(_text)), Message(role="user", content=draw(_text))]
    for _ in range(draw(st.integers(0, 3))):
        thought = draw(st.just("") | _thought.map(lambda text: f"<think>\n{text}\n</think>\n\n"))
        calls = draw(_calls)
        messages.append(Message(role="assistant", content=thought, tool_calls=calls))
        messages += [Message(role="tool", content=draw(_text), name=made.function.name) for made in calls]
    messages.append(Message(role="assistant", content=draw(_text)))
    return Example("x", messages, [TOOLS[name] for name in draw(st.lists(st.sampled_from(sorted(TOOLS)), unique=True))])


@settings(max_examples=60, deadline=None)
@given(_examples(), st.sampled_from(sorted(FORMS)))
def test_round_trip(made: Example, form: str) -> None:
    found = read_back(FORMS[form](made))
    assert found.tools == made.tools
    system = [message for message in made.messages if message.role == "system"]
    if form == "sharegpt" and not system[0].content:
        # An empty system text and none are one and the same there.
        assert found.messages == made.messages[1:]
    else:
        assert found.messages == made.messages


@settings(max_examples=20, deadline=None)
@given(_examples())
def test_conversations_are_five_strings_in_every_turn(made: Example) -> None:
    for turn in dataset.conversations_row(made)["conversations"]:
        assert list(turn) == ["role", "content", "reasoning_content", "tools", "tool_calls"]
        assert all(isinstance(value, str) for value in turn.values())


def test_tools_get_a_system_message_to_stand_on() -> None:
    made = Example(
        "x", [Message(role="user", content="q"), Message(role="assistant", content="a")], [TOOLS["calculator"]]
    )
    row = dataset.conversations_row(made)
    assert row["conversations"][0]["role"] == "system"
    assert read_back(row).tools == made.tools


def test_sharegpt_shape() -> None:
    row = dataset.sharegpt_row(example())
    assert [turn["from"] for turn in row["conversations"]] == [
        "human",
        "function_call",
        "observation",
        "function_call",
        "observation",
        "gpt",
    ]
    assert row["system"] == "You analyse data."
    assert json.loads(row["conversations"][3]["value"]) == {
        "name": "python_executor",
        "arguments": {"code": 'print("a\\n")\n1'},
    }


def test_what_a_form_cannot_hold_is_refused() -> None:
    weighted = Example("x", [Message(role="user"), Message(role="assistant", content="a", weight=0)], [])
    for form in ("conversations", "sharegpt"):
        with pytest.raises(dataset.Unrepresentable, match="weight 0"):
            FORMS[form](weighted)
    assert read_back(dataset.messages_row(weighted)).messages == weighted.messages
    beside = Message(role="assistant", content="Let me look.", tool_calls=[call("calculator", {"expression": "1"})])
    with pytest.raises(dataset.Unrepresentable, match="beside"):
        dataset.sharegpt_row(Example("x", [Message(role="user"), beside], []))


# ----------------------------------------------------------------------------------------------- reading

_U, _A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def test_arrow_padding_is_dropped_and_counted() -> None:
    """The row as `datasets` gives it back when arguments and schemas were written as objects."""
    row = {
        "messages": [
            {"role": "user", "content": "q", "tool_calls": None},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"type": "function", "function": {"name": "retriever", "arguments": {"code": None, "query": "gmv"}}}
                ],
            },
            {"role": "tool", "content": "GMV is ...", "tool_calls": None},
            {"role": "assistant", "content": "done", "tool_calls": None},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "retriever",
                    "description": "d",
                    "parameters": {
                        "type": "object",
                        "properties": {"code": None, "query": {"type": "string"}},
                        "required": ["query"],
                    },
                },
            }
        ],
    }
    parsed = formats.parse_row(row, "f, line 1")
    made = parsed.example.messages[1].tool_calls
    assert made is not None and json.loads(made[0].function.arguments) == {"query": "gmv"}
    assert parsed.example.tools[0].parameters["properties"] == {"query": {"type": "string"}}
    assert parsed.nulls == 6


def test_rows_survive_arrow(tmp_path: Path) -> None:
    """Rows with different tools, through Arrow's type inference and back."""
    arrow = pytest.importorskip("pyarrow")
    turns = [
        Message(role="system", content="s"),
        Message(role="user", content="q"),
        Message(role="assistant", content="a"),
    ]
    other = Example("t2", turns, [TOOLS["calculator"]])
    for form, writer in FORMS.items():
        table = arrow.Table.from_pylist([writer(example()), writer(other)])
        assert [read_back(row).messages for row in table.to_pylist()] == [example().messages, other.messages], form
        assert [read_back(row).tools for row in table.to_pylist()] == [example().tools, other.tools], form


def test_calls_encoded_twice_and_bare_calls_are_understood() -> None:
    twice = json.dumps(json.dumps({"expression": "1+1"}))
    for item in ({"function": {"name": "calculator", "arguments": twice}}, {"name": "calculator", "arguments": twice}):
        row = {
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [item]}]
        }
        made = read_back(row).messages[1].tool_calls
        assert made is not None and json.loads(made[0].function.arguments) == {"expression": "1+1"}


def test_reasoning_becomes_thought_and_weights_are_kept() -> None:
    row = {"conversations": [_U, _A | {"reasoning_content": "why", "weight": 0}, _A]}
    made = read_back(row).messages
    assert made[1].content == "<think>\nwhy\n</think>\n\na"
    assert [message.weight for message in made] == [None, 0, None]
    shared = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 0}]}
    assert read_back(shared).messages[1].weight == 0


def test_text_parts_are_joined_and_unknown_fields_are_said() -> None:
    parts = [{"type": "text", "text": "how "}, {"type": "text", "text": "many?"}]
    row = {
        "messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "3", "score": 1}],
        "source": "web",
        "split": None,
    }
    parsed = formats.parse_row(row, "f, line 1")
    assert parsed.example.messages[0].content == "how many?"
    assert parsed.dropped == ["messages.score", "source"]


_BAD_ROWS = [
    ({}, "'messages' or 'conversations'"),
    ({"messages": []}, "empty"),
    ({"messages": "hello"}, "no list"),
    ({"messages": [_U]}, "no assistant turn"),
    ({"messages": [_U, "x"]}, "turn 2 is no object"),
    ({"messages": [{"role": "robot", "content": ""}, _A]}, "turn 1: role 'robot'"),
    ({"messages": [{"role": ["user"], "content": ""}, _A]}, "turn 1: role"),
    ({"messages": [{"role": "user", "content": 3}, _A]}, "turn 1: text expected, found int"),
    ({"messages": [_U, _A | {"name": {"a": 1}}]}, "turn 2: text expected"),
    ({"messages": [_U, _A | {"weight": 0.5}]}, "turn 2: weight 0.5"),
    ({"messages": [_U | {"tool_calls": [{"name": "a"}]}, _A]}, "tool_calls on a user message"),
    ({"messages": [_U, _A | {"tool_calls": "[{"}]}, "turn 2: tool_calls: broken JSON"),
    ({"messages": [_U, _A | {"tool_calls": [{"arguments": {}}]}]}, "needs a name"),
    ({"messages": [_U, _A | {"tool_calls": [{"name": "f", "arguments": "{"}]}]}, "arguments of f: broken JSON"),
    ({"messages": [_U, _A | {"tool_calls": [{"name": "f", "arguments": "[1]"}]}]}, "are no JSON object"),
    ({"messages": [_U, _A], "tools": "{}"}, "tools: a list"),
    ({"messages": [_U, _A], "tools": [{"type": "function"}]}, "every tool needs a name"),
    ({"conversations": [{"from": "alien", "value": "x"}]}, "turn 1: 'from' is 'alien'"),
    ({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": ""}]}, "without a call"),
    ({"question": "q", "expert_trajectory": []}, "agentic dataset"),
    ({"data_source": "d", "prompt": []}, "verl row"),
]


@pytest.mark.parametrize(("row", "said"), _BAD_ROWS)
def test_bad_rows_name_file_line_and_problem(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    good = dataset.messages_row(example())
    path = tmp_path / "sft.jsonl"
    path.write_text(json.dumps(good) + "\n\n" + json.dumps(row) + "\n")
    with pytest.raises(UserError) as raised:
        list(formats.iter_examples(path))
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert said in str(raised.value)


_any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | _text
    | st.sampled_from(["user", "assistant", "tool", "{}", "[]", "gpt"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "from", "value", "tool_calls", "function", "name", "arguments", "weight"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["messages", "conversations", "tools", "system", "id"]), _any_json))
def test_any_json_is_read_or_refused_in_words(row: dict[str, Any]) -> None:
    try:
        parsed = formats.parse_row(row, "f, line 1")
    except UserError as error:
        assert str(error).startswith("f, line 1")
    else:
        assert any(message.role == "assistant" for message in parsed.example.messages)


def test_public_case_e01(cases_dir: Path) -> None:
    """Calls may stand in the text; the tool result is a tool message and no assistant text."""
    row = next(row for _, row in jsonl.iter_rows(cases_dir / "files" / "E_training.jsonl") if row["id"] == "E01")
    parsed = formats.parse_row(row, "E01")
    assert [message.role for message in parsed.example.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert parsed.dropped == ["expect"]


# ---------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize(("form", "count"), [("messages", 2), ("conversations", 1), ("sharegpt", 1)])
def test_dataset_command(tasks_file: Path, capsys: pytest.CaptureFixture[str], form: Any, count: int) -> None:
    output = tasks_file.with_name("sft.jsonl")
    assert dataset.run(DatasetConfig(input=tasks_file, output=output, format=form)) == 0
    made = [row.example for row in formats.iter_examples(output)]
    assert len(made) == count
    assert made[0].messages[0].role == "system"
    assert "sales" in made[0].messages[1].content and "refund rate?" in made[0].messages[1].content
    assert made[0].messages[2:] == trajectory()
    said = capsys.readouterr().out
    assert f"{count} rows in {form} form, from 3 tasks" in said
    assert "1 left out: no expert trajectory" in said
    assert ("--format messages keeps" in said) == (count == 1)
    assert [path.name for path in tasks_file.parent.glob(".*")] == []


def test_dataset_verl_rows(tasks_file: Path) -> None:
    output = tasks_file.with_name("verl.jsonl")
    assert dataset.run(DatasetConfig(input=tasks_file, output=output, format="verl")) == 0
    rows = [row for _, row in jsonl.iter_rows(output)]
    assert len(rows) == 3
    assert set(rows[0]) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    truth = json.loads(rows[0]["reward_model"]["ground_truth"])
    assert Check.model_validate(truth[0]).value == 12.5
    assert rows[0]["ability"] == "ratio"


def test_append_limit_and_form_mismatch(tasks_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tasks_file.with_name("sft.jsonl")
    dataset.run(DatasetConfig(input=tasks_file, output=output, limit=1))
    dataset.run(DatasetConfig(input=tasks_file, output=output, append=True))
    assert [row.example.id for row in formats.iter_examples(output)] == ["t1", "t1", "t3"]
    assert "after 1 kept" in capsys.readouterr().out
    before = output.read_bytes()
    with pytest.raises(UserError, match="holds messages rows"):
        dataset.run(DatasetConfig(input=tasks_file, output=output, append=True, format="sharegpt"))
    assert output.read_bytes() == before


def test_failures_leave_the_old_file(tasks_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "sft.jsonl"
    output.write_text("old\n")
    with pytest.raises(UserError, match="nothing to write"):
        dataset.run(DatasetConfig(input=tasks_file, output=output, limit=0))
    with tasks_file.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(UserError, match=r"tasks\.jsonl, line 4: broken JSON"):
        dataset.run(DatasetConfig(input=tasks_file, output=output))
    assert output.read_text() == "old\n"
    with pytest.raises(UserError, match="is the --input file"):
        dataset.run(DatasetConfig(input=tasks_file, output=tmp_path / "." / "tasks.jsonl"))


def test_data_check_structure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sft.jsonl"
    rows = [dataset.messages_row(example()), dataset.messages_row(example()) | {"note": "x"}]
    jsonl.write(path, rows)
    assert data_check.run(DataCheckConfig(path)) == 0
    said = capsys.readouterr().out
    assert "rows        2: messages 2" in said
    assert "3 to 3 assistant turns" in said
    assert "retriever 2, python_executor 2" in said
    assert "fields that are not read: note 1" in said
    assert "1 rows repeat" in said
    assert "name a tokenizer with --model" in said


def test_data_check_says_when_nothing_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sft.jsonl"
    weighted = Example("x", [Message(role="user"), Message(role="assistant", content="a", weight=0)], [])
    jsonl.write(path, [dataset.messages_row(weighted)])
    assert data_check.run(DataCheckConfig(path)) == 1
    assert "! 1 rows have nothing to train" in capsys.readouterr().out
    path.write_text("\n")
    with pytest.raises(UserError, match="holds no rows"):
        data_check.run(DataCheckConfig(path))


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A byte-level tokenizer with the ChatML tokens, made here."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the quick data"], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    yield folder


def test_data_check_marks_trained_tokens(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sft.jsonl"
    messages = [
        Message(role="system", content="be brief"),
        Message(role="user", content="\x1b[31mhow many?"),
        Message(role="assistant", tool_calls=[call("python_executor", {"code": "len(df)"})]),
        Message(role="tool", content="41", name="python_executor"),
        Message(role="assistant", content="There are 41 rows."),
    ]
    jsonl.write(path, [dataset.messages_row(Example("x", messages, [TOOLS["python_executor"]]))])
    config = DataCheckConfig(path, model=str(tokenizer_folder))
    assert data_check.run(config) == 0
    said = capsys.readouterr().out
    shown = said.partition("first row")[2]
    assert "⟦There are 41 rows.<|im_end|>⟧" in shown
    assert "len(df)" in shown.split("⟦")[2].split("⟧")[0]
    untrained = "".join(part.split("⟧")[-1] for part in shown.split("⟦")[2:])
    assert "41" in untrained and "how many?" not in untrained
    assert "\x1b" not in said and "\\x1b[31m" in said
    assert data_check.run(DataCheckConfig(path, model=str(tokenizer_folder), max_length=20)) == 1
    assert "1 rows are longer than 20 tokens" in capsys.readouterr().out
