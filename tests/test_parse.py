from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic import jsonl
from agentic.records import Action
from agentic.tools.base import TOOLS, ToolSpec
from agentic.tools.parse import parse_message, render_call

SQL = ToolSpec(
    "sql_executor", "", {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
)
TOOL_LIST = [*TOOLS.values(), SQL]
CASES_FILE = Path(os.environ.get("AGENTIC_CASES", "../shared/cases")) / "files" / "B_tool_calls.jsonl"


def one(text: str, **options: Any) -> Action:
    actions = parse_message(text, TOOL_LIST, **options)
    assert len(actions) == 1
    return actions[0]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


# -------------------------------------------------------------------------------------- public failure cases


def _case_tools() -> list[ToolSpec]:
    """The tools of the public cases: the calculator takes `expr`."""

    def spec(name: str, required: str) -> ToolSpec:
        properties = {required: {"type": "string"}}
        return ToolSpec(name, "", {"type": "object", "properties": properties, "required": [required]})

    return [
        spec("python_executor", "code"),
        spec("retriever", "query"),
        spec("calculator", "expr"),
        SQL,
    ]


CASE_TOOLS = _case_tools()


def case(
    name: str, finish: Literal["stop", "length"] = "stop", dialect: Literal["tool_call", "react"] = "tool_call"
) -> list[Action]:
    if not CASES_FILE.exists():
        pytest.skip(f"no public cases at {CASES_FILE} (set AGENTIC_CASES)")
    raw = next(row["raw"] for _, row in jsonl.iter_rows(CASES_FILE) if row["id"] == name)
    return parse_message(raw, CASE_TOOLS, dialect=dialect, finish=finish)


def calls(actions: list[Action]) -> list[tuple[str | None, dict[str, Any]]]:
    assert all(action.kind == "tool" for action in actions)
    return [(action.name, action.arguments) for action in actions]


@pytest.mark.parametrize(
    ("name", "expected", "repaired"),
    [
        ("B01", [("python_executor", {"code": "x = 1\nprint(x)"})], True),
        ("B02", [("retriever", {"query": "gmv", "k": 3})], True),
        ("B05b", [("calculator", {"expr": "1+1"})], False),
        ("B06", [("calculator", {"expr": "2*3"})], True),
        ("B07", [("calculator", {"expr": "2"})], False),
        ("B09", [("retriever", {"query": "aov"}), ("calculator", {"expr": "3/4"})], False),
        ("B09b", [("retriever", {"query": "aov"}), ("calculator", {"expr": "3/4"})], False),
        ("B10", [("calculator", {"expr": "1+2"})], False),
        ("B11", [("python_executor", {"code": "print(len(df))"})], False),
        ("B16", [("python_executor", {"code": "print('<answer>5</answer>')"})], False),
        ("B21", [("python_executor", {"code": "1"})], False),
        ("B22", [("calculator", {"expr": "7*6"})], False),
    ],
)
def test_case_runs(name: str, expected: list[tuple[str, dict[str, Any]]], repaired: bool) -> None:
    actions = case(name)
    assert calls(actions) == expected
    assert [action.repaired for action in actions] == [repaired] * len(expected)
    for action in actions:
        again = one(render_call(action.name or "", action.arguments)) if name in {"B01", "B11", "B16"} else None
        assert again is None or again.arguments == action.arguments


def test_case_b03_python_literals_run_but_are_no_strict_success() -> None:
    (action,) = case("B03")
    assert action.name == "python_executor" and action.repaired
    assert action.arguments == {"code": 'print("a, b")', "save": True, "seed": None}


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_case_b05_cut_output_is_not_completed(finish: Literal["stop", "length"]) -> None:
    (action,) = case("B05", finish)
    assert action.kind == "invalid" and action.flags == ["truncated"] and action.arguments == {}


def test_cases_b05b_b22_an_unclosed_tag_counts_only_when_the_stop_string_ended_it() -> None:
    for name in ("B05b", "B22"):
        assert case(name)[0].flags == ["unclosed_tag"]
        (cut,) = case(name, "length")
        assert cut.kind == "invalid" and cut.flags == ["truncated"]


def test_case_b08_call_inside_unclosed_reasoning() -> None:
    (action,) = case("B08")
    assert action.kind == "invalid" and action.flags == ["call_inside_unclosed_reasoning"]
    assert action.error and "</think>" in action.error


def test_case_flags() -> None:
    assert case("B10")[0].flags == ["arguments_as_string"]
    assert case("B11")[0].flags == ["self_written_result"]
    assert case("B21")[0].flags == ["name_normalised"]


def test_case_b12_b13_only_the_last_named_fence_is_code() -> None:
    assert calls(case("B12", dialect="react")) == [("python_executor", {"code": 'print("good")'})]
    assert calls(case("B13", dialect="react")) == [("sql_executor", {"query": "SELECT 2"})]


def test_case_b15_prose_is_no_call() -> None:
    assert case("B15")[0].kind == "answer"
    assert case("B15", dialect="react")[0].kind == "invalid"


@pytest.mark.parametrize("dialect", ["tool_call", "react"])
def test_cases_b16_b17_answer_markers(dialect: Literal["tool_call", "react"]) -> None:
    assert case("B16", dialect=dialect)[0].kind == "tool"
    (action,) = case("B17", dialect=dialect)
    assert (action.kind, action.answer, action.flags) == ("answer", "12", ["run_on"])


def test_case_b19_text_survives_and_lone_surrogates_do_not() -> None:
    (action,) = case("B19")
    assert action.arguments["code"] == "df['订单量'].sum()"
    jsonl.dumps(action).encode("utf-8")
    assert "\ud83d" not in action.arguments["note"]


def test_cases_b21_wrong_shapes_are_said_with_the_valid_names() -> None:
    (missing,) = case("B21b")
    assert missing.flags == ["missing_arguments"] and missing.error
    assert "missing expr" in missing.error and "calculator(expr)" in missing.error
    (listed,) = case("B21c")
    assert listed.flags == ["not_an_object"] and listed.error and "python_executor(code" in listed.error


# ------------------------------------------------------------------------------------------------- strictness


def test_a_plain_call_has_no_flags() -> None:
    action = one("I look it up.\n" + call("retriever", query="GMV", top_k=2))
    assert (action.kind, action.name, action.arguments) == ("tool", "retriever", {"query": "GMV", "top_k": 2})
    assert not action.repaired and not action.flags and action.error is None
    assert action.raw == call("retriever", query="GMV", top_k=2)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        # quotes not escaped, with and without dict keys that look like arguments
        ('{"name": "python_executor", "arguments": {"code": "print(df["a"].sum())"}}', 'print(df["a"].sum())'),
        ('{"name": "python_executor", "arguments": {"code": "x = {"a": "1", "b": 2}"}}', 'x = {"a": "1", "b": 2}'),
        # a backslash that JSON does not know
        ('{"name": "python_executor", "arguments": {"code": "re.sub(r\'\\d\', \'\', s)"}}', "re.sub(r'\\d', '', s)"),
        # a bracket too few, too many
        ('{"name": "python_executor", "arguments": {"code": "print(1)"}', "print(1)"),
        ('{"name": "python_executor", "arguments": {"code": "print(1)"}}}}', "print(1)"),
        # a closing tag and a newline escape inside a single-quoted string
        (
            "{'name': 'python_executor', 'arguments': {'code': 'x=1\\nprint(\"</tool_call>\")'}}",
            'x=1\nprint("</tool_call>")',
        ),
        ('```json\n{"name": "python_executor", "arguments": {"code": "print(1)"}}\n```', "print(1)"),
        ('{name: "python_executor", "arguments": {"code": "print(1)",}}', "print(1)"),
        ('{"name": "python_executor", "parameters": {"code": "print(1)"}}', "print(1)"),
    ],
)
def test_repairs_are_exact_and_flagged(body: str, code: str) -> None:
    action = one(f"<tool_call>{body}</tool_call>")
    assert (action.kind, action.arguments, action.repaired) == ("tool", {"code": code}, True)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "python_executor", "arguments": {"code": "df.drop(',
        "<tool_call>{'name': 'python_executor', 'arguments': {'code': 'x = {1}",
        '<tool_call>{"name": "python_executor", "arguments": {"code": "x = 1"}',
        '<tool_call>```json\n{"name": "python_executor", "arguments": {"code": "x',
        "<tool_call>" + "[" * 100_000,
    ],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_end_is_never_invented(text: str, finish: Literal["stop", "length"]) -> None:
    assert one(text, finish=finish).flags == ["truncated"]


