"""Read quantities from text: 2,350万, 3.46%, １２３．５％, -$1.2k, 1.2 x 10^3, 三万二千亿, 百分之十二点五.

What is no quantity is left out: digits inside identifiers (2024Q3, x1, SKU-007, bill_2019), ISO dates, clock times,
version numbers. Ranks ("rank 3", 3rd, 第3) and calendar years ("in 2023", 2023年) are returned with their role, because
whether they can be an answer depends on the question (reward/answer.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from agentic.reward.fold import ahead, behind
from agentic.reward.numerals import CN_DIGITS, CN_NUMERAL, CN_SCALES, EN_ORDINALS, cn_product, cn_value, english

Role = Literal["plain", "rank", "time"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number in a text."""

    value: float
    """Scale words are applied (1.2k is 1200.0); a percent keeps its number (12.5% is 12.5 with percent=True)."""
    unit: str
    """Unit in a canonical spelling ("%", "pp", "USD", "kg"), "" when none or unknown."""
    start: int
    """Offset of the first character, sign and currency included."""
    end: int
    """Offset after the last character, scale and unit included."""
    percent: bool = False
    scale: float = 1.0
    """Factor of the scale word that was applied."""
    role: Role = "plain"


# One character to one character, so that offsets stay those of the caller's text.
_NARROW: dict[int, int | str] = {0xFF01 + i: 0x21 + i for i in range(94) if i != 0xFF0C - 0xFF01}
_NARROW |= {ord(c): "-" for c in "−﹣‐‑‒–"} | {ord("﹪"): "%", 0x3000: " ", ord("￥"): "¥"}

_SCALES = CN_SCALES | {"k": 1e3, "K": 1e3, "thousand": 1e3, "M": 1e6, "mn": 1e6, "million": 1e6, "millions": 1e6}
_SCALES |= {"B": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9, "trillion": 1e12, "trillions": 1e12}

_UNITS: dict[str, str] = {}
for _canonical, _spellings in {
    "%": "% percent pct 个百分比",
    "pp": "pp ppt 个百分点 百分点",
    "‰": "‰",
    "USD": "USD US$ $ usd 美元 dollars dollar",
    "EUR": "EUR € eur 欧元 euros euro",
    "GBP": "GBP £ gbp 英镑 pounds",
    "CNY": "CNY RMB ¥ cny rmb 元 人民币 yuan",
    "INR": "INR ₹",
    "JPY": "JPY 日元 yen",
    "g": "g grams gram 克",
    "kg": "kg kilograms kilogram 公斤 千克",
    "t": "t tonnes tons 吨",
    "mm": "mm millimeters millimetres 毫米",
    "cm": "cm centimeters centimetres 厘米",
    "m": "m meters metres 米",
    "km": "km kilometers kilometres 公里 千米",
    "mi": "mi miles",
    "ms": "ms milliseconds 毫秒",
    "s": "s sec secs seconds 秒",
    "min": "min mins minutes 分钟",
    "h": "h hrs hours 小时",
    "d": "days 天",
    "x": "x times 倍",
    "MB": "MB",
    "GB": "GB",
}.items():
    _UNITS |= dict.fromkeys(_spellings.split(), _canonical)


def canonical_unit(unit: str) -> str:
    """Canonical spelling of a unit word; "" when it is not known."""
    word = unit.translate(_NARROW).strip()
    if word.lower() in {"percentage point", "percentage points"}:
        return "pp"
    return _UNITS.get(word) or _UNITS.get(word.lower(), "")


def scale_of(unit: str) -> float | None:
    """Factor of a scale word used as a unit ("万", "million"), None for anything else."""
    return _SCALES.get(unit.strip()) or _SCALES.get(unit.strip().lower())


