from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.tools.calculator import CalculatorError, calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2", 3),
        ("7*6", 42),
        ("3/4", 0.75),
        ("6/2", 3.0),
        ("-7 // 2", -4),
        ("1,234*2", 2468),
        ("(1,234,567.5 - 0.5)", 1234567.0),
        ("1,234 + max(1,234)", 1468),
        ("１２３．５％", 1.235),
        ("１，２３４－５", 1229),
        ("（1＋2）×3÷9", 1.0),
        ("2,350万", 23500000),
        ("4,020.6亿", 402060000000),
        ("3.2万亿", 3200000000000),
        ("1.1万", 11000),
        ("abs(-3)万", 30000),
        ("200/50%", 400.0),
        ("(1+2)%", 0.03),
        ("-5%", -0.05),
        ("10%-3", -2.9),
        ("10 % 3", 1),
        ("17%(2+3)", 2),
        ("2^10", 1024),
        ("3 x 4", 12),
        ("¥1,200.50 ÷ 2 =", 600.25),
        ("−5.5", -5.5),
        ("round(10/3, 2)", 3.33),
        ("sqrt(16)", 4.0),
        ("min(3, 1, 2) + abs(-2)", 3),
        ("1\n+ 2", 3),
    ],
)
def test_values_in_the_notations_people_copy(expression: str, value: int | float) -> None:
    result = calculate(expression)
    assert result == pytest.approx(value, rel=1e-12)
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "empty"),
        ("=", "empty"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("9**9**9", "too large"),
        ("10**300*10**300", "too large"),
        ("1e400", "finite"),
        ("1e308*10", "finite"),
        ("2.0**5000", "too large"),
        ("1e99999万", "too large"),
        ("(-8)**0.5", "no real value"),
        ("sqrt(-1)", "no real value"),
        ("gmv + 1", "unknown name gmv"),
        ("__import__('os').system('true')", "not an arithmetic expression"),
        ("exec(1)", "unknown function exec; use round"),
        ("(1).real", "not an arithmetic expression"),
        ("'a' * 3", "not an arithmetic expression"),
        ("1 < 2", "not an arithmetic expression"),
        ("True", "not an arithmetic expression"),
        ("a = 1", "not an arithmetic expression"),
        ("1; 2", "not an arithmetic expression"),
        ("5²", "not an arithmetic expression"),
        ("1,23", "not an arithmetic expression"),
        ("abs", "not a number"),
        ("max()", "at least 1 argument"),
        ("1)%", "no partner"),
        ("-" * 900 + "1", "not an arithmetic expression"),
        ("(" * 400 + "1" + ")" * 400, "not an arithmetic expression"),
        ("1+" * 600 + "1", "longer than 1000"),
    ],
)
def test_what_cannot_be_evaluated_is_said(expression: str, message: str) -> None:
    with pytest.raises(CalculatorError, match=message):
        calculate(expression)


numbers = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.decimals(-1000, 1000, places=3).map(str),
)
expressions = st.recursive(
    numbers.map(lambda number: f"({number})"),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        inner.map(lambda part: f"(-{part})"),
        inner.map(lambda part: f"abs({part})"),
        st.tuples(inner, st.integers(0, 3)).map(lambda parts: f"round({parts[0]}, {parts[1]})"),
        st.tuples(inner, inner).map(lambda parts: f"max({parts[0]}, {parts[1]})"),
        st.tuples(inner, st.integers(0, 3)).map(lambda parts: f"({parts[0]} ** {parts[1]})"),
    ),
    max_leaves=8,
)


@given(expressions)
def test_agrees_with_python(expression: str) -> None:
    try:
        expected = eval(expression)
    except ZeroDivisionError:
        with pytest.raises(CalculatorError, match="division by zero"):
            calculate(expression)
        return
    result = calculate(expression)
    assert result == expected
    assert type(result) is type(expected)


@given(st.text(alphabet="0123456789.,+-*/%^()万亿×÷ ％１eEx=abs", max_size=30))
def test_any_text_gives_a_finite_number_or_a_calculator_error(text: str) -> None:
    try:
        value = calculate(text)
    except CalculatorError as error:
        assert str(error)
    else:
        assert math.isfinite(value)


@given(st.integers(0, 10**12))
def test_thousands_commas_change_nothing(number: int) -> None:
    assert calculate(f"{number:,}") == number
