"""Answers in words: names, choices, yes or no, dates (the rules stand in reward/answer.py)."""

from __future__ import annotations

import re

from agentic.records import Check
from agentic.reward.fold import ahead, fold, mentions
from agentic.reward.lists import list_parses, untailed
from agentic.reward.numbers import number_failure, stated
from agentic.reward.numerals import cn_value
from agentic.reward.quantity import normalise, quantities

_DENIED = re.compile(
    r"(?:\bnot|n't|n t|\bneither|\bnever|\bnor|\b(?:anything|everything|all|any|anyone) but|\brather than|\binstead of|\bthan|\bversus|\bvs|\bcompared (?:to|with)|\bunlike"
    r"|\bexcept|\bbesides|\bbeats|\bexceeds|\bahead of|\bfollowed by|不是|并非|而非|比|高于|低于|超过"
    r"|多于|少于|大于|小于|除了?)\s*(?:the|that of|in|for)?\s*$"
)


# A guess is no statement: "maybe East", "it could also be East", 可能是华东.
GUESS = re.compile(
    r"(?:\b(?:maybe|perhaps|possibly|alternatively|or else|(?:could|might|may) (?:also |well |instead )?be)"
    r"|也?可能(?:是|为)|也许是?|或许是?)\s*(?:(?:it s|it is|the|a|an|even)\s+)*$"
)

_GUESSED = re.compile(
    r"(?:\b(?:maybe|perhaps|possibly|alternatively|or else|(?:could|might|may) (?:also |well |instead )?be)\b"
    r"|也?可能(?:是|为)|也许是?|或许是?)\s*(?:(?:it is|it's|the)\s)?[^\s,.;!?。，；]+(?:\s[^\s,.;!?。，；]+)?\s*(?=[,.;!?。，；)]|$)",
    re.IGNORECASE,
)
_SAYING = re.compile(r"\b(?:is|are|was|were|has|have|had)\b|[是为有]", re.IGNORECASE)


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
    """The form is named at least once without being denied, guessed or compared against."""
    return any(
        not _DENIED.search(ahead(folded, start)) and not GUESS.search(ahead(folded, start))
        for start, _ in mentions(folded, form)
    )


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
    if guess := _GUESSED.search(_statement(text)):
        return f"guesses ({guess[0].strip()})"
    statement = fold(_statement(text))
    asked = fold(question)
    if not any(mentions(asked, form) for form in forms):
        options = {option for option in options if not mentions(asked, option)}
    masked = statement
    named: set[str] = set()
    for form in sorted(forms | options, key=len, reverse=True):
        if _asserted(masked, form):
            named.add(form)
        for start, end in reversed(mentions(masked, form)):
            masked = masked[:start] + "\0" * (end - start) + masked[end:]
    if not named & forms:
        return f"{check.value} is not stated"
    if rivals := named - forms:
        return f"names {sorted(rivals)[0]} beside {check.value}"
    said = _statement(text)
    if "/" not in "".join([str(check.value), *check.accept]):
        said = re.sub(r"(?<=[^\W\d_])\s*[/|]\s*(?=[^\W\d_])", " or ", said)
    if not check.options and _is_enumeration(said, forms, asked):
        return f"lists several answers, one asked ({check.value})"
    return None


_CN_YEAR = re.compile(r"([零〇一二三四五六七八九]{4})(?=\s*年)")
_CN_MONTH = re.compile(r"(?<=年)(\s*)(十[一二]?|[一二三四五六七八九])(?=月)")


def _statement(text: str) -> str:
    """The part that answers (`_part`), with the years and months of Chinese dates in digits: 2024年三月 is 2024年3月."""
    text = _CN_YEAR.sub(lambda m: f"{cn_value(m[1]):.0f}", _part(text))
    return _CN_MONTH.sub(lambda m: f"{m[1]}{cn_value(m[2]):.0f}", text)


def _part(text: str) -> str:
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
    for items in list_parses(statement):
        folded = [fold(untailed(str(item))) for item in items]
        if len(folded) < 2 or not forms & set(folded):
            continue
        others = [item for item in folded if item not in forms and not quantities(item) and not mentions(asked, item)]
        if any(
            item
            and len(item.split()) <= 3
            and not re.search(
                r"\b(?:with|at|by|as|which|having|followed|about|has|have|had|is|was|are|were|not|because)\b|[为是达约]$",
                item,
            )
            for item in others
        ):
            return True
    if _is_parallel(statement, forms):
        return True
    folded_text = fold(statement)
    piped = [line for line in statement.splitlines() if line.lstrip().startswith("|")]
    rules = sum(not fold(line) for line in piped)
    if len(piped) - rules - bool(rules) > 1 and any(fold(cell) in forms for line in piped for cell in line.split("|")):
        return True  # a table of several rows
    return any(
        re.search(
            rf"(?:\b(?:or|one of|either|any of)(?: the)?\s+{re.escape(f)}|或者?\s*{re.escape(f)}|{re.escape(f)}\s*(?:\bor\b|或))",
            folded_text,
        )
        for f in forms
    )


