"""Lists in an answer: JSON, bullets, or a sentence, compared as multisets, in order where that is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from agentic.records import Check
from agentic.reward.fold import fold
from agentic.reward.numbers import number_failure, tolerance
from agentic.reward.numerals import cn_value
from agentic.reward.pairing import unpaired
from agentic.reward.quantity import quantities
from agentic.reward.tables import RULE

_LIST_MARK = re.compile(r"\b(?:is|are|was|were|includes?|answer)\b|[:：=]|是|为|有|包括|分别", re.IGNORECASE)
_LIST_END = re.compile(r"\s(?:are|is|were|was|have|has)\b|(?:是|为)(?=.*(?:前|最))", re.IGNORECASE)
_ORDINAL = re.compile(
    r"^(?:and\s+)?(?:(?:first(?:ly)?|second(?:ly)?|third(?:ly)?|then|next|after that|finally|last(?:ly)?)\b[,:]?|首先是?|第[一二三四五]是?|其次是?"
    r"|然后是?|再次是?|接着是?|最后是?)\s*(?:(?:is|comes?)\s+)?",
    re.IGNORECASE,
)
_ONLY = re.compile(
    r"\s*(?:only|just|只有|仅有?)\s*([^,;，；、\n]+?)(?:\s+(?:exceeds?|is|are|does|do|did|has|have|qualif\w+|meets?)\b[^,;，；、\n]*"
    r"|(?:超过|高于|达到|满足)[^,;，；、\n]*)?\s*[.。]?\s*",
    re.IGNORECASE,
)
_COUNT_TAIL = re.compile(r"(?:这|等|共)*[一二两三四五六七八九十\d]+[个家种类条项名位][^、，,;；\n\d]*$")
_LEFT_OUT = re.compile(
    r"\s*[,;，；]?\s*(?:(?:but|and) not|not including|excluding|except|但?不(?:含|包括|是))\s*[^,;，；、\n]+$",
    re.IGNORECASE,
)
_PLACED = re.compile(r"(.+?)\s*(?:排名?|位列|位居|居|是|为)?第([一二三四五六七八九十]|\d{1,2})(?:名|位)?")
_NUMBERING = re.compile(r"^\s*(?:[-*•·]|\d+[.)、]|\(\d+\))\s+")


def list_failure(text: str, check: Check, question: str) -> str | None:
    gold: list[Any] = list(check.value)
    ordered = check.kind == "ordered_list"
    if not gold:
        return (
            None
            if re.search(r"\bno(?:ne| )|\bempty|没有|无", text, re.IGNORECASE) or text.strip() == "[]"
            else "an empty list is right"
        )
    same_but_order = False
    for items in list_parses(text):
        if len(items) != len(gold):
            continue
        if all(_item_matches(item, value, check) for item, value in zip(items, gold, strict=True)):
            return None
        if unpaired(items, gold, lambda item, value: _item_matches(item, value, check)) is None:
            if not ordered:
                return None
            same_but_order = True
    if same_but_order:
        return "the items are right, their order is not"
    return f"the list is not {', '.join(str(value) for value in gold)[:120]}"


def _item_matches(item: Any, gold: Any, check: Check) -> bool:
    if isinstance(gold, bool) or not isinstance(gold, int | float):
        return fold(str(gold)) in {fold(str(item)), fold(untailed(str(item)))} - {""}
    number = Check(kind="number", value=gold, unit=check.unit, decimals=check.decimals)
    if isinstance(item, int | float) and not isinstance(item, bool):
        return abs(float(item) - float(gold)) <= tolerance(number)
    found = quantities(str(item))
    return len(found) == 1 and number_failure(found[0], number, "", "") is None


def list_parses(text: str) -> Iterator[list[Any]]:
    """Every way to read the text as one list: JSON, lines, and separated items after or before a marker word.

    Each reading takes a whole stretch of the answer, so a list with an item too many is never read as the right one.
    """
    inline = re.findall(r"\[[^\[\]]*\]", text)
    if len(inline) == 1 and "[[" not in text:
        for source in (inline[0], inline[0].replace("'", '"')):
            try:
                parsed = json.loads(source)
            except json.JSONDecodeError:
                continue
            yield parsed
            break
        else:
            yield _clean(inline[0][1:-1].split(","))
        return
    if only := _ONLY.fullmatch(text):
        yield _clean([only[1]])
        return
    lines = [line for line in text.splitlines() if line.strip()]
    if columns := _columns(lines):
        yield from columns
        return
    bullets = [line for line in lines if _NUMBERING.match(line)]
    if len(bullets) >= 2:
        yield _clean(bullets)
        return
    body = "\n".join(lines)
    starts = [m.end() for m in _LIST_MARK.finditer(body)]
    stretches = [body, *(body[start:] for start in dict.fromkeys([*starts[:1], *starts[-1:], *starts[1:4]]))]
    stretches += [body[: m.start()] for m in list(_LIST_END.finditer(body))[:2]]
    for tail in (_COUNT_TAIL, _LEFT_OUT):
        stretches += [
            stretch[: m.start()] for stretch in stretches[:2] if (m := tail.search(stretch.rstrip(" .。!！;；")))
        ]
    for stretch in stretches:
        stretch = stretch.strip().rstrip(".。!！;；")
        for separators in (
            r"[、，,;；\n]",
            r"[、，,;；\n]\s*(?:and\b|和|以及|及)?|\s+(?:and|&)\s+|和|以及|与",
            r"\s+(?:>|->|→)\s+",
        ):
            if len(parts := _clean(re.split(separators, stretch))) >= 1:
                placed = [_PLACED.fullmatch(part) for part in parts]
                if all(placed):  # "East第二，West第一": the places said are the order
                    order = sorted(
                        (cn_value(m[2]) or 0.0 if not m[2].isdigit() else float(m[2]), m[1]) for m in placed if m
                    )
                    if [place for place, _ in order] == [float(i) for i in range(1, len(order) + 1)]:
                        yield [name.strip() for _, name in order]
                        continue
                yield list(parts)
                if len(bare := [_ORDINAL.sub("", part) for part in parts]) and bare != parts and all(bare):
                    yield bare


def _columns(lines: list[str]) -> list[list[str]]:
    """Of a markdown table of labels and values: the only column of words and the only one of numbers (places 1 to n aside)."""
    at = next((i for i, line in enumerate(lines) if i and "|" in line and RULE.match(line)), None)
    if at is None:
        return []
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[at + 1 :] if "|" in line]
    if not rows or len({len(row) for row in rows}) != 1:
        return []
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns = [column for column in columns if len(columns) == 1 or column != [str(i + 1) for i in range(len(rows))]]
    numbers = [column for column in columns if all(quantities(cell) and not untailed(cell).strip() for cell in column)]
    words = [column for column in columns if column not in numbers]
    return [kind[0] for kind in (words, numbers) if len(kind) == 1]


def untailed(item: str) -> str:
    """An item without remarks in brackets and without a number after it: "East (12 %)", "East: 12"."""
    bare = re.sub(r"[(（].*?[)）]", "", item)
    return re.sub(r"\s*[:：=|-]?\s*[$¥€£]?[-+]?\d[\d,.]*\s*[%％\w]{0,8}[\s})\]|]*$", "", bare)


def _clean(parts: list[str]) -> list[str]:
    cleaned = (
        re.sub(r"^(?:and|or)\s+", "", _NUMBERING.sub("", part.strip()).strip(" \t\"'`*“”‘’.。")) for part in parts
    )
    return [part for part in cleaned if part]
