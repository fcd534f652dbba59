"""Which quantity an answer states, and whether it is the right one (the rules stand in reward/answer.py)."""

from __future__ import annotations

import math
import re

from agentic.records import Check
from agentic.reward.quantity import Quantity, canonical_unit, quantities, scale_of, spelled

STORED = 5e-5
"""Half a unit of the fourth decimal: the rounding of gold floats on disk."""

_STRONG_MARK = r"\b(?:final answer|answer|result)\b(?:\s+(?:is|was))?\s*[:=]?|答案(?:是|为)?\s*[::]?|结果(?:是|为)\s*"
_WEAK_MARK = r"\b(?:is|are|was|were|equals?|totals?|totall?ed|be|has|have|had)\b|[=:：≈]|是|为|达到?|共有?"
_HEDGE = re.compile(
    r"[\s*_$({\[\"'`\\|]*(?:(?:about|approximately|approx\.?|around|roughly|only|exactly|just|equal to|a total of"
    r"|boxed|text|大约|约|仅|只有)[\s{:]*)*[\s*_$({\[\"'`\\|]*"
)
_JOINED = re.compile(
    r"[\s*_$)\]}\"'`]*(?:,|;|/|\||、|，|；|-|~|～|\bor\b|\band\b|\bto\b|或|和|与|至|到|\s)[\s*_$(\[{\"'`]*"
)
_TOTAL = re.compile(r"\d\S*\s+(?:\w+\s+)?(?:out )?of (?:the |all |a total of )*$", re.IGNORECASE)
_BASELINE = re.compile(
    r"\b(?:from|than|with|versus|vs\.?|compared (?:to|with)|above|below|over|under|exceed\w*|threshold(?: of)?"
    r"|at (?:least|most))\s*$|[><≥≤]=?\s*$|(?:超过|高于|低于|大于|小于|不少于|不低于|至少|比|从)\s*$",
    re.IGNORECASE,
)
_RANK_ASKED = re.compile(
    r"\b(?:what|which) rank\b|\brank (?:of|does|is|among|in)\b|\b(?:how|where) .{0,40}\brank\b"
    r"|第几|名次|排名(?:是|为|如何|多少|$)",
    re.IGNORECASE,
)
_FELL = re.compile(
    r"(?:\b(?:decreas\w*|declin\w*|drop\w*|fell|fall\w*|reduc\w*|shrank|shrunk|down)(?: by| of)?"
    r"|(?:下降|减少|降低|下跌|下滑|缩减)了?)\s*(?:about|approximately|around|约|大约)?\s*$",
    re.IGNORECASE,
)
_FALL_ASKED = re.compile(
    r"decreas|declin|drop|fall|fell|reduc|shr[ui]nk|lower|less|fewer|下降|减少|降低|下跌|下滑|缩减|少", re.IGNORECASE
)


def stated(text: str, numbers: list[Check], named: list[tuple[int, int]], question: str) -> list[Quantity | str]:
    """For each number check the quantity that the answer states, or a sentence that says why there is none.

    Digits inside the spans `named` belong to names.
    """
    if not numbers:
        return []
    found = _candidates(text, numbers, named, question)
    if not found:
        return ["no quantity is stated"] * len(numbers)
    if len(numbers) == 1:
        check = numbers[0]
        if all(_matches(q, check, text, question) for q in found):
            return [found[0]]
        distinct = {(q.value, q.percent) for q in found}
        if len(distinct) == 1:
            return [found[0]]
        marked = _marked(text, found)
        if marked is not None:
            return [marked]
        shown = ", ".join(f"{q.value:g}" for q in found[:4])
        return [f"several numbers are stated and none is marked as the answer ({shown})"]
    groups = [[q for q in found if q.percent], [q for q in found if not q.percent]]
    asked = [[c for c in numbers if _is_percent(c)], [c for c in numbers if not _is_percent(c)]]
    if [len(g) for g in groups] == [len(a) for a in asked]:
        paired = {
            id(check): q
            for group, wanted in zip(groups, asked, strict=True)
            for q, check in zip(group, wanted, strict=True)
        }
        return [paired[id(check)] for check in numbers]
    if len(found) == len(numbers):
        return list(found)
    return [f"{len(numbers)} numbers are asked, {len(found)} are stated"] * len(numbers)