def _is_parallel(statement: str, forms: set[str]) -> bool:
    """Every clause that names the right form says the same of something else: "East is best. West is best."."""
    clauses = [re.sub(r"\d+(?:\.\d+)?", "0", fold(part)) for part in re.split(r"[.;,\n。；，]+(?!\d)", statement)]
    clauses = [clause for clause in clauses if clause]
    naming = [(clause, form) for clause in clauses for form in forms if mentions(clause, form)]
    return bool(naming) and all(
        any(_same_frame(clause, form, other) for other in clauses if not mentions(other, form))
        for clause, form in naming
    )


def _same_frame(clause: str, form: str, other: str) -> bool:
    start, end = mentions(clause, form)[0]
    before, after = clause[:start], clause[end:]
    if not (before + after).strip() or not other.startswith(before) or not other.endswith(after):
        return False
    rival = other[len(before) : len(other) - len(after)].strip()
    return bool(rival) and len(rival.split()) <= 3


# ---------------------------------------------------------------------------------------- booleans and dates

_YES = r"\b(?:yes|true|correct)\b|^\s*(?:是|对|有|正确|能|会)"
_NO = (
    r"\b(?:no|false|incorrect|untrue)\b|(?:\bnot|n['’]t)\s+(?:true|correct|the case|so)\b"
    r"|不是|并非|没有|不会|不能|^\s*(?:否|不|没|错|无)"
)
_UNSURE = re.compile(
    r"\b(?:maybe|perhaps|possibly|might be|unclear|(?:cannot|can't|could not) (?:be )?(?:determined?|answer|say|tell)|not sure"
    r"|don't know)\b|可能|也许|或许|是否|或否|或不|无法|不确定|不能确定|不知道",
    re.IGNORECASE,
)


_UP = r"\b(?:rise|rose|risen|rises|grow|grew|grown|grows|increased?|increases|went up|go up|climbed|higher)\b|上升|增长|增加|上涨|提高"
_DOWN = (
    r"\b(?:fall|fell|fallen|falls|decreased?|decreases|declined?|declines|dropped|drop|shrank|went down|go down|lower)\b"
    r"|下降|减少|降低|下跌|下滑"
)


def _way(text: str) -> bool | None:
    """Whether a text says that something rose; None where it says neither or both."""
    up, down = (bool(re.search(words, text, re.IGNORECASE)) for words in (_UP, _DOWN))
    return None if up == down else up


def _same_way(text: str, question: str) -> bool | None:
    """ "It fell." answers "Did it grow?" with no; None where answer or question say no direction."""
    said, asked = _way(text), _way(question)
    if said is None or asked is None:
        return None
    denied = re.search(r"\b(?:not|never)\b|n['’]t\b|没|未", text)
    return (said == asked) and not denied if said == asked else None if denied else False


def boolean_failure(text: str, check: Check, question: str) -> str | None:
    # 是否增长：是 repeats the question before it answers.
    text = re.sub(r"^\s*是否[^:：,，。?？]*[:：,，?？]", "", text).strip().strip("*\"'` ")
    alone = {
        word.lower()
        for word in re.findall(
            r"(?:^|[,;.?!/|]|\bor\b|\band\b)\s*(yes|no|true|false)\b(?=\s*(?:[,;.?!/|]|$|or\b|and\b))",
            text,
            re.IGNORECASE,
        )
    }
    lead = re.match(r"(yes|true|no|false)\b", text, re.IGNORECASE)
    if _UNSURE.search(text) or (alone & {"yes", "true"} and alone & {"no", "false"}):
        said: bool | None = None
    elif lead:
        said = lead[1].lower() in {"yes", "true"}
    else:
        no = bool(re.search(_NO, text, re.IGNORECASE))
        yes = bool(re.search(_YES, re.sub(_NO, " ", text, flags=re.IGNORECASE), re.IGNORECASE))
        said = None if yes == no else yes
        if not yes and not no:
            said = _same_way(text, question)
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
            if not _DENIED.search(ahead(text, match.start())):
                found.append((match.start(), value))
            text = text[: match.start()] + "\0" * len(match[0]) + text[match.end() :]
    return [value for _, value in sorted(found)]


def date_failure(text: str, check: Check, question: str) -> str | None:
    gold = dates(str(check.value))
    if len(gold) != 1:
        return text_failure(text, check, question)
    asked = set(dates(question))
    if guess := _GUESSED.search(_statement(text)):
        return f"guesses ({guess[0].strip()})"
    stated = set(dates(_statement(text)))
    stated = (stated - asked) or stated
    if not stated:
        return "no date is stated"
    return None if stated == {gold[0]} else f"{check.value} is right"
