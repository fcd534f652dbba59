"""Which quantity an answer states, and whether it is the right one (the rules stand in reward/answer.py)."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right

from agentic.records import Check
from agentic.reward.fold import ahead, behind
from agentic.reward.quantity import Quantity, canonical_unit, quantities, scale_of, spelled
from agentic.reward.statement import repeated_year

STORED = 5e-5
"""Half a unit of the fourth decimal: the rounding of gold floats on disk."""

_STRONG_MARK = r"\b(?:final answer|answer|result)\b(?:\s+(?:is|was))?\s*[:=]?|答案(?:是|为)?\s*[::]?|结果(?:是|为)\s*"
_WEAK_MARK = (
    r"\b(?:is|are|was|were|equals?|totals?|totall?ed|be|has|have|had|so|thus|hence|therefore|gives?|yields?|leaves?)\b"
)
_WEAK_MARK += r"|[=-]>|→|[=:：≈]|是|为|达到?|共有?|所以|因此|得[出到]"
_HEDGE = re.compile(
    r"[\s*_$({\[\"'`\\|]*(?:(?:about|approximately|approx\.?|around|roughly|only|exactly|just|equal to|a total of"
    r"|大约|约|仅|只有)[\s{:]*)*[\s*_$({\[\"'`\\|]*"
)
_JOINED = re.compile(
    r"[\s*_$)\]}\"'`]*(?:,|;|/|\||、|，|；|-|~|～|=|\bor\b|\band\b|\bto\b|或|和|与|至|到|\s)[\s*_$(\[{\"'`]*"
)
_TOTAL = re.compile(r"\d\S*\s+(?:\w+\s+)?(?:out )?of (?:(?:the|all|a|our|these|total|of) )*$", re.IGNORECASE)
_BASELINE = re.compile(
    r"\b(?:from|than|with|versus|vs\.?|compared (?:to|with)|threshold(?: of)?)\s*$|[从由]\s*$", re.IGNORECASE
)
# "12.5% vs 14.2%" and no more offers two values.
_ONLY_VERSUS = re.compile(r"^\W*[\d.,]+\s*%?\s*(?:versus|vs\.?)\s*$", re.IGNORECASE)
_BOUND = re.compile(
    r"(?:\b(?:than|above|below|over|under|beyond|exceed\w*|at (?:least|most)|up to|as (?:many|much|few|little) as|between"
    r"|minimum of|maximum of|no (?:more|less|fewer))|\bwithin|(?:超过|高于|低于|大于|小于|多于|少于|不少于|不低于|不到|不足"
    r"|至少|至多|最多|最少|介于))\s*[$¥€£(]*$|(?<![-=\n])(?<!^)[><≥≤]=?\s*$|[<≥≤]=?\s*$|(?<![-=])>=?$"
    r"|\b(?:almost|nearly)\s*$|(?<![最附靠将接])近\s*$|(?:将近|接近)\s*$",
    re.IGNORECASE,
)
_BOUND_AFTER = re.compile(
    r"\s*(?:or|and) (?:more|less|fewer|above|below|over|higher|lower|so)\b|\+(?!\s?\d)|\s?[个家件条名次种项位元人行列单笔天倍]?(?:以上|以下|多)"
)
_BOUND_ASKED = re.compile(
    r"minimum|at (?:least|most)|threshold|cut-?off|limit|至少|最低|最少|最多|门槛|阈值", re.IGNORECASE
)
_DENIED = re.compile(
    r"(?:(?:\b(?:not|never|neither|nor)|n['’]t|\brather than|\binstead of|\bother than|不是|并非|而非)(?: (?:be|exactly|equal to))?"
    r"|\b(?:all|anything|everything) but|\bexcept(?: for)?|\bexcluding|\bapart from|除了?"
    r"|(?:\bdoubt|(?:n['’]t|\bnot) (?:think|believe)|怀疑|不认为|不觉得)(?:\s*(?:that|it|the answer|is|it['’]s|答案|是))*"
    r"|(?:\b(?:did|does|do|has) not|n['’]t|没有?|并?未)\s*(?:rise|risen|fall|fallen|grow|increase|decrease|decline|drop|change|go up|go down"
    r"|上升|增长|增加|上涨|下降|减少|降低)\w*(?: by)?)\s*[$¥€£(]*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"\s?\w{0,2}\s*(?:\b(?:is|was|seems|looks|would be) (?:wrong|incorrect|false|not (?:right|correct|true|the (?:right )?answer))"
    r"|\b(?:is|was|would)n['’]t (?:be )?(?:right|correct|true|the (?:right )?answer)|不对|不正确|是?错的|不是(?:正确)?答案)",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,40}>\s*$")  # the end of a mark-up tag is no "greater than"
_ASKED_BACK = re.compile(r"\s?[个家件条名次种项位元人行列单笔天倍]?吗?\s*[?？]")
_GUESS = re.compile(
    r"(?:\b(?:maybe|perhaps|possibly|conceivably|alternatively|or else|(?:could|might|may|can) (?:also |well |instead )?be)"
    r"|\bguess(?:es)?(?: (?:is|that))?:?|\bguessing|我?猜测?(?:是|为|有)?|估计(?:是|有)|可能(?:也)?(?:是|为)?|也许(?:是)?|或许(?:是)?|抑或(?:是)?)\s*(?:(?:it|is|about|even|的话)\s+)*[$¥€£(]*$",
    re.IGNORECASE,
)
_RANGE = re.compile(r"\s*(?:-|~|～|—|\bto\b|\bthrough\b|\.\.+|到|至)\s*[$¥€£]?\s*")
_MOVED = re.compile(
    r"\b(?:rose|risen|ris\w+|fell|fall\w*|grew|grow\w*|increas\w*|decreas\w*|declin\w*|dropp?\w*|chang\w*|went|go\w*"
    r"|mov\w*|up|down|climb\w*|improv\w*)\b[^.;。；]*\bfrom\s*$|[从由]\s*$",
    re.IGNORECASE,
)
_RANK_ASKED = re.compile(
    r"\b(?:what|which) rank\b|\brank (?:of|does|is|among|in)\b|\b(?:how|where) .{0,40}\brank\b"
    r"|第几|名次|排名(?:是|为|如何|多少|$)",
    re.IGNORECASE,
)
_FALLING = r"decreas\w*|declin\w*|drop\w*|fell|fall\w*|reduc\w*|reduction|shrank|shrunk|loss(?:es)?"
_ABOUT = r"(?:about|approximately|around|roughly|just|only|约|大约)?\s*[$¥€£]?"
_FELL = re.compile(
    rf"(?:\b(?:{_FALLING}|lost|down)(?:\s+(?:in|of)\s[^.,;0-9]{{1,40}}?)?\s*(?:\bby|\bof|\bis|\bwas|:|=)?"
    rf"|(?:下降|减少|降低|下跌|下滑|缩减|亏损|降|跌)(?:幅度?)?(?:额|率)?(?:了|为|是|达|[::])?)\s*{_ABOUT}$",
    re.IGNORECASE,
)
_FELL_AFTER = re.compile(
    r"\s*(?:percentage[ -]points?\s+)?(?:decrease|decline|drop|fall|reduction|loss|dip)\b|\s*的?(?:降幅|跌幅|下降|下滑|亏损)",
    re.IGNORECASE,
)
_ROSE = re.compile(
    rf"(?:\b(?:increas\w*|rose|ris\w*|grew|grow\w*|gain\w*|up)(?:\s*(?:by|of))?|(?:上升|增长|增加|上涨|提高)了?)\s*{_ABOUT}$",
    re.IGNORECASE,
)
_FALL_ASKED = re.compile(
    r"decreas|declin|drop|fall|fell|reduc|shr[ui]nk|lower|less|fewer|loss|lose|lost|下降|减少|降低|下跌|下滑|缩减|少|亏|降",
    re.IGNORECASE,
)
_CHANGE_ASKED = re.compile(
    r"\bchang|\bdifference|\bby how|\bhow much (?:more|less|higher|lower|did)|\bincrease|\bdecrease|变化|变动|增加|减少|增长|下降|相差|差多少|差值",
    re.IGNORECASE,
)
_END = re.compile(r"\bto\s*[$¥€£]?$|[到至]\s*$", re.IGNORECASE)
_RISE_OR_FALL = re.compile(
    r"(?:\b(?:rose|increas\w+|grew|up|gain\w*)|上升|增长|增加)\s*(?:/|or|and/or|或者?)\s*(?:fell|decreas\w+|declin\w+|dropp\w+|down"
    r"|los\w+|下降|减少)|(?:\b(?:fell|decreas\w+|declin\w+|dropp\w+|down)|下降|减少)\s*(?:/|or|或者?)\s*(?:rose|increas\w+|grew|up|上升|增长|增加)",
    re.IGNORECASE,
)
_PLUS_MINUS_AFTER = re.compile(r"\s*(?:±|\+/-|\+-|∓)")
_PLUS_MINUS = re.compile(r"(?:±|\+/-?|\+-|∓|加减)\s*$")


def stated(text: str, numbers: list[Check], named: list[tuple[int, int]], question: str) -> list[Quantity | str]:
    """For each number check the quantity that the answer states, or a sentence that says why there is none.

    Digits inside the spans `named` belong to names.
    """
    if not numbers:
        return []
    found = _candidates(text, numbers, named, question)
    if not found:
        return ["no quantity is stated"] * len(numbers)
    if guess := _guessed(text, found, quantities(text)):
        return [f"{guess.value:g} is a guess beside others, not an answer"] * len(numbers)
    if len(numbers) == 1:
        check = numbers[0]
        if all(_matches(q, check, text, question) for q in found):
            return [found[0]]
        distinct = {(q.value, q.percent) for q in found}
        if len(distinct) == 1:
            return [found[0]]
        marked = _marked(text, found)
        marked = marked if marked is not None else _only_percent(text, found, check)
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
    rank_asked = bool(_RANK_ASKED.search(question)) or any(check.unit in {"rank", "名"} for check in numbers)
    read = quantities(text) or spelled(text, ordinals=rank_asked)
    found = [q for q in read if not any(a <= q.start and q.end <= b for a, b in named)]
    found = _positive(found, text, question)
    ranks = [q for q in found if q.role == "rank"]
    if ranks and rank_asked:
        return ranks
    asked = {(q.value, q.percent) for q in quantities(question)}
    brackets = [m.span() for m in re.finditer(r"[(（][^()（）]*[)）]", text)]
    doubts = [_doubt(q, text, asked, brackets) for q in found]
    if _CHANGE_ASKED.search(question) and any(_BASELINE.search(ahead(text, q.start)) for q in found):
        # "from 5 to 3, a decrease of 2": both ends are context where the change is asked.
        doubts = [doubt + bool(_END.search(ahead(text, q.start))) for doubt, q in zip(doubts, found, strict=True)]
    level = sorted(doubts)[min(len(numbers), len(found)) - 1] if found else 0
    return [q for q, doubt in zip(found, doubts, strict=True) if doubt <= level]


def _positive(found: list[Quantity], text: str, question: str) -> list[Quantity]:
    """Without what is denied, only a bound ("at least 42"), an end of a range, or a year that the question gave."""
    bounds_asked = bool(_BOUND_ASKED.search(question))
    kept: list[Quantity] = []
    outside: set[int] = set()
    for index, q in enumerate(found):
        before, after = _TAG.sub("", ahead(text, q.start)), behind(text, q.end)
        following = found[index + 1] if index + 1 < len(found) else None
        if _DENIED_AFTER.match(after) or _ASKED_BACK.match(after):
            outside.add(index)
        if _DENIED.search(before) or _PLUS_MINUS.search(before) or _PLUS_MINUS_AFTER.match(after):
            outside.add(index)
        if not bounds_asked and q.role == "plain" and (_BOUND.search(before) or _BOUND_AFTER.match(after)):
            outside.add(index)
        if q.role == "time" and repeated_year(q.value, question):
            outside.add(index)
        if following is not None:
            gap = text[q.end : following.start]
            if re.fullmatch(r" ?[:：]|\s[:：]\s", gap):
                # "1.34 : 1" is the ratio 1.34; what "1 : 1.34" says of it is the inverse, so it states nothing.
                outside |= {index + 1} if following.value == 1 else {index, index + 1} if q.value == 1 else set()
            open_range = re.search(r"(?:\bbetween|介于|在)\s*[$¥€£]?$", before, re.IGNORECASE)
            if (open_range and re.fullmatch(r"\s*(?:and|&|到|至|和|与|-)\s*[$¥€£]?", gap)) or (
                _RANGE.fullmatch(gap) and q.role == following.role and not _MOVED.search(before)
            ):
                outside |= {index, index + 1}
    kept = [q for index, q in enumerate(found) if index not in outside]
    return kept


def _guessed(text: str, found: list[Quantity], everything: list[Quantity]) -> Quantity | None:
    """A quantity that is only guessed ("maybe 43", "it could also be 43") and is not the same as all others.

    Remarks in brackets are not candidates, but "12.5 (or 0.125)" is an offer. "12.5% (or 0.125)" says one thing twice.
    """
    for q in everything:
        before = ahead(text, q.start)
        if (re.search(r"[(（]\s*(?:or|或)\s*$", before, re.IGNORECASE) or _GUESS.search(before)) and any(
            not math.isclose(_plain_value(q), _plain_value(shown), rel_tol=1e-6) for shown in found
        ):
            return q
    for q in found:
        if _GUESS.search(ahead(text, q.start)):
            same = all(math.isclose(_plain_value(q), _plain_value(other), rel_tol=1e-6) for other in found)
            if len(found) == 1 or not same:
                return q
    return None


def _plain_value(q: Quantity) -> float:
    return q.value / 100 if q.percent else q.value


def _only_percent(text: str, found: list[Quantity], check: Check) -> Quantity | None:
    """The only percent where one is asked, unless an alternative is joined to it ("0.125 / 12.5%")."""
    indices = [i for i, q in enumerate(found) if q.percent and _is_percent(check)]
    if not indices or len({found[i].value for i in indices}) != 1:
        return None
    for i in indices:
        for left, right in ((i - 1, i), (i, i + 1)):
            if left >= 0 and right < len(found) and _JOINED.fullmatch(text[found[left].end : found[right].start]):
                return None
    return found[indices[0]]


def _doubt(quantity: Quantity, text: str, asked: set[tuple[float, bool]], brackets: list[tuple[int, int]]) -> int:
    """How much speaks against a quantity being the answer; those with the least doubt are kept.

    A calendar year or a rank weighs more than the total in "12 of 344", that more than a number that the question
    gave, that more than a remark in brackets or a baseline. So "10 of 344 have more than 10" states 10.
    """
    before = ahead(text, quantity.start)
    doubt = 4 if quantity.role != "plain" else 0
    doubt += 3 if _TOTAL.search(before) else 0
    doubt += 2 if (quantity.value, quantity.percent) in asked else 0
    doubt += 1 if _BASELINE.search(before) and not _only_versus(text, quantity) else 0
    index = bisect_right(brackets, (quantity.start,)) - 1  # brackets do not overlap
    return doubt + (index >= 0 and brackets[index][0] < quantity.start and quantity.end < brackets[index][1])


def _only_versus(text: str, quantity: Quantity) -> bool:
    return quantity.start <= 40 and bool(_ONLY_VERSUS.match(text[: quantity.start]))


def _marked(text: str, found: list[Quantity]) -> Quantity | None:
    """The quantity right after the last marker, unless it opens a list of numbers."""
    labelled = {q.value for q in found if re.search(r"[:：]\s*$", ahead(text, q.start))}
    starts = [q.start for q in found]
    for marks in (_STRONG_MARK, _WEAK_MARK):
        if marks == _WEAK_MARK and len(labelled) > 1:
            return None
        for mark in reversed(list(re.finditer(marks, text, re.IGNORECASE))):
            gap = _HEDGE.match(text, mark.end())
            nearest = gap.end() if gap else mark.end()
            index = bisect_left(starts, mark.end())
            if index == len(found) or starts[index] > nearest:
                continue
            following = found[index + 1] if index + 1 < len(found) else None
            if following is not None and _JOINED.fullmatch(text[found[index].end : following.start]):
                return None
            if marks == _STRONG_MARK and _takes_back(text, found, mark[0], found[index]):
                return None
            return found[index]
    return None


def _takes_back(text: str, found: list[Quantity], mark: str, last: Quantity) -> bool:
    """The same words introduced another value before: "The answer is 4. The answer is 5." answers nothing."""
    for other in re.finditer(re.escape(mark.strip()), text[: last.start], re.IGNORECASE):
        gap = _HEDGE.match(text, other.end())
        for q in found:
            if other.end() <= q.start <= (gap.end() if gap else other.end()) and q.value != last.value:
                return True
    return False


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
    values = _signed(value, quantity, text, question)
    if not values:
        return "whether it rose or fell is left open"
    if any(abs(v - gold) <= tolerance(check) for v in values):
        return None
    return f"{values[0]:.10g} is stated, {gold:.10g} is right"


def _signed(value: float, quantity: Quantity, text: str, question: str) -> list[float]:
    """The value with the sign that the words give it; empty where they leave it open."""
    before, after = ahead(text, quantity.start), behind(text, quantity.end)
    if _RISE_OR_FALL.search(before[-60:]):
        return []
    if value <= 0:
        return [value]
    # Accountants' brackets: the whole answer, or what follows a marker word.
    if re.match(r"\s*[)）]", after) and re.search(r"(?:^|\b(?:is|was|of)\b|[=::是为])\s*[$¥€£]?\s*[(（]\s*$", before):
        return [-value]
    if _FELL.search(before) or (_FELL_AFTER.match(after) and not _ROSE.search(before)):
        return [value, -value] if _FALL_ASKED.search(question) else [-value]
    return [value]


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
