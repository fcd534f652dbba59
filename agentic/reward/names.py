"""Answers that are no numbers: names, choices, lists, yes or no, dates (the rules stand in reward/answer.py)."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from agentic.records import Check
from agentic.reward.numbers import number_failure, stated, tolerance
from agentic.reward.quantity import normalise, quantities

_DENIED = re.compile(
    r"(?:\bnot|n't|\bneither|\bnor|\brather than|\binstead of|\bthan|\bversus|\bvs|\bcompared (?:to|with)|\bunlike"
    r"|\bexcept|\bbesides|\bbeats|\bexceeds|\bahead of|\bfollowed by|不是|并非|而非|比|高于|低于|超过"
    r"|多于|少于|大于|小于|除了?)\s*(?:the|that of|in|for)?\s*$"
)


_SAYING = re.compile(r"\b(?:is|are|was|were|has|have|had)\b|[是为有]", re.IGNORECASE)


def fold(text: str) -> str:
    """Case, width and punctuation removed; a point between digits stays, as do letters of every script."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    text = re.sub(r"(?<![\d])\.|\.(?!\d)", " ", text)
    text = re.sub(r"[^\w.+#]|_", " ", text)
    return " ".join(text.split())


def _mentions(folded: str, form: str) -> list[tuple[int, int]]:
    """Spans of a folded form in a folded text, at word boundaries for Latin letters and digits."""
    if not form:
        return []
    left = r"(?<![a-z0-9])" if re.match(r"[a-z0-9]", form) else ""
    right = r"(?![a-z0-9])" if re.search(r"[a-z0-9]$", form) else ""
    return [m.span() for m in re.finditer(left + re.escape(form) + right, folded)]


def named_spans(text: str, check: Check) -> list[tuple[int, int]]:
    """Where the forms and options of a check stand in the raw text: digits in there belong to names."""
    forms = (
        [str(v) for v in (check.value if isinstance(check.value, list) else [check.value])]
        + check.accept
        + check.options
    )
    lowered = text.lower()
    return (
        [m.span() for form in forms if form.strip() for m in re.finditer(re.escape(form.lower()), lowered)]
        if len(lowered) == len(text)
        else []
    )


def _asserted(folded: str, form: str) -> bool:
    """The form is named at least once without being denied or compared against."""
    return any(not _DENIED.search(folded[:start]) for start, _ in _mentions(folded, form))


def text_failure(text: str, check: Check, question: str) -> str | None:
    if (
        not check.options
        and not check.accept
        and re.fullmatch(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,6})?", str(check.value))
    ):
        gold = float(check.value)
        number = Check(kind="number", value=int(gold) if gold.is_integer() else gold, decimals=check.decimals)
        quantity = stated(text, [number], [], question)[0]
        return quantity if isinstance(quantity, str) else number_failure(quantity, number, text, question)
    forms = {fold(form) for form in [str(check.value), *check.accept]} - {""}
    # Options inside a right form ("North" in "North East") are no rivals, nor are right forms inside an option.
    options = {fold(option) for option in check.options} - forms - {""}
    statement = fold(_statement(text))
    asked = fold(question)
    if not any(_mentions(asked, form) for form in forms):
        options = {option for option in options if not _mentions(asked, option)}
    masked = statement
    named: set[str] = set()
    for form in sorted(forms | options, key=len, reverse=True):
        if _asserted(masked, form):
            named.add(form)
        for start, end in reversed(_mentions(masked, form)):
            masked = masked[:start] + "\0" * (end - start) + masked[end:]
    if not named & forms:
        return f"{check.value} is not stated"
    if rivals := named - forms:
        return f"names {sorted(rivals)[0]} beside {check.value}"
    if not check.options and _is_enumeration(_statement(text), forms, asked):
        return f"lists several answers, one asked ({check.value})"
    return None


def _statement(text: str) -> str:
    """The part that answers: after the last "answer:" marker, else the last line of a long text if it says something
    (and is no table row), else everything."""
    marks = list(re.finditer(r"\b(?:final )?answer\s*(?:is|:)|答案\s*(?:是|为|[::])", text, re.IGNORECASE))
    if marks and text[marks[-1].end() :].strip():
        return text[marks[-1].end() :]
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if len(lines) >= 4 and _SAYING.search(lines[-1]) else text