def test_complete_calls_before_the_cut_are_kept() -> None:
    first, cut = parse_message(
        call("calculator", expression="1") + '<tool_call>{"name": "calc', TOOL_LIST, finish="length"
    )
    assert first.kind == "tool" and cut.flags == ["truncated"]
    assert one(call("calculator", expression="1") + " and then I wi", finish="length").kind == "tool"


@pytest.mark.parametrize("text", ["The total is 12 and <tool_ca", "<think>so the", '<tool_call>{"name"', "<tool_call>"])
def test_cut_messages_are_flagged(text: str) -> None:
    action = one(text, finish="length")
    assert action.kind == "invalid" and "truncated" in action.flags


def test_a_cut_answer_is_an_answer_with_a_flag() -> None:
    action = one("The total is 12 and", finish="length")
    assert (action.kind, action.flags) == ("answer", ["truncated"])


# ------------------------------------------------------------------------------------ what is not to be run


def test_reasoning_is_never_parsed() -> None:
    draft, real = call("calculator", expression="1"), call("calculator", expression="2")
    assert one(f"<think>{draft}</think>{real}").arguments == {"expression": "2"}
    assert one(f"<thinking>{draft}</thinking>{real}").arguments == {"expression": "2"}
    # The generation prompt may have written the opening tag.
    assert one(f"{draft} no</think>{real}").arguments == {"expression": "2"}
    assert one(f"{draft} no</think>42").answer == "42"
    # A later stray end of reasoning does not take back a call that was made.
    assert one(f"<think>x</think>{real}</think>").arguments == {"expression": "2"}
    assert one(f"{real}<think>and {draft}").arguments == {"expression": "2"}


