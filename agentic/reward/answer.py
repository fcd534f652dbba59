"""Compare a final answer with the checks of its task.

The comparison is typed, because matching substrings or any number of the text is how agents learn to cheat.

Numbers. The answer is read as quantities (reward/quantity.py) and must *state* the asked one:
1. Set aside, as long as something else remains: calendar years, ranks (unless the question asks for a rank), totals
   ("12 of 344"), numbers of the question (thresholds, k), baselines ("up from 40") and remarks in brackets.
2. What remains must agree. If it does not, the quantity right after the last marker counts (first "answer"/答案, then
   is/was/=/:/是/为), unless more numbers follow it in a list ("5 or 7", "[1,5],[2,7]") or the text is a list of labels
   with values ("East: 5, West: 7").
3. Several number checks are paired with the stated quantities in order (percents and others apart).
Tolerance: half a unit of the last asked decimal; without `decimals` an int is exact and a float has 0.5 %. Gold floats
are stored with 4 decimals, so half a unit of the fourth is always allowed. A gold that is not finite matches nothing.
Percent: with unit "%" a percent or a bare number counts (12.5% or 12.5 for 12.5, never 0.125); without it the sign
decides (12.5% is 0.125). A decrease ("fell by 5") is -5, unless the question itself asks for a decrease.

Text and choice. The value or an accepted form must be named, whatever its case and punctuation. A name that is denied
or compared against ("not X", "than X", 比X) is not stated. Naming another option is wrong; options of the question are
context only when the right one is not among them ("besides East, which ...?"), since otherwise the question is the
choice. Without options, a right name that is one of several items side by side is wrong. A text gold that is a number
(a year, a code without leading zeros) is compared as an exact number.

What is no statement, for every kind: reasoning, code and calls (reward/statement.py), what is denied ("not 42"), only a bound
("at least 42", "between 1 and 100"), or a guess ("maybe 43", "it could also be East"). A guess beside an answer spoils it.

Lists are read from JSON, bullets, or a sentence, and compared as multisets, in order where that is asked. Tables are read
from JSON, markdown or csv; their rows are compared as rows (reward/tables.py).

Free text is for a judge alone (reward/judge.py). Without a judgement the verdict is `unjudged`: neither right nor wrong.
"""

from __future__ import annotations

from agentic.records import Check, Verdict
from agentic.reward.judge import Judge, case_of
from agentic.reward.lists import list_failure
from agentic.reward.names import boolean_failure, date_failure, named_spans, text_failure
from agentic.reward.numbers import number_failure, stated
from agentic.reward.statement import final_text, statement
from agentic.reward.tables import table_failure

MAX_CHARS = 200_000
"""A longer answer is a dump, and wrong."""


def compare(answer: str | None, checks: list[Check], question: str = "", judge: Judge | None = None) -> Verdict:
    """Score an answer: the share of the checks that pass, and the first one that failed.

    An empty answer scores 0 before anything else runs. A task without checks cannot be answered right. Only free text needs
    `judge`; what it does not judge makes the whole verdict unjudged.
    """
    whole = final_text(answer or "")
    if not whole.strip():
        return Verdict(score=0.0, correct=False, reason="the answer is empty")
    if not checks:
        return Verdict(score=0.0, correct=False, reason="the task has no checks")
    if len(whole) > MAX_CHARS:
        return Verdict(score=0.0, correct=False, reason=f"the answer has {len(whole)} characters, {MAX_CHARS} are read")
    text = statement(whole, question)
    if not text.strip(" \t\r\n*_`#>|.。") and not any(check.kind == "free_text" for check in checks):
        return Verdict(score=0.0, correct=False, reason="the answer states nothing (only code, calls or the question)")
    numbers = [check for check in checks if check.kind == "number"]
    named = [span for check in checks if check.kind in _NAMING for span in named_spans(text, check)]
    quantities = stated(text, numbers, named, question)
    failures: list[str] = []
    for check in checks:
        if check.kind == "number":
            quantity = quantities.pop(0)
            failure = quantity if isinstance(quantity, str) else number_failure(quantity, check, text, question)
        elif check.kind == "free_text":
            judgement = judge(case_of(check, whole, question)) if judge else None
            if judgement is None:
                why = "the judge gave no verdict" if judge else "free text needs a judge (--judge_base_url)"
                return Verdict(score=0.0, correct=False, reason=why, unjudged=True)
            failure = None if judgement.correct else f"the judge: {judgement.reason or 'incorrect'}"
        else:
            failure = _FAILURES[check.kind](text, check, question)
        if failure:
            failures.append(failure)
    passed = len(checks) - len(failures)
    reason = failures[0] if failures else "all checks pass"
    return Verdict(score=passed / len(checks), correct=not failures, reason=reason)


_NAMING = {"text", "choice", "list", "ordered_list", "date"}
"""Kinds whose values may hold digits that are part of a name."""
_FAILURES = {
    "text": text_failure,
    "choice": text_failure,
    "list": list_failure,
    "ordered_list": list_failure,
    "boolean": boolean_failure,
    "date": date_failure,
    "table": table_failure,
}