def _is_enumeration(statement: str, forms: set[str], asked: str) -> bool:
    """The right form is one of several short items side by side: a list or a hedge, not an answer."""
    if "[[" in statement:
        return True
    for items in _list_parses(statement):
        folded = [fold(_untailed(str(item))) for item in items]
        if len(folded) < 2 or not forms & set(folded):
            continue
        others = [item for item in folded if item not in forms and not quantities(item) and not _mentions(asked, item)]
        if any(
            item
            and len(item.split()) <= 3
            and not re.search(r"\b(?:with|at|by|as|which|having|followed|about)\b|[为是达约]$", item)
            for item in others
        ):
            return True
    folded_text = fold(statement)
    return any(
        re.search(rf"(?:\b(?:or|或者?)\s*{re.escape(f)}|{re.escape(f)}\s*(?:\bor\b|或))", folded_text) for f in forms
    )


# ------------------------------------------------------------------------------------------------------ lists

_LIST_MARK = re.compile(r"\b(?:is|are|was|were|includes?|answer)\b|[:：=]|是|为|有|包括|分别", re.IGNORECASE)
_LIST_END = re.compile(r"\s(?:are|is|were|was|have|has)\b|(?:是|为)(?=.*(?:前|最))", re.IGNORECASE)
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
    for items in _list_parses(text):
        if len(items) != len(gold):
            continue
        if all(_item_matches(item, value, check) for item, value in zip(items, gold, strict=True)):
            return None
        if _matches_unordered(items, gold, check):
            if not ordered:
                return None
            same_but_order = True
    if same_but_order:
        return "the items are right, their order is not"
    return f"the list is not {', '.join(str(value) for value in gold)[:120]}"


def _matches_unordered(items: list[Any], gold: list[Any], check: Check) -> bool:
    """Multiset equality; greedy pairing suffices because texts match exactly and numbers are far apart or equal."""
    left = list(gold)
    for item in items:
        index = next((i for i, value in enumerate(left) if _item_matches(item, value, check)), None)
        if index is None:
            return False
        del left[index]
    return not left


def _item_matches(item: Any, gold: Any, check: Check) -> bool:
    if isinstance(gold, bool) or not isinstance(gold, int | float):
        return fold(str(gold)) in {fold(str(item)), fold(_untailed(str(item)))} - {""}
    number = Check(kind="number", value=gold, unit=check.unit, decimals=check.decimals)
    if isinstance(item, int | float) and not isinstance(item, bool):
        return abs(float(item) - float(gold)) <= tolerance(number)
    found = quantities(str(item))
    return len(found) == 1 and number_failure(found[0], number, "", "") is None


def _list_parses(text: str) -> Iterator[list[Any]]:
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
    lines = [line for line in text.splitlines() if line.strip()]
    bullets = [line for line in lines if _NUMBERING.match(line)]
    if len(bullets) >= 2:
        yield _clean(bullets)
        return
    body = "\n".join(lines)
    starts = [m.end() for m in _LIST_MARK.finditer(body)]
    stretches = [body, *(body[start:] for start in dict.fromkeys([*starts[:1], *starts[-1:], *starts[1:4]]))]
    stretches += [body[: m.start()] for m in list(_LIST_END.finditer(body))[:2]]
    for stretch in stretches:
        stretch = stretch.strip().rstrip(".。!！;；")
        for separators in (
            r"[、，,;；\n]",
            r"[、，,;；\n]\s*(?:and\b|和|以及|及)?|\s+(?:and|&)\s+|和|以及|与",
            r"\s+(?:>|->|→)\s+",
        ):
            if len(parts := _clean(re.split(separators, stretch))) >= 1:
                yield list(parts)


def _untailed(item: str) -> str:
    """An item without remarks in brackets and without a number after it: "East (12 %)", "East: 12"."""
    bare = re.sub(r"[(（].*?[)）]", "", item)
    return re.sub(r"\s*[:：=|-]?\s*[$¥€£]?[-+]?\d[\d,.]*\s*[%％\w]{0,8}[\s})\]|]*$", "", bare)