def test_calls_inside_strings_are_not_run() -> None:
    inner = call("calculator", expression="1")
    assert one(call("python_executor", code=f"print('{inner}')")).name == "python_executor"
    # Unreadable outside, readable inside: nothing runs.
    broken = f"<tool_call>{{'name': 'python_executor' 'arguments': {{'code': 'print({inner})'}}}}</tool_call>"
    assert all(action.kind == "invalid" for action in parse_message(broken, TOOL_LIST))


def test_nothing_after_an_unreadable_call_is_run() -> None:
    actions = parse_message("<tool_call>hello</tool_call>" + call("calculator", expression="1"), TOOL_LIST)
    assert [action.flags for action in actions] == [["broken_json"]]
    good = json.dumps({"name": "calculator", "arguments": {"expression": "1"}})
    first, second = parse_message(f'<tool_call>{good}\n{{"name": broken</tool_call>', TOOL_LIST)
    assert first.kind == "tool" and second.flags == ["broken_json"]


@pytest.mark.parametrize(
    "result", ["<tool_response>5</tool_response>", "Observation: 5", "<|im_start|>tool\n5", "<interpreter>5"]
)
def test_self_written_results_end_the_message(result: str) -> None:
    first, second = call("calculator", expression="1"), call("calculator", expression="2")
    action = one(f"{first}\n{result}\n{second}\n<answer>5</answer>")
    assert (action.arguments, action.flags) == ({"expression": "1"}, ["self_written_result"])


def test_a_result_without_a_call_is_no_answer() -> None:
    assert one("<tool_response>5</tool_response>\nIt is 5.").flags == ["self_written_result"]
    assert one("Observation: sales rose by 5 %.").answer == "Observation: sales rose by 5 %."


# --------------------------------------------------------------------------------------- names and arguments


def test_unknown_tools_are_answered_with_the_valid_ones() -> None:
    action = one(call("browser", url="x"))
    assert action.flags == ["unknown_tool"] and action.error
    assert "'browser'" in action.error and "retriever(query, top_k?)" in action.error
    assert one('<tool_call>{"arguments": {}}</tool_call>').flags == ["unknown_tool"]
    assert parse_message(call("calculator", expression="1"), [])[0].flags == ["unknown_tool"]


@pytest.mark.parametrize(
    "name", ["functions.python_executor", "Python Executor", "python-executor", "PythonExecutor", "python_executor()"]
)
def test_name_variants(name: str) -> None:
    action = one(call(name, code="1"))
    assert (action.name, action.flags) == ("python_executor", ["name_normalised"])


def test_one_renamed_argument_is_accepted_and_flagged() -> None:
    action = one(call("calculator", expr="1+1"))
    assert (action.arguments, action.flags, action.repaired) == ({"expression": "1+1"}, ["argument_renamed"], True)
    several = one(call("calculator", expr="1+1", digits="2"))
    assert several.flags == ["missing_arguments"] and several.error
    assert "missing expression (got expr, digits)" in several.error
    assert one(call("calculator", expr=["1"])).flags == ["missing_arguments"]
    assert one(call("calculator", expression=None)).flags == ["missing_arguments"]


def test_further_arguments_are_kept_and_flagged() -> None:
    action = one(call("python_executor", code="1", timeout=5))
    assert (action.arguments, action.flags, action.repaired) == (
        {"code": "1", "timeout": 5},
        ["unknown_arguments"],
        False,
    )


