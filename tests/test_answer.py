"""Comparison of answers: the public failure cases D01-D14, B17, B18, and the kinds behind them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic import jsonl
from agentic.cli import main
from agentic.data_analysis_env import score_trajectory
from agentic.records import Check, StopReason, Task, Trajectory, Turn
from agentic.reward.answer import compare
from agentic.reward.names import dates
from agentic.reward.quantity import quantities
from agentic.tools.parse import parse_message


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "files" / name).read_text(encoding="utf-8").splitlines()]


def number(value: float, unit: str | None = None, decimals: int | None = None) -> Check:
    return Check(kind="number", value=value, unit=unit, decimals=decimals)


def right(answer: str | None, *checks: Check, question: str = "") -> bool:
    return compare(answer, list(checks), question).correct


# ------------------------------------------------------------------------------------------- public cases


def typed(case: dict[str, Any]) -> Check:
    gold, context = case["gold"], case["context"]
    if gold.startswith("["):
        return Check(kind="ordered_list" if "sorted" in context else "list", value=json.loads(gold))
    if gold == "dog":
        return Check(kind="choice", value="dog", options=["cat", "dog", "fox"])
    value = float(gold) if "." in gold or gold == "nan" else int(gold)
    return number(value, "%" if "asks percent" in context else None, 2 if "2 decimals" in context else None)


def test_public_pairs(cases_dir: Path) -> None:
    wrong = []
    for case in rows(cases_dir, "D_number_match.jsonl"):
        question = "How many were there in 2023?" if "2023" in case["pred"] else ""
        if case["expect"] is not None and right(case["pred"], typed(case), question=question) != case["expect"]:
            wrong.append(case["id"])
    assert not wrong


def test_public_chinese_numbers(cases_dir: Path) -> None:
    for case in rows(cases_dir, "B18_cn_numbers.jsonl"):
        (found,) = quantities(case["text"])
        assert math.isclose(found.value, case["value"]), case["text"]


def test_run_on_answer_is_the_first_one() -> None:
    text = "<answer>12</answer>\nQuestion: next one?\n<answer>99</answer>"
    assert right(text, number(12))
    assert not right(text, number(99))


def test_nan_gold_matches_nothing() -> None:
    assert not right("nan", number(math.nan))
    assert not right("5", number(math.inf))


def test_ties_are_accepted_forms() -> None:
    check = Check(kind="text", value="ann", accept=["bob"])
    assert right("ann has most points", check)
    assert right("It is bob.", check)
    assert not right("cid", check)


@pytest.mark.slow
def test_d08_a_tie_becomes_no_question(cases_dir: Path, tmp_path: Path) -> None:
    """ann and bob lead with 9 points each: no generated question asks who has most, and none has one of them as gold."""
    source, out = cases_dir / "files" / "D08_ties.csv", tmp_path / "questions.jsonl"
    assert main(["questions", str(source), f"--output={out}", "--count=12"]) == 0
    tasks = list(jsonl.read(out, Task))
    assert tasks
    named = [
        value
        for task in tasks
        for check in task.checks
        for value in [check.value]
        if not isinstance(value, int | float)
    ]
    assert not [value for value in named if value in ("ann", "bob") or (isinstance(value, list) and "ann" in value[:1])]


def test_b17_the_run_on_is_counted(cases_dir: Path) -> None:
    (case,) = [row for row in rows(cases_dir, "B_tool_calls.jsonl") if row["id"] == "B17"]
    (action,) = parse_message(case["raw"], [], dialect="react")
    turn = Turn(text=case["raw"], actions=[action])
    trajectory = Trajectory(task_id="t", turns=[turn], answer=action.answer, stop_reason=StopReason.ANSWERED)
    _, parts, verdict = score_trajectory(Task(id="t", question="How many?", checks=[number(12)]), trajectory)
    assert verdict.correct and parts["tag_errors"] == 1.0 and parts["format_score"] == 0.0


# ------------------------------------------------------------------------------------------------ numbers

MEAN = number(4201.7544)
RATE = number(3.4567, "%")


@pytest.mark.parametrize(
    ("answer", "check", "question", "expected"),
    [
        ("The mean body_mass_g is 4201.7544.", MEAN, "What is the mean body_mass_g?", True),
        ("The mean body_mass_g is 4,201.75 g.", MEAN, "", True),
        ("The answer is **4201.75**", MEAN, "", True),
        ("\\boxed{4201.75}", MEAN, "", True),
        ("4201.75 g over 342 rows", number(4201.7544, "g"), "", True),
        ("4201.75 g in 342 rows", number(4201.7544, "g"), "", False),
        ("10 rows out of 344 have more than 10 employees.", number(10), "How many have more than 10 employees?", True),
        (
            "10 rows out of 344 have more than 10 employees.",
            number(344),
            "How many have more than 10 employees?",
            False,
        ),
        ("A total of 45 in 2023", number(45), "", True),
        ("The GMV of 2023 (1234.5) is the highest.", number(1234.5), "", True),
        ("The mean is 4201.75 g over 342 rows", number(4201.7544, "g"), "", True),
        ("The mean is 4.2 kg", number(4201.7544, "g"), "", False),
        ("2024Q3 的退款率是 3.46%。", number(3.4567, "%", 2), "2024Q3 的退款率是多少？", True),
        ("2024Q3 的退款率是 3.46。", RATE, "", True),
        ("2024Q3 的退款率是 0.0346。", RATE, "", False),
        ("2024Q3 的退款率是 0.034567%。", RATE, "", False),
        ("百分之三点四六", number(3.4567, "%", 2), "", True),
        ("12.5 percent", number(12.5, "%"), "", True),
        ("12.5 percentage points", number(12.5, "%"), "", True),
        ("12.5", number(0.125), "", False),
        ("12.5%", number(12.5), "", False),
        ("In H2 of 2024, x1 grew to 45.", number(45), "", True),
        ("It was 45, up from 40.", number(45), "", True),
        ("It was 45, up from 40.", number(40), "", False),
        ("45 of 344 rows", number(45), "", True),
        ("The refund rate is 3.46% (refunds 1234 / gmv 35700).", RATE, "", True),
        ("12 stores had more than 10 employees.", number(12), "How many had more than 10 employees?", True),
        ("10 stores had more than 10 employees.", number(10), "How many had more than 10 employees?", True),
        ("More than 10 employees: 10", number(10), "How many had more than 10 employees?", True),
        ("The year with the highest revenue is 2023.", number(2023), "", True),
        ("East ranks 3rd with a GMV of 1234.", number(3), "What rank does East have?", True),
        ("East ranks 3rd with a GMV of 1234.", number(3), "What is the GMV of East?", False),
        ("East ranks 3rd with a GMV of 1234.", number(1234), "What is the GMV of East?", True),
        ("排名第3", number(3), "华东排第几？", True),
        ("It is 5 or 7.", number(7), "", False),
        ("It is 5 or 7.", number(5), "", False),
        ("The mean is 5. The answer is 7.", number(7), "", True),
        ("The mean is 5. The answer is 7.", number(5), "", False),
        ("East: 5, West: 7", number(7), "", False),
        ('{"East": 5, "West": 7}', number(7), "", False),
        ("East    5\nWest    7\nName: gmv, dtype: int64", number(5), "", False),
        ("1 2 3 4 5 6 7 8 9 10", number(7), "", False),
        ("rate = 5 / 100 = 0.05", number(0.05), "", True),
        ("-12.5", number(-12.5), "", True),
        ("GMV fell by 12.5%", number(-12.5, "%"), "What was the change?", True),
        ("GMV fell by 12.5%", number(12.5, "%"), "What was the change?", False),
        ("GMV fell by 12.5%", number(12.5, "%"), "By how much did GMV fall?", True),
        ("下降了12.5%", number(-12.5, "%"), "环比变化是多少？", True),
        ("1234.5万", number(12345000), "", True),
        ("1234.5万元", number(1234.5, "万"), "", True),
        ("1234.5", number(1234.5, "万"), "", True),
        ("$5", number(5, "EUR"), "", False),
        ("There are three stores.", number(3), "", True),
        ("共有三家门店", number(3), "", True),
        ("no idea", number(0), "", False),
        ("0.00003", number(0.0), "", True),
        ("4201", number(4201.7544, decimals=0), "", False),
        ("4202", number(4201.7544, decimals=0), "", True),
        ("2024-03-05", number(5), "", False),
        ("COVID-19", number(19), "", False),
    ],
)
def test_number(answer: str, check: Check, question: str, expected: bool) -> None:
    verdict = compare(answer, [check], question)
    assert verdict.correct is expected, verdict.reason


def test_several_numbers_are_paired_in_order() -> None:
    checks = [number(5.5), number(7.25)]
    assert right("The mean is 5.5 and the median is 7.25.", *checks)
    assert not right("The mean is 7.25 and the median is 5.5.", *checks)
    assert not right("5.5, 7.25 and 9", *checks)
    assert compare("The mean is 5.5 and the median is 8.", checks).score == 0.5
    mixed = [number(1000), number(3.5, "%")]
    assert right("The refund rate is 3.5% and the GMV is 1000.", *mixed)


def test_reason_names_the_first_failure() -> None:
    assert compare("12", [number(13)]).reason == "12 is stated, 13 is right"
    assert compare(" \n", [number(13)]).reason == "the answer is empty"
    assert compare("12", []).score == 0.0


# --------------------------------------------------------------------------------------- texts and choices


@pytest.mark.parametrize(
    ("answer", "check", "question", "expected"),
    [
        ("Adelie has the highest body mass.", Check(kind="text", value="Adelie"), "", True),
        ("**adelie**", Check(kind="text", value="Adelie"), "", True),
        ("Adelieland", Check(kind="text", value="Adelie"), "", False),
        ("华东的 GMV 最高", Check(kind="text", value="华东"), "", True),
        ("It is not Adelie.", Check(kind="text", value="Adelie"), "", False),
        ("Adelie or Gentoo", Check(kind="text", value="Adelie"), "", False),
        ("Adelie, Gentoo, Chinstrap", Check(kind="text", value="Adelie"), "", False),
        ("Adelie: 5, Gentoo: 7, Chinstrap: 9", Check(kind="text", value="Gentoo"), "", False),
        ('{"Adelie": 5, "Gentoo": 7}', Check(kind="text", value="Gentoo"), "", False),
        ("Adelie    5\nGentoo    7\nChinstrap    9\nEmperor    3", Check(kind="text", value="Emperor"), "", False),
        (
            "Adelie    5\nGentoo    7\n\nChinstrap    9\nThe highest is Chinstrap.",
            Check(kind="text", value="Chinstrap"),
            "",
            True,
        ),
        ("The top species is Adelie, with 4201.7 g.", Check(kind="text", value="Adelie"), "", True),
        ("The answer: bill_2019", Check(kind="text", value="bill_2019"), "", True),
        ("It is 2007.", Check(kind="text", value="2007"), "", True),
        ("2005 2006 2007", Check(kind="text", value="2007"), "", False),
        ("2024Q3", Check(kind="text", value="2024Q3"), "", True),
        ("2024年第三季度", Check(kind="text", value="2024Q3", accept=["2024年第三季度"]), "", True),
        ("North East", Check(kind="choice", value="North East", options=["North", "North East"]), "", True),
        ("North East", Check(kind="choice", value="North", options=["North", "North East"]), "", False),
        (
            "East is higher than West.",
            Check(kind="choice", value="East", options=["East", "West"]),
            "East or West?",
            True,
        ),
        (
            "East is higher than West.",
            Check(kind="choice", value="West", options=["East", "West"]),
            "East or West?",
            False,
        ),
        ("East and West", Check(kind="choice", value="East", options=["East", "West"]), "East or West?", False),
        (
            "Besides East it is West.",
            Check(kind="choice", value="West", options=["East", "West", "North"]),
            "Besides East?",
            True,
        ),
        ("华东比华北高", Check(kind="choice", value="华东", options=["华东", "华北"]), "华东和华北哪个高？", True),
    ],
)
def test_text(answer: str, check: Check, question: str, expected: bool) -> None:
    verdict = compare(answer, [check], question)
    assert verdict.correct is expected, verdict.reason


def test_number_beside_a_name_that_holds_digits() -> None:
    checks = [Check(kind="text", value="Store 12"), number(45.5)]
    assert right("Store 12 has the highest revenue, 45.5.", *checks)


# --------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize(
    ("answer", "gold", "ordered", "expected"),
    [
        ("The top 3 are a, b, c.", ["a", "b", "c"], True, True),
        ("a, b and c", ["a", "b", "c"], True, True),
        ("a, b, and c are the top 3.", ["a", "b", "c"], True, True),
        ("前三名依次是：华东、华北、华南。", ["华东", "华北", "华南"], True, True),
        ("依次是华东, 华北, 华南。", ["华东", "华北", "华南"], True, True),
        ("华东、华北和华南", ["华南", "华东", "华北"], False, True),
        ("华东、华北和华南", ["华南", "华东", "华北"], True, False),
        ("In order: b, a.", ["a", "b"], True, False),
        ("In order: b, a.", ["a", "b"], False, True),
        ("1. a\n2. b\n3. c", ["a", "b", "c"], True, True),
        ("- a (5)\n- b (4)", ["a", "b"], True, True),
        ("a: 5, b: 4", ["a", "b"], True, True),
        ("['a', 'b']", ["a", "b"], True, True),
        ('The list is ["a", "b"].', ["a", "b"], True, True),
        ("[a, b]", ["a", "b"], True, True),
        ("a, b, c, d", ["a", "b", "c"], True, False),
        ("a, b", ["a", "b", "c"], False, False),
        ("a", ["a"], True, True),
        ("The values are 1.5, 2 and 3.25.", [1.5, 2, 3.25], True, True),
        ("[1.5, 2, 3.25]", [1.5, 2, 3.25], True, True),
        ("[1.5, 2, 4]", [1.5, 2, 3.25], True, False),
        ("100,200,300", [100, 200, 300], True, True),
        ("Trinidad and Tobago, Cuba", ["Trinidad and Tobago", "Cuba"], True, True),
        ("none", [], False, True),
    ],
)
def test_list(answer: str, gold: list[Any], ordered: bool, expected: bool) -> None:
    check = Check(kind="ordered_list" if ordered else "list", value=gold)
    assert compare(answer, [check]).correct is expected


@given(
    st.lists(st.sampled_from("red green blue grey east west 华东 华北 Q1 Q2".split()), min_size=1, max_size=6),
    st.data(),
)
def test_list_round_trip(items: list[str], data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["json", "comma", "and", "cn", "bullets"]))
    text = {
        "json": json.dumps(items),
        "comma": f"The items are {', '.join(items)}.",
        "and": " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else items[0],
        "cn": f"依次是：{'、'.join(items)}。",
        "bullets": "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1)),
    }[form]
    assert right(text, Check(kind="ordered_list", value=items)), text
    shuffled = data.draw(st.permutations(items))
    assert right(text, Check(kind="list", value=shuffled))
    assert right(text, Check(kind="ordered_list", value=shuffled)) == (list(shuffled) == items)
    assert not right(text, Check(kind="list", value=[*items, items[0]]))


# --------------------------------------------------------------------------------------- booleans and dates


@pytest.mark.parametrize(
    ("answer", "value", "expected"),
    [
        ("Yes, East is higher.", True, True),
        ("No.", True, False),
        ("no, it is not", False, True),
        ("yes or no", True, False),
        ("是的，华东更高。", True, True),
        ("不是", False, True),
        ("是否增长：是", True, True),
        ("是否增长：否", False, True),
        ("是或否", False, False),
        ("没有", True, False),
        ("The statement is false.", False, True),
        ("maybe", True, False),
    ],
)
def test_boolean(answer: str, value: bool, expected: bool) -> None:
    assert right(answer, Check(kind="boolean", value=value)) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("2024-03-05", "2024-03-05", True),
        ("It was March 5, 2024.", "2024-03-05", True),
        ("5 March 2024", "2024-03-05", True),
        ("2024年3月5日", "2024-03-05", True),
        ("2024/3/5", "2024-03-05", True),
        ("2024-03", "2024-03-05", False),
        ("2024-03-05 or 2024-03-06", "2024-03-05", False),
        ("2024年第三季度", "2024Q3", True),
        ("Q3 2024", "2024Q3", True),
        ("May 2024", "2024-05", True),
        ("2023", "2024", False),
    ],
)
def test_date(answer: str, gold: str, expected: bool) -> None:
    assert right(answer, Check(kind="date", value=gold)) is expected


@given(st.dates())
def test_date_round_trip(day: Any) -> None:
    parts = (day.year, day.month, day.day)
    assert dates(f"{day.year:04d}-{day.month:02d}-{day.day:02d}") == [parts]
    assert dates(f"on {day:%B} {day.day}, {day.year:04d}.") == [parts]


# ---------------------------------------------------------------------------------------------- quantities

FULL_WIDTH = str.maketrans("0123456789.,-%", "０１２３４５６７８９．，－％")


@given(
    st.decimals(min_value=-(10**9), max_value=10**9, places=3, allow_nan=False),
    st.sampled_from(
        ["{:.3f}", "{:,.3f}", "{:.3f}%", "{:.3f}万", "{:.3f}k", "{:.10e}", "{:.3f} million", "{:,.3f}亿元"]
    ),
    st.sampled_from(["{}", "The value is {}.", "结果是{}。", "({})", "x1 = {}, n_2"]),
    st.sampled_from(["ascii", "full-width", "unicode minus"]),
)
def test_formatted_numbers_are_read_back(value: Any, form: str, frame: str, script: str) -> None:
    number_text = form.format(value)
    if script == "full-width" and "e" not in form:
        number_text = number_text.translate(FULL_WIDTH)
    elif script == "unicode minus":
        number_text = number_text.replace("-", "−")
    scale = {"万": 1e4, "k": 1e3, "million": 1e6, "亿": 1e8}
    factor = next((f for word, f in scale.items() if word in form), 1.0)
    text = frame.format(number_text)
    (found,) = quantities(text)
    assert math.isclose(found.value, float(value) * factor, rel_tol=1e-9, abs_tol=1e-9)
    assert found.percent == ("%" in form)
    assert text[found.start : found.end] == number_text


@given(st.text(max_size=80))
def test_quantities_are_ordered_disjoint_and_inside(text: str) -> None:
    found = quantities(text)
    assert all(0 <= q.start < q.end <= len(text) for q in found)
    assert all(a.end <= b.start for a, b in itertools.pairwise(found))


@given(st.text(max_size=60), st.sampled_from(["number", "text", "choice", "list", "ordered_list", "boolean", "date"]))
def test_any_answer_gets_a_verdict(answer: str, kind: Any) -> None:
    value: Any = {"number": 5, "list": ["a"], "ordered_list": [1.5], "boolean": True, "date": "2024-03-05"}.get(
        kind, "a"
    )
    verdict = compare(answer, [Check(kind=kind, value=value)], "How many in 2023?")
    assert verdict.correct == (verdict.score == 1.0)
    assert verdict.reason


@given(st.floats(min_value=-1e9, max_value=1e9, allow_nan=False).filter(lambda v: abs(v) > 1e-3))
def test_gold_passes_and_neighbours_fail(value: float) -> None:
    value = round(value, 4)
    check = number(value)
    assert right(f"The answer is {value}.", check)
    assert not right(f"The answer is {value * 1.02 + math.copysign(0.001, value)}.", check)
    assert not right(f"{value} or {value * 2}", check)
