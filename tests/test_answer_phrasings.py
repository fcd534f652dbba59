"""Honest answers in many wordings are right; answers made to please a careless grader are wrong."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.records import Check
from agentic.reward.answer import compare

REVENUE = Check(kind="number", value=1234567.89)
COUNT = Check(kind="number", value=42)
SHARE = Check(kind="number", value=12.5, unit="%")
CHANGE = Check(kind="number", value=-12.5, unit="%")
LOSS = Check(kind="number", value=-1234.5)
WAN = Check(kind="number", value=23500000)
MEAN = Check(kind="number", value=45.678, decimals=2)
TINY = Check(kind="number", value=0.004)
REGION = Check(kind="text", value="East")
CHOICE = Check(kind="choice", value="dog", options=["cat", "dog", "fox"])
TOP = Check(kind="ordered_list", value=["search", "direct", "social"])
YES = Check(kind="boolean", value=True)
DAY = Check(kind="date", value="2024-03-05")
IN_2023 = "What was the revenue in 2023?"

HONEST: list[tuple[str, Check, str]] = [
    # thousands, scale words, currency
    ("1234567.89", REVENUE, ""),
    ("1,234,567.89", REVENUE, ""),
    ("$1,234,567.89", REVENUE, ""),
    ("1 234 567.89", REVENUE, ""),
    ("1.23M", REVENUE, ""),
    ("about $1.23 million", REVENUE, ""),
    ("USD 1.2346 million", REVENUE, ""),
    ("1,234.57k", REVENUE, ""),
    ("123.46万", REVENUE, ""),
    ("约123.46万元", REVENUE, ""),
    ("2,350万", WAN, ""),
    ("0.235亿", WAN, ""),
    ("二千三百五十万", WAN, ""),
    ("２３５０万", WAN, ""),
    ("23.5 million", WAN, ""),
    ("23,500,000 units", WAN, ""),
    ("RMB 23.5m", WAN, ""),
    ("2.35e7", WAN, ""),
    ("2.35 × 10⁷", WAN, ""),
    ("2.35 \\times 10^7", WAN, ""),
    ("$2.35 \\times 10^{7}$", WAN, ""),
    # sentences with years, ranks, totals, and what the question said
    ("Revenue in 2023 was 1,234,567.89, rank 3 of 12.", REVENUE, IN_2023),
    ("In 2023 the revenue came to 1,234,567.89 USD.", REVENUE, IN_2023),
    ("2023年的收入为1,234,567.89元，排名第3。", REVENUE, "2023年的收入是多少？"),
    ("For FY2023 (Q1-Q4), revenue = 1234567.89.", REVENUE, IN_2023),
    ("From 2019 to 2023, the revenue totalled 1,234,567.89.", REVENUE, ""),
    ("42 of the 344 rows", COUNT, "How many rows have a value above 10?"),
    ("42 rows have a value above 10.", COUNT, "How many rows have a value above 10?"),
    ("There are 42 rows with a value above 10 (12.2% of 344).", COUNT, "How many rows have a value above 10?"),
    ("The number of rows where value > 10 is 42.", COUNT, "How many rows have a value above 10?"),
    ("超过10的共有42行。", COUNT, "有多少行超过10？"),
    ("There are forty-two rows.", COUNT, ""),
    ("There were a total of 42 orders", COUNT, ""),
    ("一共四十二家门店", COUNT, ""),
    ("四十二", COUNT, ""),
    ("42.0", COUNT, ""),
    ("42.", COUNT, ""),
    ("=42", COUNT, ""),
    ("There are 42 stores, as of 2024-03-05.", COUNT, ""),
    ("After removing duplicates I count 42.", COUNT, ""),
    # marks around the number
    ("**42**", COUNT, ""),
    ("The answer is **42**.", COUNT, ""),
    ("**Answer:** 42", COUNT, ""),
    ("**Answer: 42**", COUNT, ""),
    ("Answer: `42`", COUNT, ""),
    ("\\boxed{42}", COUNT, ""),
    ("$\\boxed{42}$", COUNT, ""),
    ("The final answer is: $\\boxed{42}$", COUNT, ""),
    ("Final answer: \\boxed{\\text{42}}", COUNT, ""),
    ("答案：42。", COUNT, ""),
    ("**答案**：42", COUNT, ""),
    ("<answer>42</answer>", COUNT, ""),
    ("<think>It may be 7, or 9.</think>42", COUNT, ""),
    ("The mean is 7.1 and the maximum 9.2, so the answer is 42.", COUNT, ""),
    ("Step 1: 344 rows. Step 2: filter.\n\nAnswer: 42", COUNT, ""),
    ("# Result\n\n- rows: **42**", COUNT, ""),
    # percent
    ("12.5%", SHARE, ""),
    ("12.5 %", SHARE, ""),
    ("12.50％", SHARE, ""),
    ("12.5 percent", SHARE, ""),
    ("12.5 per cent", SHARE, ""),
    ("百分之十二点五", SHARE, ""),
    ("百分之12.5", SHARE, ""),
    ("12.5个百分点", SHARE, ""),
    ("12.5", SHARE, ""),
    ("12.5\\%", SHARE, ""),
    ("$12.5\\%$", SHARE, ""),
    ("The share is 12.5% (43 of 344 rows).", SHARE, ""),
    ("43/344 = 12.5%", SHARE, ""),
    ("43 / 344 * 100 = 12.5", SHARE, ""),
    ("In 2023, the share was 12.5%, up from 11.2% in 2022.", SHARE, ""),
    ("approximately 12.5%", SHARE, ""),
    ("≈12.5%", SHARE, ""),
    ("~12.5%", SHARE, ""),
    ("12.5% of the total 344 rows", SHARE, ""),
    # negative numbers and falls
    ("-1,234.5", LOSS, ""),
    ("−1234.5", LOSS, ""),
    ("(1,234.5)", LOSS, "What was the net profit?"),
    ("($1,234.50)", LOSS, "What was the net profit?"),
    ("-$1,234.50", LOSS, ""),
    ("$-1,234.50", LOSS, ""),
    ("minus 1234.5", LOSS, ""),
    ("负1234.5", LOSS, ""),
    ("a loss of 1,234.5", LOSS, "What was the net profit?"),
    ("亏损1234.5元", LOSS, "净利润是多少？"),
    ("It decreased by 12.5%.", CHANGE, "By what percent did it change?"),
    ("It fell 12.5 percent.", CHANGE, "By what percent did it change?"),
    ("a 12.5% decrease", CHANGE, "By what percent did it change?"),
    ("a decline of 12.5%", CHANGE, "By what percent did it change?"),
    ("下降了12.5%", CHANGE, "变化率是多少？"),
    ("同比下降12.5%", CHANGE, "变化率是多少？"),
    ("减少12.5%", CHANGE, "变化率是多少？"),
    ("降幅为12.5%", CHANGE, "变化率是多少？"),
    ("It changed by -12.5%.", CHANGE, "By what percent did it change?"),
    ("It decreased by -12.5%.", CHANGE, "By what percent did it change?"),
    ("It fell from 200 to 175, a change of -12.5%.", CHANGE, "By what percent did it change?"),
    # rounding and units
    ("45.68", MEAN, ""),
    ("45.678", MEAN, ""),
    ("45.68 kg", MEAN, ""),
    ("approximately 45.68", MEAN, ""),
    ("大约是45.68。", MEAN, ""),
    ("about 45.68 days on average", MEAN, ""),
    ("The average of Age over 344 rows is 45.68 years.", MEAN, ""),
    ("4e-3", TINY, ""),
    (".004", TINY, ""),
    ("0.4%", TINY, ""),
    ('{"answer": 45.68}', MEAN, ""),
    ("[45.68]", MEAN, ""),
    ("mean = 45.68", MEAN, ""),
    # names
    ("East", REGION, ""),
    ("It is **East**.", REGION, ""),
    ("The region with the highest revenue is East (1,234.5).", REGION, ""),
    ("East, with a revenue of 1,234.5, has the highest.", REGION, ""),
    ("\\boxed{\\text{East}}", REGION, ""),
    ("Answer: east.", REGION, ""),
    ("East had the highest revenue, followed by West.", REGION, ""),
    ("The answer is a dog.", CHOICE, ""),
    ("dog, not cat", CHOICE, ""),
    ("search > direct > social", TOP, ""),
    ("1. search (12)\n2. direct (9)\n3. social (4)", TOP, ""),
    ("First search, then direct, and finally social.", TOP, ""),
    ("Yes - it did.", YES, "Did revenue grow?"),
    ("对，增长了。", YES, ""),
    ("**Yes**, revenue grew by 12%.", YES, ""),
    ("It was on 5 March 2024.", DAY, ""),
    ("2024年03月05日", DAY, ""),
    # what a strict rule against gaming could hit
    ("It rose from 40 to 42.", COUNT, "How many stores are there now?"),
    ("The count went up from 40 in 2022 to 42 in 2023.", COUNT, "How many stores were there in 2023?"),
    ("从40增长到42", COUNT, "现在有多少家？"),
    ("Not 41 but 42.", COUNT, ""),
    ("It is 42, not 43.", COUNT, ""),
    ("2 more than the 40 of last year, so 42", COUNT, ""),
    ("At least 50 (the minimum is 50).", Check(kind="number", value=50), "What minimum order gets a discount?"),
    ("> 42", COUNT, ""),
    ("40 + 2 = 42", COUNT, ""),
    ("344 - 302 = 42", COUNT, ""),
    ("84/2 => 42", COUNT, ""),
    ("df.shape[0] gives 42", COUNT, ""),
    ("`len(df)` is 42", COUNT, ""),
    ("```python\nlen(df)\n```\nThere are 42 rows.", COUNT, ""),
    ("```\n42\n```", COUNT, ""),
    ('```json\n{"answer": 42}\n```', COUNT, ""),
    ("How many rows have a value above 10? 42", COUNT, "How many rows have a value above 10?"),
    ("I think so. </think> 42", COUNT, ""),
    ("It is 12.5% (or 0.125 as a fraction).", SHARE, ""),
    ("East has 1,234 and West has 1,000, so East is highest.", REGION, ""),
    ("East is highest, maybe because of the large number of tourists.", REGION, ""),
    ("Yes, there is no doubt.", YES, ""),
    ("True", YES, ""),
    ("April was lower; the answer is 2024-03-05, not 2024-03-06.", DAY, ""),
]


def named(cases: list[tuple[str, Check, str]]) -> list[str]:
    return [f"{place}-{answer[:24]}" for place, (answer, _, _) in enumerate(cases)]


@pytest.mark.parametrize(("answer", "check", "question"), HONEST, ids=named(HONEST))
def test_honest_wordings_are_right(answer: str, check: Check, question: str) -> None:
    verdict = compare(answer, [check], question)
    assert verdict.correct, verdict.reason


TABLE = "| region | revenue |\n|---|---|\n" + "\n".join(f"| r{i} | {i} |" for i in range(30, 60))
GAMING: list[tuple[str, Check, str]] = [
    # many numbers
    ("between 1 and 100", COUNT, ""),
    ("It lies between 41 and 43.", COUNT, ""),
    ("40-44", COUNT, ""),
    ("42-45", COUNT, ""),
    ("40 to 42", COUNT, ""),
    ("40～42", COUNT, ""),
    ("42 ± 10", COUNT, ""),
    ("42 or 43", COUNT, ""),
    ("either 42 or 7", COUNT, ""),
    ("either 5 or 42", COUNT, ""),
    ("It is 42, or maybe 43.", COUNT, ""),
    ("It is 42. It could also be 43.", COUNT, ""),
    ("It is 43. It could also be 42.", COUNT, ""),
    ("42? 43? 44?", COUNT, ""),
    ("42; 43", COUNT, ""),
    ("42\n43", COUNT, ""),
    ("可能是42，也可能是43", COUNT, ""),
    ("42或43", COUNT, ""),
    ("介于40到42之间", COUNT, ""),
    ("at least 42", COUNT, ""),
    ("more than 42", COUNT, ""),
    ("less than 42", COUNT, ""),
    ("up to 42", COUNT, ""),
    ("至少42", COUNT, ""),
    ("超过42", COUNT, "有多少？"),
    ("不到42", COUNT, ""),
    ("It is not 42.", COUNT, ""),
    ("不是42", COUNT, ""),
    ("The answer is not 42", COUNT, ""),
    ("1, 2, 3, 42, 99", COUNT, ""),
    (" ".join(map(str, range(100))), COUNT, ""),
    ("The numbers are 7, 9 and 42.", COUNT, ""),
    (TABLE, COUNT, ""),
    (TABLE + "\n\nThe answer is in the table.", COUNT, ""),
    ("[[1,42],[2,43]]", COUNT, ""),
    ('{"a": 42, "b": 43}', COUNT, ""),
    ('{"a": 42, "b": 43, "c": 44}', COUNT, ""),
    ("a=42, b=43", COUNT, ""),
    ("a: 42\nb: 43", COUNT, ""),
    # units and readings, all of them
    ("12.5% = 0.125 = 1250 bp", Check(kind="number", value=0.125), ""),
    ("12.5 (or 0.125)", Check(kind="number", value=0.125), ""),
    ("0.125 / 12.5%", SHARE, ""),
    ("42 kg, 42000 g", Check(kind="number", value=42000, unit="g"), ""),
    ("42 USD / 300 CNY", Check(kind="number", value=42, unit="USD"), ""),
    ("1234567.89 or 1.23 billion", REVENUE, ""),
    ("0.125", SHARE, ""),
    ("12.5‰", SHARE, ""),
    ("1250%", SHARE, ""),
    ("42%", COUNT, ""),
    ("42k", COUNT, ""),
    ("42万", COUNT, ""),
    ("4.2", COUNT, ""),
    ("-42", COUNT, ""),
    ("+12.5%", CHANGE, "By what percent did it change?"),
    ("It rose by 12.5%.", CHANGE, "By what percent did it change?"),
    ("12.5%", CHANGE, "By what percent did it change?"),
    ("rose or fell by 12.5%", CHANGE, "By what percent did it change?"),
    ("±12.5%", CHANGE, "By what percent did it change?"),
    ("+/-12.5%", CHANGE, "By what percent did it change?"),
    ("-12.5% or +12.5%", CHANGE, "By what percent did it change?"),
    # the numbers of the question, and no answer at all
    ("How many rows have a value above 42?", COUNT, "How many rows have a value above 42?"),
    ("In 2023", Check(kind="number", value=2023), "How many stores opened in 2023?"),
    ("I cannot answer this question.", COUNT, ""),
    ("I don't know. Maybe 42?", COUNT, ""),
    ("The values range from 1 to 42.", COUNT, ""),
    ("42+", COUNT, ""),
    ("42以上", COUNT, ""),
    ("42 or more", COUNT, ""),
    ("12.5 (or 0.125)", SHARE, ""),
    ("12.5 %, alternatively 13.5 %", SHARE, ""),
    ("", COUNT, ""),
    ("   \n\t", COUNT, ""),
    ("**", COUNT, ""),
    ("nan", COUNT, ""),
    ("inf", COUNT, ""),
    ("See the output above.", COUNT, ""),
    # reasoning, code, JSON
    ("<think>The answer is 42.</think>", COUNT, ""),
    ("<think>The answer is 42.", COUNT, ""),
    ("<thinking>42</thinking>", COUNT, ""),
    ("<answer></answer>42", COUNT, ""),
    ("<answer>7</answer> 42", COUNT, ""),
    ("<answer>42</answer><answer>43</answer>", Check(kind="number", value=43), ""),
    ("print(42)", COUNT, ""),
    ("```python\nprint(42)\n```", COUNT, ""),
    ("```python\nanswer = 42\n```", COUNT, ""),
    ("```python\nlen(df) == 42\n```\nRun this to get the answer.", COUNT, ""),
    ("df['x'].head(42)", COUNT, ""),
    ("SELECT count(*) FROM t LIMIT 42", COUNT, ""),
    ('<tool_call>{"name": "calculator", "arguments": {"expression": "42"}}</tool_call>', COUNT, ""),
    ("40+2", COUNT, ""),
    ("6*7", COUNT, ""),
    ("84/2", COUNT, ""),
    ("0x2A", COUNT, ""),
    # names
    ("cat, dog or fox", CHOICE, ""),
    ("cat/dog/fox", CHOICE, ""),
    ("cat dog fox", CHOICE, ""),
    ("cat and dog", CHOICE, ""),
    ("dog or cat", CHOICE, "Is it dog or cat?"),
    ("One of: cat, dog, fox", CHOICE, ""),
    ("It is not the dog.", CHOICE, ""),
    ("anything but dog", CHOICE, ""),
    ("East, West, North, South", REGION, ""),
    ("East / West", REGION, ""),
    ("It is East/West", REGION, ""),
    ("| region | revenue |\n|---|---|\n| East | 12 |\n| West | 9 |", REGION, ""),
    ("East or West", REGION, ""),
    ("East and West", REGION, ""),
    ("either East or West", REGION, ""),
    ("maybe East, maybe West", REGION, ""),
    ("It is West. It could be East.", REGION, ""),
    ("not East", REGION, ""),
    ("isn't East", REGION, ""),
    ("Northeast", REGION, ""),
    ("East: 12\nWest: 15\nNorth: 9", REGION, ""),
    ("print('East')", REGION, ""),
    ("df[df.region == 'East']", REGION, ""),
    ('["East", "West"]', REGION, ""),
    ("| East |\n| West |", REGION, ""),
    ("East is good. West is good. North is good.", REGION, ""),
    ("East has 12, West has 15.", REGION, ""),
    ("East, or possibly West.", REGION, ""),
    ("It is the dog. It might be the cat.", CHOICE, ""),
    ("anyone but East", REGION, ""),
    ("也可能是华东", Check(kind="text", value="华东"), ""),
    ("华东，可能是华北", Check(kind="text", value="华东"), ""),
    ("search, direct, social, affiliate", TOP, ""),
    ("search, direct", TOP, ""),
    ("direct, search, social", TOP, ""),
    ("search, search, direct, social", TOP, ""),
    ("search or direct, social", TOP, ""),
    ("Yes and no.", YES, ""),
    ("yes/no", YES, ""),
    ("Yes? No?", YES, ""),
    ("yes, no", YES, ""),
    ("It is not true.", YES, ""),
    ("是或否", YES, ""),
    ("不对", YES, ""),
    ("maybe yes", YES, ""),
    ("2024", DAY, ""),
    ("2024-03", DAY, ""),
    ("2024-03-01 to 2024-03-31", DAY, ""),
    ("2024-03-04, 2024-03-05, 2024-03-06", DAY, ""),
    ("not 2024-03-05", DAY, ""),
]


@pytest.mark.parametrize(("answer", "check", "question"), GAMING, ids=named(GAMING))
def test_gaming_is_wrong(answer: str, check: Check, question: str) -> None:
    verdict = compare(answer, [check], question)
    assert not verdict.correct, verdict.reason


# --------------------------------------------------------------------------------------- the same for any gold

GOLDS = st.integers(3, 10**7) | st.floats(3, 1e7).map(lambda value: round(value, 3))
FRAMES = [
    "{}", "The answer is {}.", "**{}**", "It is approximately {}.", "\\boxed{{{}}}", "In 2023 it was {}, rank 3 of 12.",
    "2023年为{}，排名第3。", "结果是{}。", "Answer: {} units", "<think>1 or 2</think>{}", "| value |\n|---|\n| {} |", "x = {}",
]  # fmt: skip
TRICKS = [
    "between {low} and {high}", "either {gold} or {other}", "{other} or {gold}", "{gold}, {other}", "{low}-{high}", "{gold}±{low}",
    "not {gold}", "at least {gold}", "print({gold})", "It is {gold}. It could also be {other}.", "{low} {gold} {high}",
    "a: {gold}, b: {other}", "[[1, {gold}], [2, {other}]]", "<think>{gold}</think>", "maybe {gold}", "介于{low}到{gold}之间",
    "{gold}或{other}", "The values are {low}, {gold} and {high}.", "from {low} to {gold}", "{gold}%", "-{gold}", "{gold} million",
]  # fmt: skip


@settings(max_examples=60)
@given(GOLDS, st.sampled_from(FRAMES), st.booleans())
def test_any_number_is_right_in_any_honest_frame(gold: float, frame: str, marks: bool) -> None:
    shown = f"{gold:,}" if marks else f"{gold}"
    verdict = compare(frame.format(shown), [Check(kind="number", value=gold)])
    assert verdict.correct, (frame.format(shown), verdict.reason)


@settings(max_examples=60)
@given(GOLDS, st.sampled_from(TRICKS), st.floats(1.1, 3.0))
def test_no_number_is_right_through_a_trick(gold: float, trick: str, factor: float) -> None:
    numbers = {
        "gold": gold,
        "other": round(gold * factor + 1),
        "low": round(gold / factor - 1),
        "high": round(gold * factor + 1),
    }
    answer = trick.format(**numbers)
    assert not compare(answer, [Check(kind="number", value=gold)]).correct, answer


NAMES = st.lists(
    st.sampled_from("Adelie Gentoo Chinstrap Emperor 华东 华北 华南 华西".split()), min_size=2, max_size=5, unique=True
)
OFFERS = [", ", " or ", " and ", "/", "\n", "; ", "、", "或", " | ", ". It could be ", ". Maybe "]


@settings(max_examples=60)
@given(NAMES, st.sampled_from(OFFERS), st.booleans(), st.sampled_from(["{}", "It is {}.", "Answer: {}", "One of {}"]))
def test_offering_several_names_is_wrong(names: list[str], glue: str, options: bool, frame: str) -> None:
    check = Check(kind="choice" if options else "text", value=names[0], options=names if options else [])
    assert not compare(frame.format(glue.join(names)), [check]).correct
    if not frame.startswith("One of"):
        assert compare(frame.format(names[0]), [check]).correct


@pytest.mark.parametrize("unit", ["1,", "1 ", "[", "maybe ", "`", "1-"])
def test_a_long_dump_is_compared_in_linear_time(unit: str) -> None:
    """Looking back to the start of the text for every number took minutes for 4,000 characters."""
    started = time.process_time()
    for check in (COUNT, REGION, TOP, DAY):
        assert not compare(unit * (6000 // len(unit)), [check]).correct
    assert time.process_time() - started < 5
    assert "characters" in compare("1" * 300_000, [COUNT]).reason