def _clean(parts: list[str]) -> list[str]:
    cleaned = (
        re.sub(r"^(?:and|or)\s+", "", _NUMBERING.sub("", part.strip()).strip(" \t\"'`*“”‘’.。")) for part in parts
    )
    return [part for part in cleaned if part]


# ---------------------------------------------------------------------------------------- booleans and dates

_YES = r"\b(?:yes|true|correct)\b|^\s*(?:是|对|有|正确|能|会)"
_NO = r"\b(?:no|false|incorrect)\b|^\s*(?:否|不|没|错|无)|不是|并非|没有|不会|不能"


def boolean_failure(text: str, check: Check, question: str) -> str | None:
    text = text.strip().strip("*\"'` ")
    lead = re.match(r"(yes|true|no|false)\b(?!\s*(?:or|and|/))", text, re.IGNORECASE)
    if lead:
        said: bool | None = lead[1].lower() in {"yes", "true"}
    else:
        yes, no = bool(re.search(_YES, text, re.IGNORECASE)), bool(re.search(_NO, text, re.IGNORECASE))
        said = None if yes == no else yes
    if said is None:
        return "neither yes nor no is stated"
    return (
        None
        if said == bool(check.value)
        else f"{'yes' if said else 'no'} is stated, {'yes' if check.value else 'no'} is right"
    )


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = rf"(?P<name>{'|'.join(_MONTHS)})[a-z]*\.?"
_CN_QUARTERS = "一二三四"
_DATES = [
    re.compile(r"(?<!\d)(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(r"(?<!\d)(?P<y>\d{4})\s*年\s*(?P<m>\d{1,2})\s*月(?:\s*(?P<d>\d{1,2})\s*[日号])?"),
    re.compile(r"(?<!\d)(?P<y>\d{4})\s*-?\s*(?:q|年\s*第?\s*q?)(?P<q>[1-4一二三四])\s*(?:季度)?(?!\d)"),
    re.compile(r"\bq(?P<q>[1-4])\s*(?:of\s*)?,?\s*(?P<y>\d{4})\b"),
    re.compile(rf"\b{_MONTH}\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<y>\d{{4}})\b"),
    re.compile(rf"\b(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH},?\s+(?P<y>\d{{4}})\b"),
    re.compile(rf"\b{_MONTH},?\s+(?P<y>\d{{4}})\b"),
    re.compile(r"(?<![\d-])(?P<y>\d{4})[-/](?P<m>\d{1,2})(?![\d-])"),
    re.compile(r"(?<![\d.-])(?P<y>(?:19|20)\d{2})(?![\d.-])年?"),
]


def dates(text: str) -> list[tuple[int, ...]]:
    """Dates of a text as (year,), (year, month), (year, month, day) or, for quarters, (year, 0, quarter)."""
    text = normalise(text).lower()
    found: list[tuple[int, tuple[int, ...]]] = []
    for pattern in _DATES:
        for match in list(pattern.finditer(text)):
            part = match.groupdict()
            month = _MONTHS.index(part["name"]) + 1 if part.get("name") else int(part.get("m") or 0)
            if quarter := part.get("q"):
                value: tuple[int, ...] = (
                    int(part["y"]),
                    0,
                    _CN_QUARTERS.index(quarter) + 1 if quarter in _CN_QUARTERS else int(quarter),
                )
            else:
                value = tuple(number for number in (int(part["y"]), month, int(part.get("d") or 0)) if number)
            found.append((match.start(), value))
            text = text[: match.start()] + "\0" * len(match[0]) + text[match.end() :]
    return [value for _, value in sorted(found)]


def date_failure(text: str, check: Check, question: str) -> str | None:
    gold = dates(str(check.value))
    if len(gold) != 1:
        return text_failure(text, check, question)
    asked = set(dates(question))
    stated = set(dates(_statement(text)))
    stated = (stated - asked) or stated
    if not stated:
        return "no date is stated"
    return None if stated == {gold[0]} else f"{check.value} is right"