_CURRENCY = r"(?:US\$|[$€£¥₹]|\b(?:USD|EUR|GBP|CNY|RMB|INR|JPY)\b)"
_DIGITS = r"(?:\d{1,3}(?P<sep>[,'’_ \u00a0\u202f\u2009])\d{3}(?:(?P=sep)\d{3})*(?![\d])|\d+)(?:\.\d+)?|\.\d+"
_TIMES = r"\s?(?:[x×*·]|\\times|\\cdot)\s?10"
_POWER = rf"(?:[eE][+-]?\d+|{_TIMES}(?:\s?(?:\^|\*\*)\s?\{{?[+-]?\d+\}}?|[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+))?"
_NUMBER = re.compile(
    rf"(?P<minus>(?<![^\W\u4e00-\u9fff])(?<![)\]%])-|负|\b(?:minus|negative)\s)?(?:(?P<currency>{_CURRENCY})\s?(?P<sign>-)?|(?<![^\W\u4e00-\u9fff])(?<!\))\+)?"
    rf"(?P<digits>{_DIGITS})(?P<power>{_POWER})"
)
_CN_SCALE = re.compile(r"\s?(?P<scale>[百千万萬亿億兆]+)")
_WORD_SCALE = re.compile(
    r"(?:(?P<glued>k|K|M|mn|B|bn)|\s?-?(?P<word>thousand|millions?|billions?|trillions?))(?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_CN_MORE = re.compile(r"(?P<digits>\d+(?:\.\d+)?)(?P<scale>[百千万萬亿億]+)")
_UNIT = re.compile(
    r"\s?(?:percentage[ -]points?\b|per ?cent\b|个?百分点|[%‰]|"
    + "|".join(
        re.escape(word) + ("(?![A-Za-z0-9_])" if word.isascii() and word.isalpha() else "")
        for word in sorted(_UNITS, key=len, reverse=True)
        if word not in "%‰"
    )
    + ")"
)
# Spans that hold digits but no quantity.
_MASKED = re.compile(
    r"\b(?:19|20)\d\d-(?:0?[1-9]|1[0-2])(?:-\d{1,2})?(?:[T ]\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?)?"
    r"(?!\d)"  # ISO month, date, date and time
    r"|\b\d{1,4}[/.]\d{1,2}[/.]\d{1,4}\b"  # 03/05/2024, 2024/3/5
    r"|\b\d{1,2}:\d\d(?::\d\d)?\b"  # clock times and ratios
    r"|(?<=[A-Za-z_)\]])\[-?\d+\]"  # subscripts: df.shape[0]
    r"|\bv?\d+(?:\.\d+){2,}\b"  # versions, IP addresses
)
_RANK_BEFORE = re.compile(
    r"(?:\b(?:step|question|task)|\brank(?:s|ed|ing)?(?:\s+(?:is|was|number|no\.?|of|at|as))*|\btop|\bno\.|\bplace|#|第|前|步骤|排名(?:为|是|第)?)[\s:=]*$",
    re.IGNORECASE,
)
_TIME_BEFORE = re.compile(
    r"(?:\b(?:in|for|during|since|until|by|from|of|to|year|years|fy|quarter|month|"
    r"jan\w*|feb\w*|mar\w*|apr\w*|may|june?|july?|aug\w*|sep\w*|oct\w*|nov\w*|dec\w*)[\s,]+|\bQ[1-4]\s)$",
    re.IGNORECASE,
)
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")


def normalise(text: str) -> str:
    """Full-width digits and signs become narrow ones; the length does not change.

    A full-width comma is a thousands mark only between full-width digits: 分别为100，200 lists two numbers.
    A comma before two digits and a percent or euro sign is a decimal point: 12,50 %.
    """
    text = re.sub(r"(?<![\d.,])(\d{1,3}),(\d\d)(?=\s?[%€])", r"\1.\2", text)
    text = re.sub(r"(?<=[０-９])，(?=[０-９]{3}(?![０-９]))", ",", text)
    return text.translate(_NARROW)


def quantities(text: str) -> list[Quantity]:
    """All quantities of the text in order of their place."""
    plain = _MASKED.sub(lambda m: "\0" * len(m[0]), normalise(text))
    found: list[Quantity] = []
    position = 0
    while match := _NUMBER.search(plain, position):
        quantity, position = _read(plain, match)
        if quantity is not None:
            found.append(quantity)
    taken = [(q.start, q.end) for q in found]
    found += [q for q in _chinese(plain) if not any(q.start < end and start < q.end for start, end in taken)]
    return sorted(found, key=lambda q: q.start)


def _read(plain: str, match: re.Match[str]) -> tuple[Quantity | None, int]:
    """The quantity at a match of _NUMBER (None for an identifier) and where to go on."""
    end = match.end()
    first = match.start("digits")
    before = ahead(plain, match.start())
    signed = match["minus"] is not None or match["sign"] is not None
    if not signed and not match["currency"] and _inside_identifier(plain, first):
        return None, end
    digits = match["digits"]
    whole = digits.split(".")[0]
    if len(whole) > 1 and whole[0] == "0":
        return None, end  # 007 is a code
    if match["sep"]:
        digits = digits.replace(match["sep"], "")
    value = float(digits) * _power(match["power"])
    scale = 1.0
    if cn := _CN_SCALE.match(plain, end):
        scale, end = cn_product(cn["scale"]), cn.end()
        value *= scale
        last = scale
        while (more := _CN_MORE.match(plain, end)) and (factor := cn_product(more["scale"])) < last:
            value, end, last = value + float(more["digits"]) * factor, more.end(), factor  # 1亿2350万
    elif word := _WORD_SCALE.match(plain, end):
        name = word["glued"] or word["word"]
        scale, end = _SCALES.get(name) or _SCALES[name.lower() if len(name) > 1 else name.upper()], word.end()
        value *= scale
    elif match["currency"] and re.match(r"m(?![A-Za-z0-9_])", plain[end : end + 2]):
        value, scale, end = value * 1e6, 1e6, end + 1  # $1.2m
    unit = canonical_unit(match["currency"] or "")
    role: Role = "plain"
    number_end = end
    if word := _UNIT.match(plain, end):
        unit, end = canonical_unit(word[0].strip().replace("per cent", "percent").replace("-", " ")) or "%", word.end()
    elif scale == 1.0 and re.match(r"(?:st|nd|rd|th)\b", plain[end : end + 3]):
        role, end = "rank", end + 2
    elif re.match(r"[A-Za-z_]|-[A-Za-z]", plain[end : end + 2]):
        skip = re.match(r"[-\w]+", plain[end:], re.ASCII)
        return None, end + (skip.end() if skip else 1)  # 2024Q3, 3A, 10-year
    if match["minus"] is not None or match["sign"] == "-":
        value = -value
    if unit == "‰":
        value, unit = value / 10, "%"
    if not unit and before.endswith("百分之"):
        unit = "%"
    integer = scale == 1.0 and not unit and "." not in digits and not match["power"] and not signed
    if integer and role == "plain":
        role = _role(before, digits, behind(plain, number_end))
    return Quantity(value, unit, match.start(), end, unit in {"%", "pp"}, scale, role), end


def _inside_identifier(plain: str, first: int) -> bool:
    previous = plain[first - 1 : first]
    if previous and (previous == "_" or (previous.isalnum() and not _is_cjk(previous))):
        return True
    # COVID-19, SKU-007; but 3-5 is a range.
    return previous == "-" and bool(re.search(r"[A-Za-z_]-$", plain[max(0, first - 2) : first]))


def _role(before: str, digits: str, after: str) -> Role:
    tail = before[-40:]
    if _RANK_BEFORE.search(tail):
        return "rank"
    year = len(digits) == 4 and 1900 <= int(digits) <= 2100
    if (year and (after.lstrip().startswith("年") or _TIME_BEFORE.search(tail))) or (
        len(digits) <= 2 and re.match(r"\s?(?:月|日|号|季度)", after)
    ):
        return "time"
    return "plain"


def _power(text: str) -> float:
    if not text:
        return 1.0
    exponent = re.sub(rf"^(?:[eE]|{_TIMES}\s?(?:\^|\*\*)?\s?)", "", text).strip("{}").translate(_SUPERSCRIPT)
    return float(f"1e{int(exponent)}") if abs(int(exponent)) <= 300 else float("nan")


def _is_cjk(character: str) -> bool:
    return "\u3040" <= character <= "\u9fff"


# ------------------------------------------------------------------------------------------ numerals in words

_CN_MEASURE = re.compile(r"(?:[个家件条名次种项位元块人行列单笔天倍类张座所只]|$|[。.,，；;!！])")


def _chinese(plain: str) -> list[Quantity]:
    """Chinese numerals of at least two characters (or after 百分之); single ones are too often parts of words."""
    found = []
    for match in CN_NUMERAL.finditer(plain):
        whole = match["whole"]
        if len(whole) < 2 and not match["percent"] and not match["fraction"]:
            continue
        value = cn_value(whole)
        if value is None:
            continue
        if match["fraction"]:
            value += float("0." + "".join(str(CN_DIGITS[c]) for c in match["fraction"]))
        scale = cn_product(match["scale"]) if match["scale"] else 1.0
        value *= scale
        if match["minus"] or ahead(plain, match.start()).endswith("负"):
            value = -value
        end = match.end()
        unit = "%" if match["percent"] else ""
        if not unit and (word := _UNIT.match(plain, end)):
            unit, end = canonical_unit(word[0]), word.end()
        role: Role = "rank" if _RANK_BEFORE.search(ahead(plain, match.start())) else "plain"
        if not unit and re.match(r"[年月日号]", plain[end : end + 1]):
            role = "time"
        found.append(Quantity(value, unit, match.start(), end, unit in {"%", "pp"}, scale, role))
    return found


def spelled(text: str, ordinals: bool = False) -> list[Quantity]:
    """Numbers in words ("three stores", 三家): only for texts in which `quantities` finds nothing.

    `ordinals` reads "third" too, which is a rank; elsewhere first and second are words of the sentence.
    """
    plain = normalise(text)
    found = [Quantity(value, "", start, end) for value, start, end in english(plain)]
    if ordinals:
        found += [
            Quantity(float(EN_ORDINALS.index(m[0].lower()) + 1), "", *m.span(), role="rank")
            for m in re.finditer(rf"\b(?:{'|'.join(EN_ORDINALS)})\b", plain, re.IGNORECASE)
        ]
    for match in re.finditer(r"(?<![第一-龥])?[零一二两三四五六七八九十]", plain):
        if ahead(plain, match.start()).endswith("第"):
            found.append(Quantity(cn_value(match[0]) or 0.0, "", match.start(), match.end(), role="rank"))
        elif _CN_MEASURE.match(plain, match.end()):
            found.append(Quantity(cn_value(match[0]) or 0.0, "", match.start(), match.end()))
    return sorted(found, key=lambda q: q.start)
