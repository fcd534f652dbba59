"""Arithmetic for the `calculator` tool: people's notation in, one finite number out.

Models copy numbers from tables and texts, so full-width digits, thousands commas, percent signs and 万/亿 are read
before simpleeval sees the expression. Names, attributes, comparisons and strings are refused.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from decimal import Decimal

import simpleeval

MAX_LENGTH = 1000
"""Characters of an expression."""
MAX_BITS = 1024
"""Size of an integer power; floats stop there by themselves."""

_SIGNS = str.maketrans("×∗⋅·÷∕−–—", "****//---", "$€£¥￥")
# Only full-width forms are folded: general Unicode folding would read 5² as 52.
_SIGNS.update({code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)})
_SUFFIX = {"万": Decimal(10**4), "亿": Decimal(10**8), "万亿": Decimal(10**12), "%": Decimal("0.01")}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A percent sign is a suffix unless an operand follows: then it is the remainder ("10 % 3").
_SUFFIX_SIGN = r"(万亿|亿|万|%(?!\s*[\w.(]))"
_NUMBER_SUFFIX = re.compile(rf"(?<![\w.])({_NUMBER})\s*{_SUFFIX_SIGN}")
_GROUP_SUFFIX = re.compile(rf"\)\s*{_SUFFIX_SIGN}")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,])")


_ALLOWED = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.Constant,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.operator,
    ast.unaryop,
)


class CalculatorError(ValueError):
    """The expression cannot be evaluated; the message says why and is shown to the model."""


def _power(base: int | float, exponent: int | float) -> int | float:
    integers = isinstance(base, int) and isinstance(exponent, int)
    if integers and abs(base) > 1 and exponent > 0 and math.log2(abs(base)) * exponent > MAX_BITS:
        raise CalculatorError("the power is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise CalculatorError("a negative number to a fractional power has no real value")
    return result


def _sqrt(value: int | float) -> float:
    if value < 0:
        raise CalculatorError("the square root of a negative number has no real value")
    return math.sqrt(value)


_FUNCTIONS = {"round": round, "abs": abs, "min": min, "max": max, "sqrt": _sqrt}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(expression: str) -> int | float:
    """Value of an arithmetic expression: + - * / // % **, parentheses, round, abs, min, max, sqrt.

    Integers stay integers; "/" gives a float as in Python. Raises CalculatorError for everything else.
    """
    source = normalise(expression)
    if not source:
        raise CalculatorError("the expression is empty")
    if len(source) > MAX_LENGTH:
        raise CalculatorError(f"the expression is longer than {MAX_LENGTH} characters")
    evaluator = simpleeval.SimpleEval(operators=_OPERATORS, functions=_FUNCTIONS, names={})
    try:
        _check_syntax(source)
        value = evaluator.eval(source)
    except CalculatorError:
        raise
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except OverflowError:
        raise CalculatorError("the result is too large") from None
    except simpleeval.FunctionNotDefined as error:
        raise CalculatorError(f"unknown function {error.func_name}; use {', '.join(_FUNCTIONS)}") from None
    except simpleeval.NameNotDefined as error:
        raise CalculatorError(f"unknown name {error.name}; write numbers, not variables") from None
    except (SyntaxError, RecursionError, MemoryError, KeyError):  # KeyError: an operator outside _OPERATORS
        raise CalculatorError(f"not an arithmetic expression: {source[:80]}") from None
    except (simpleeval.InvalidExpression, TypeError, ValueError) as error:
        raise CalculatorError(f"not an arithmetic expression: {source[:80]} ({error})") from None
    if not isinstance(value, int | float):  # a function without its parentheses
        raise CalculatorError(f"the result is not a number: {source[:80]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculatorError("the result is not a finite number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise CalculatorError("the result is too large")
    return value


def _check_syntax(source: str) -> None:
    """Raise CalculatorError for anything but numbers, operators, parentheses and plain function calls."""
    for node in ast.walk(ast.parse(source, mode="eval")):
        plain = isinstance(node, _ALLOWED) and not (isinstance(node, ast.Call) and node.keywords)
        if not plain or (isinstance(node, ast.Constant) and type(node.value) not in (int, float)):
            raise CalculatorError(
                f"not an arithmetic expression: {source[:80]}; use numbers, + - * / % ** and parentheses"
            )


def normalise(expression: str) -> str:
    """The expression in Python notation.

    Commas are thousands separators outside a function's parentheses ("1,234 + max(1,234)" is 1234 + 234).
    """
    text = expression.translate(_SIGNS).replace("^", "**")
    text = " ".join(text.split()).strip("= ")
    text = re.sub(r"(?<=[\d)]) [xX] (?=[\d(])", " * ", text)
    text = _drop_thousands(text)
    text = _NUMBER_SUFFIX.sub(lambda found: _scaled(found[1], found[2]), text)
    while found := _GROUP_SUFFIX.search(text):
        start = _group_start(text, found.start())
        text = f"{text[:start]}({text[start : found.start() + 1]}*{_SUFFIX[found[1]]}){text[found.end() :]}"
    return text


def _scaled(number: str, suffix: str) -> str:
    """The literal itself is scaled, in decimal: 1.1万 is 11000, not 11000.000000000002."""
    value = Decimal(number) * _SUFFIX[suffix]
    if not -400 < value.adjusted() < 400:
        raise CalculatorError("the number is too large")
    return f"({value:f})" if value != value.to_integral_value() else f"({value:.0f})"


def _drop_thousands(text: str) -> str:
    """Remove thousands commas from numbers that stand outside function calls."""
    calls: list[bool] = []
    arguments = [False] * len(text)
    for position, character in enumerate(text):
        arguments[position] = any(calls)
        if character == "(":
            calls.append(bool(re.search(r"\w\s*$", text[:position])))
        elif character == ")" and calls:
            calls.pop()
    return _THOUSANDS.sub(lambda found: found[0] if arguments[found.start()] else found[0].replace(",", ""), text)


def _group_start(text: str, close: int) -> int:
    """Position where the group that ends with the parenthesis at `close` begins, a function's name included."""
    depth = 0
    for position in range(close, -1, -1):
        depth += (text[position] == ")") - (text[position] == "(")
        if depth == 0:
            while position and text[position - 1].isalnum():
                position -= 1
            return position
    raise CalculatorError("a closing parenthesis has no partner")
