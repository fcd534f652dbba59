"""Numbers in words: 三万二千亿, 百分之十二点五, forty-two, two hundred and three thousand."""

from __future__ import annotations

import re
from collections.abc import Iterator

CN_SCALES = {"百": 1e2, "千": 1e3, "万": 1e4, "萬": 1e4, "亿": 1e8, "億": 1e8, "兆": 1e12}
CN_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_CN_SMALL = {"十": 10, "百": 100, "千": 1000}
CN_NUMERAL = re.compile(
    r"(?P<percent>百分之)?(?P<minus>负)?(?P<whole>[零〇一二两兩三四五六七八九十][零〇一二两兩三四五六七八九十百千万萬亿億]*)"
    r"(?:点(?P<fraction>[零〇一二三四五六七八九]+)(?P<scale>[百千万亿]+)?)?"
)
_EN_SMALL = {
    word: float(value)
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen".split()
    )
} | {
    word: 10.0 * tens
    for tens, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2)
}
EN_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
_EN_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_EN_WORD = "|".join([*_EN_SMALL, *_EN_SCALES])
_EN_NUMERAL = re.compile(rf"\b(?:{'|'.join(_EN_SMALL)})(?:(?:[\s-]+|\s+and\s+)(?:{_EN_WORD}))*\b", re.IGNORECASE)


def cn_product(scales: str) -> float:
    """万亿 -> 1e12."""
    result = 1.0
    for character in scales:
        result *= CN_SCALES[character]
    return result


def cn_value(numeral: str) -> float | None:
    """三万二千亿 -> 3.2e12, 二〇二四 -> 2024; None for what is no well-formed numeral."""
    if all(c in CN_DIGITS for c in numeral):
        return float("".join(str(CN_DIGITS[c]) for c in numeral))
    total = section = digit = 0.0
    for character in numeral:
        if character in CN_DIGITS:
            digit = CN_DIGITS[character]
        elif character in _CN_SMALL:
            section += (digit or (1 if character == "十" else 0)) * _CN_SMALL[character]
            digit = 0
        else:
            # 亿 multiplies all that stands before it, 万 only its own section: 三万二千亿, 一亿二千万.
            section += digit
            scale = CN_SCALES[character]
            total, section, digit = (
                ((total + section) * scale, 0.0, 0.0) if scale >= 1e8 else (total + section * scale, 0.0, 0.0)
            )
    value = total + section + digit
    return value or None


def english(text: str) -> Iterator[tuple[float, int, int]]:
    """English cardinals in words as (value, start, end). "five or seven" are two, "one two three" are three."""
    for match in _EN_NUMERAL.finditer(text):
        total = section = 0.0
        start = previous = match.start()
        last = float("inf")  # size of the word before: after forty only a digit, after a digit only a scale
        for word in re.finditer(r"[A-Za-z]+", match[0]):
            name, place = word[0].lower(), match.start() + word.start()
            if name == "and":
                continue
            if name in _EN_SCALES:
                scale = _EN_SCALES[name]
                if scale == 1e2:
                    section *= scale
                else:
                    total, section = total + section * scale, 0.0
                last = float("inf")
            else:
                value = _EN_SMALL[name]
                if last != float("inf") and not (last >= 20 and 0 < value < 10):
                    yield total + section, start, previous
                    total, section, start = 0.0, 0.0, place
                section += value
                last = value
            previous = match.start() + word.end()
        yield total + section, start, previous
