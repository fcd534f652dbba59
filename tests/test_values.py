"""Comparisons with texts that a column does not hold."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.tools.values import unknown_values

FRAMES = {
    "df": pd.DataFrame({"island": ["Dream", "Biscoe", None], "unit price": [1, 2, 3], "市": ["北京", "上海", "北京"]}),
    "other": pd.DataFrame({"island": ["Torgersen", "Dream", "Dream"]}),
}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("df[df['island'] == 'dream']", ["'island' has no value 'dream'; it has 'Dream'"]),
        ("df[' dream ' == df.island]", ["'island' has no value ' dream '; it has 'Dream'"]),
        (
            "len(df[(df['island'] != 'Bisco') & (df['unit price'] > 1)])",
            ["'island' has no value 'Bisco'; it has 'Biscoe'"],
        ),
        ("df['island'].isin(['Dream', 'TORGERSEN'])", ["'island' has no value 'TORGERSEN'; it has 'Torgersen'"]),
        ("a = df['island'] == 'dream'\nb = df['island'] == 'dream'", ["'island' has no value 'dream'; it has 'Dream'"]),
        ("df[df['island'] == 'Dream']", []),
        ("other[other['island'] == 'Biscoe']", []),
        ("df[df['island'] == 'Hawaii']", []),
        ("df[df['unit price'] == '1']", []),
        ("df[df['made up'] == 'dream']", []),
        ("df[df['island'].str.lower() == 'dream']", []),
        ("df[df['市'] == '北京市']", ["'市' has no value '北京市'; it has '北京'"]),
        ("df[df['island'] == ", []),
        ("", []),
    ],
)
def test_what_is_said(code: str, said: list[str]) -> None:
    assert unknown_values(code, FRAMES) == said


@given(st.text(max_size=30))
def test_any_text_as_a_value(text: str) -> None:
    sentences = unknown_values(f"df[df['island'] == {text!r}]", FRAMES)
    values = {"Dream", "Biscoe", "Torgersen"}
    assert len(sentences) <= 1 and (text not in values or not sentences)
    if sentences:
        assert sentences[0].startswith(f"'island' has no value {text!r}; it has ")


@given(st.text(max_size=60))
def test_any_text_as_code(code: str) -> None:
    assert isinstance(unknown_values(code, FRAMES), list)