def _candidates(text: str, numbers: list[Check], named: list[tuple[int, int]], question: str) -> list[Quantity]:
    found = [q for q in quantities(text) or spelled(text) if not any(a <= q.start and q.end <= b for a, b in named)]
    ranks = [q for q in found if q.role == "rank"]
    if ranks and (_RANK_ASKED.search(question) or any(check.unit in {"rank", "名"} for check in numbers)):
        return ranks
    asked = {(q.value, q.percent) for q in quantities(question)}
    brackets = [m.span() for m in re.finditer(r"[(（][^()（）]*[)）]", text)]
    doubts = [_doubt(q, text, asked, brackets) for q in found]
    level = sorted(doubts)[min(len(numbers), len(found)) - 1] if found else 0
    return [q for q, doubt in zip(found, doubts, strict=True) if doubt <= level]


def _doubt(quantity: Quantity, text: str, asked: set[tuple[float, bool]], brackets: list[tuple[int, int]]) -> int:
    """How much speaks against a quantity being the answer; those with the least doubt are kept.

    A calendar year or a rank weighs more than the total in "12 of 344", that more than a number that the question
    gave, that more than a remark in brackets or a baseline. So "10 of 344 have more than 10" states 10.
    """
    before = text[: quantity.start]
    doubt = 4 if quantity.role != "plain" else 0
    doubt += 3 if _TOTAL.search(before) else 0
    doubt += 2 if (quantity.value, quantity.percent) in asked else 0
    doubt += 1 if _BASELINE.search(before) else 0
    return doubt + any(start < quantity.start and quantity.end < end for start, end in brackets)


def _marked(text: str, found: list[Quantity]) -> Quantity | None:
    """The quantity right after the last marker, unless it opens a list of numbers."""
    labelled = {q.value for q in found if re.search(r"[:：]\s*$", text[: q.start])}
    if len(labelled) > 1:
        return None
    for marks in (_STRONG_MARK, _WEAK_MARK):
        for mark in reversed(list(re.finditer(marks, text, re.IGNORECASE))):
            gap = _HEDGE.match(text, mark.end())
            nearest = gap.end() if gap else mark.end()
            index = next((i for i, q in enumerate(found) if mark.end() <= q.start <= nearest), None)
            if index is None:
                continue
            following = found[index + 1] if index + 1 < len(found) else None
            if following is not None and _JOINED.fullmatch(text[found[index].end : following.start]):
                return None
            return found[index]
    return None


def _is_percent(check: Check) -> bool:
    return canonical_unit(check.unit or "") in {"%", "pp"}


def _matches(quantity: Quantity, check: Check, text: str, question: str) -> bool:
    return number_failure(quantity, check, text, question) is None


def number_failure(quantity: Quantity, check: Check, text: str, question: str) -> str | None:
    """None when the quantity is the gold value, otherwise a sentence."""
    gold, value = float(check.value), quantity.value
    if not math.isfinite(gold):
        return "the gold value is not a number, so no answer matches it"
    unit = canonical_unit(check.unit or "")
    if (
        _DIMENSION.get(unit, unit) == _DIMENSION.get(quantity.unit, quantity.unit)
        and unit != quantity.unit
        and {unit, quantity.unit} != {"%", "pp"}
    ):
        return f"stated in {quantity.unit}, asked in {unit}"
    if quantity.percent and not _is_percent(check):
        value /= 100
    factor = scale_of(check.unit or "") or 1.0
    if factor != 1.0 and quantity.scale != 1.0:
        value /= factor
    values = [value]
    if value > 0 and _FELL.search(text[: quantity.start]):
        values = [value, -value] if _FALL_ASKED.search(question) else [-value]
    if any(abs(v - gold) <= tolerance(check) for v in values):
        return None
    return f"{values[0]:.10g} is stated, {gold:.10g} is right"


_DIMENSION = {
    u: d
    for d, us in {
        "money": "USD EUR GBP CNY INR JPY",
        "mass": "g kg t",
        "length": "mm cm m km mi",
        "time": "ms s min h d",
    }.items()
    for u in us.split()
}


def tolerance(check: Check) -> float:
    """Largest accepted distance from the gold value, in the unit of the check."""
    gold = float(check.value)
    exact = isinstance(check.value, int) and not check.decimals
    slack = 1e-9 * max(1.0, abs(gold))
    if exact:
        return slack
    if check.decimals is not None:
        return 0.5 * 10.0**-check.decimals + STORED + slack
    return max(0.005 * abs(gold), STORED) + slack