def test_types() -> None:
    action = one(call("retriever", query="a", top_k="2"))
    assert (action.arguments, action.flags, action.repaired) == ({"query": "a", "top_k": 2}, ["type_converted"], True)
    assert one(call("retriever", query="a", top_k=2.0)).arguments == {"query": "a", "top_k": 2}
    assert one(call("calculator", expression=5)).arguments == {"expression": "5"}
    assert one(call("retriever", query="a", top_k=None)).arguments == {"query": "a"}
    for bad in (
        call("retriever", query="a", top_k="two"),
        call("retriever", query="a", top_k=True),
        call("calculator", expression=["1"]),
    ):
        assert one(bad).flags == ["wrong_type"]
    assert one('<tool_call>{"name": "retriever", "arguments": {"query": "a", "top_k": NaN}}</tool_call>').flags == [
        "wrong_type"
    ]


@pytest.mark.parametrize("arguments", ["[1]", '"1+1"', "5", '"null"', '{"expression": ' + "[" * 60 + "]" * 60 + "}"])
def test_arguments_that_are_no_plain_object(arguments: str) -> None:
    assert one(f'<tool_call>{{"name": "calculator", "arguments": {arguments}}}</tool_call>').flags == ["not_an_object"]


def test_a_list_of_calls_and_a_call_without_tags() -> None:
    body = json.dumps([{"name": "calculator", "arguments": {"expression": str(i)}} for i in range(2)])
    actions = parse_message(f"<tool_call>{body}</tool_call>", TOOL_LIST)
    assert [action.arguments["expression"] for action in actions] == ["0", "1"]
    bare = json.dumps({"name": "calculator", "arguments": {"expression": "1"}})
    for text in (bare, f"```json\n{bare}\n```", f"{bare}</tool_call>"):
        action = one(text)
        assert (action.kind, action.flags, action.repaired) == ("tool", ["missing_tag"], True)
    assert one('{"total": 12}').answer == '{"total": 12}'


# ---------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("text", "answer", "flags"),
    [
        ("The total is 12.", "The total is 12.", []),
        ("<think>12 or 13?</think>\n\n12", "12", []),
        ("So: <answer> 12 </answer>\n", "12", []),
        ("<answer>12", "12", ["unclosed_tag"]),
        ("<answer>12</answ", "12", ["unclosed_tag"]),
        ("12</answer>", "12", []),
        ("12\nQuestion: and 13?\n13", "12", ["run_on"]),
        ("12<|im_end|>\n<|im_start|>user\nnext", "12", ["run_on"]),
        ("12 <think>or", "12", ["unclosed_reasoning"]),
    ],
)
def test_answers(text: str, answer: str, flags: list[str]) -> None:
    action = one(text)
    assert (action.kind, action.answer, action.flags) == ("answer", answer, flags)


@pytest.mark.parametrize("text", ["", " \n", "<think>hm</think>", "<answer></answer>", "<answer> </answer> 5"])
@pytest.mark.parametrize("dialect", ["tool_call", "react"])
def test_empty_messages_are_invalid(text: str, dialect: Literal["tool_call", "react"]) -> None:
    action = one(text, dialect=dialect)
    assert action.kind == "invalid" and action.error


# ------------------------------------------------------------------------------------------------------ react


def react(text: str, finish: Literal["stop", "length"] = "stop") -> Action:
    return one(text, dialect="react", finish=finish)


def test_react_code() -> None:
    action = react("<think>a draft\n```python\nbad\n```\n</think>\n<code>\n```python\nx = 1\n\nprint(x)\n```\n</code>")
    assert (action.name, action.arguments, action.flags) == ("python_executor", {"code": "x = 1\n\nprint(x)"}, [])
    assert not action.repaired
    assert react("<code>\n```sql\nSELECT 1\n```\n</code>").arguments == {"query": "SELECT 1"}
    assert react("<code>```python print(1)```</code>").arguments == {"code": "print(1)"}
    assert react("<code>\n```\nprint(1)\n```").flags == ["unclosed_tag"]
    assert react("<code>print(1)</code>").flags == ["missing_fence"]


def test_react_markers_inside_code_are_text() -> None:
    code = "print('</code> <answer>5</answer> <think>')"
    assert react(f"<code>\n```python\n{code}\n```\n</code>").arguments == {"code": code}


