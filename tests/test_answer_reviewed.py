"""Answers a reviewer found that were judged wrongly, and the kinds behind them."""

from __future__ import annotations

from typing import Any

import pytest

from agentic.records import Check
from agentic.reward.answer import compare

FORTY_TWO = Check(kind="number", value=42)
FIVE = Check(kind="number", value=5)
ROSE = Check(kind="number", value=512.5, decimals=2)
FELL = Check(kind="number", value=-3.7582, decimals=4)
RATE = Check(kind="number", value=12.5, unit="%", decimals=2)
THIRD = Check(kind="number", value=3)
RATIO = Check(kind="number", value=1.3371, decimals=4)
CHANNEL = Check(kind="text", value="search")
ABOVE = Check(kind="list", value=["affiliate", "email", "live"])
ONLY = Check(kind="list", value=["affiliate"])
RANKED = Check(kind="ordered_list", value=["抖音", "天猫", "京东"])
PLATFORMS = Check(kind="ordered_list", value=["Douyin", "Tmall", "JD"])
MONTH = Check(kind="text", value="2024-03", accept=["2024年3月", "March 2024"])
TRUE = Check(kind="boolean", value=True)
FALSE = Check(kind="boolean", value=False)


@pytest.mark.parametrize(
    ("answer", "check", "question"),
    [
        ("42 is wrong.", FORTY_TWO, ""),
        ("42 is not right.", FORTY_TWO, ""),
        ("42不对。", FORTY_TWO, ""),
        ("I doubt it is 42.", FORTY_TWO, ""),
        ("I don't think it is 42.", FORTY_TWO, ""),
        (">42", FORTY_TWO, ""),
        ("≥ 42", FORTY_TWO, ""),
        ("42家以上", FORTY_TWO, ""),
        ("近42家", FORTY_TWO, ""),
        ("我猜是42家", FORTY_TWO, ""),
        ("I guess 42.", FORTY_TWO, ""),
        ("My guess is 42.", FORTY_TWO, ""),
        ("The answer is 4. The answer is 5.", FIVE, ""),
        ("The answer is 5. The answer is 4.", FIVE, ""),
        ("5 (could also be 6)", FIVE, ""),
        ("5?", FIVE, ""),
        ("是5家吗？", FIVE, ""),
        ("除了5个以外都超过。", FIVE, ""),
        ("All but 5 exceed it.", FIVE, ""),
        ("12.50% vs 14.20%", RATE, ""),
        ("14.20% vs. 12.50%", RATE, ""),
        ("1 : 1.3371", RATIO, ""),
        ("affiliate, email; but not live", ABOVE, ""),
        ("affiliate, email, live, social", ABOVE, ""),
        ("All except affiliate exceed it.", ONLY, ""),
        ("抖音第一，京东第二，天猫第三。", RANKED, ""),
        ("Tmall: 123.4; Douyin: 100.1; JD: 99", PLATFORMS, ""),
        ("2024年4月", MONTH, ""),
        ("二〇二四年四月", MONTH, ""),
        ("It did not grow.", TRUE, "Did GMV grow?"),
        ("It fell.", TRUE, "Did GMV grow?"),
        ("没有增长。", TRUE, "GMV增长了吗？"),
        ("3.27%", Check(kind="number", value=-3.27, unit="%", decimals=2), ""),
        ("It did not rise by 512.50, it fell by 512.50.", ROSE, "By how much did it change?"),
    ],
)
def test_wrong_or_open(answer: str, check: Check, question: str) -> None:
    assert not compare(answer, [check], question).correct


@pytest.mark.parametrize(
    ("answer", "check", "question"),
    [
        ("The answer is 42.", FORTY_TWO, ""),
        ("42 (not 41)", FORTY_TWO, ""),
        ("42 is right.", FORTY_TWO, ""),
        ("The answer is 4 + 1. The final answer is 5.", FIVE, ""),
        ("How many? 5.", FIVE, ""),
        ("由1000.00增加到1512.50，增加512.50。", ROSE, "变化了多少？"),
        ("由18.791下降到15.0328。", Check(kind="number", value=15.0328, decimals=4), ""),
        ("由18.791下降到15.0328，下降3.7582。", FELL, "变化了多少？"),
        (
            "The conversion rate fell from 5.0% to 3.438%, a decrease of 1.562 pp.",
            Check(kind="number", value=-1.562, unit="pp", decimals=3),
            "By how many percentage points did it change?",
        ),
        ("It did not fall by 512.50, it rose by 512.50.", ROSE, "By how much did it change?"),
        ("third", THIRD, "What rank does East have?"),
        ("It ranks third.", THIRD, "What rank does East have?"),
        ("It is in third place.", THIRD, "What rank does East have?"),
        ("第三", THIRD, "华东排第几？"),
        ("12,50 %", RATE, ""),
        ("1.3371 : 1", RATIO, ""),
        ("1.3371:1", RATIO, ""),
        ("search", CHANNEL, ""),
        ("The search channel", CHANNEL, ""),
        ("affiliate、email、live三个渠道。", ABOVE, ""),
        ("Only affiliate exceeds it.", ONLY, ""),
        ("只有affiliate。", ONLY, ""),
        ("affiliate, email, live; but not social", ABOVE, ""),
        ("| channel | gmv |\n|---|---|\n| affiliate | 5.5 |\n| email | 4.5 |\n| live | 3 |", ABOVE, ""),
        ("| channel | gmv |\n|-|-|\n| affiliate | 5.5 |\n| email | 4.5 |\n| live | 3 |", ABOVE, ""),
        ("| channel | gmv |\n|:-:|--:|\n| affiliate | 5.5 |\n| email | 4.5 |\n| live | 3 |", ABOVE, ""),
        ("| channel |\n|---|\n| affiliate |\n| email |\n| live |", ABOVE, ""),
        ("| rank | channel |\n|---|---|\n| 1 | affiliate |\n| 2 | email |\n| 3 | live |", ABOVE, ""),
        ("抖音第一，天猫第二，京东第三。", RANKED, ""),
        ("Douyin: 123.4; Tmall: 100.1; JD: 99", PLATFORMS, ""),
        ("2024年3月", Check(kind="text", value="2024-03", accept=["2024年3月"]), ""),
        ("2024年三月", MONTH, ""),
        ("二〇二四年三月", MONTH, ""),
        ("It grew.", TRUE, "Did GMV grow?"),
        ("增长了。", TRUE, "GMV增长了吗？"),
        ("It fell.", FALSE, "Did GMV grow?"),
        ("It did not grow.", FALSE, "Did GMV grow?"),
    ],
)
def test_right(answer: str, check: Check, question: str) -> None:
    verdict: Any = compare(answer, [check], question)
    assert verdict.correct, verdict.reason