def test_react_what_follows_the_code_is_not_believed() -> None:
    code = "<code>\n```python\nprint(1)\n```\n</code>\n"
    assert react(f"{code}<interpreter>1</interpreter><answer>1</answer>").flags == ["self_written_result"]
    assert react(f"{code}<answer>1</answer>").flags == ["answer_after_call"]


def test_react_answer_and_refusals() -> None:
    assert react("<think>so</think><answer>12</answer>").answer == "12"
    assert react("<think><answer>12</answer>").flags == ["unclosed_reasoning"]
    assert react("<think>x <code>").flags == ["call_inside_unclosed_reasoning"]
    assert react("<code>\n```python\nprint(").flags == ["broken_code"]
    assert react("<code>\n```python\nprint(", "length").flags == ["truncated"]
    assert react("just prose", "length").flags == ["truncated"]
    assert react("```python\ndraft\n```\nbetter:\n```python\ncut", "length").flags == ["truncated"]
    assert react("it is 5 <think>or").flags == ["unclosed_reasoning"]
    assert react("<code>\n```rust\nfn main\n```\n</code>").flags == ["unknown_tool"]


# ------------------------------------------------------------------------------------------------- properties

TAGS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<tool_response>",
    "<answer>",
    "</answer>",
    "<|im_end|>",
    "<code>",
]
strings = st.one_of(
    st.text(max_size=20),
    st.lists(st.one_of(st.sampled_from([*TAGS, '"', "\\", "\n", "}", "{"]), st.text(max_size=4))).map("".join),
)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**15), 10**15),
        st.floats(allow_nan=False, allow_infinity=False),
        strings,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)),
    max_leaves=6,
)


@given(strings, st.dictionaries(strings.filter(lambda key: key != "code"), values, max_size=3))
@example("print('</tool_call>')", {})
@example("<tool_response>", {"<think>": "\ud83d"})
def test_render_and_parse_are_inverse(code: str, more: dict[str, Any]) -> None:
    text = render_call("python_executor", {"code": code, **more})
    for tag in TAGS[1:]:
        assert tag not in text[len("<tool_call>") : -len("</tool_call>")]
    action = one(f"<think>a</think> {text}\n")
    assert action.kind == "tool" and not action.repaired
    assert action.arguments == json.loads(jsonl.scrub(json.dumps({"code": code, **more}, ensure_ascii=False)))
    assert one(render_call("python_executor", action.arguments)).arguments == action.arguments


def test_render_is_canonical() -> None:
    assert render_call("calculator", {"expression": "1 < 2 万", "n": 1}) == (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "1 < 2 万", "n": 1}}</tool_call>'
    )
    assert render_call("calculator", {"expression": "</tool_call>"}) == (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "\\u003c/tool_call>"}}</tool_call>'
    )


PIECES = [
    *TAGS, "</tool_response>", "</code>", "```python\n", "\n```\n", "```json", "Observation: ", "12", "<tool_c",
    "{", "}", "[", "]", '"', "'", ":", ",", "\\n", "\\", "\n", "NaN", "1e999", "calculator", "\ud83d",
    '{"name": "calculator", "arguments": ', '{"expression": "1"}', '"name"', '"arguments"',
    call("calculator", expression="1+1"), "{'name': 'retriever', 'arguments': {'query': 'x'}}",
]  # fmt: skip


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=14).map("".join),
    st.sampled_from(["tool_call", "react"]),
    st.sampled_from(["stop", "length"]),
)
def test_any_text_becomes_actions(
    text: str, dialect: Literal["tool_call", "react"], finish: Literal["stop", "length"]
) -> None:
    actions = parse_message(text, TOOL_LIST, dialect=dialect, finish=finish)
    assert actions
    for action in actions:
        jsonl.dumps(action)
        assert (action.error is not None) == (action.kind == "invalid")
        if action.kind == "tool":
            spec = next(tool for tool in TOOL_LIST if tool.name == action.name)
            assert all(isinstance(action.arguments[name], str) for name in spec.required)
        if action.kind == "answer":
            assert action.answer and action.answer.strip() and len(actions) == 1


@given(st.integers(0, 200), st.sampled_from(["tool_call", "react"]))
def test_no_prefix_of_a_cut_message_runs(length: int, dialect: Literal["tool_call", "react"]) -> None:
    if dialect == "react":
        text = "<think>so</think><code>\n```python\nx = {'a': [1]}\nprint(x)\n```\n</code>"
    else:
        text = "<think>so</think>" + call("python_executor", code="x = {'a': [1]}\nprint(x)")
    actions = parse_message(text[:length], TOOL_LIST, dialect=dialect, finish="length")
    assert all(action.kind != "tool" for action in actions) or length >= len(text)
