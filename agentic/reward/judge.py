"""A judge model for free text: what it is asked, how its reply is read, and what follows when there is none.

This module knows no network. Whoever has a model turns `request` into messages, hands its reply to `read_reply`, and keeps
the judgements in a `Judgements`, which the comparison looks into. Whatever is not a clear judgement is "unjudged".
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, Protocol

from agentic.records import Check, Message, Record, Task, Trajectory
from agentic.reward.statement import final_text

MAX_ANSWER_CHARS = 8000
"""A longer answer is cut in its middle; a judge need not read a dump."""
TOLERANCE = 0.03
"""Relative, as published for judged data analysis (DataMind)."""


@dataclass(frozen=True)
class Case:
    """One thing to judge."""

    question: str
    reference: str
    answer: str

    def key(self, model: str, tolerance: float) -> str:
        """Identity of a judgement: the case, the model and everything that the prompt says."""
        told = [self.question, self.reference, self.answer, model, f"{tolerance:g}", _instructions()]
        return hashlib.sha256(json.dumps(told, ensure_ascii=True).encode()).hexdigest()[:32]


class Judgement(Record):
    """One line of judgements.jsonl."""

    key: str
    correct: bool
    reason: str = ""


class Judge(Protocol):
    """Says whether an answer agrees with a reference; None: not judged."""

    def __call__(self, case: Case) -> Judgement | None: ...


class Judgements:
    """The judgements that there are, as a Judge. Judges nothing itself."""

    def __init__(self, model: str, tolerance: float = TOLERANCE, known: Iterable[Judgement] = ()) -> None:
        self.model, self.tolerance = model, tolerance
        self._by_key = {judgement.key: judgement for judgement in known}

    def __call__(self, case: Case) -> Judgement | None:
        return self._by_key.get(case.key(self.model, self.tolerance))

    def add(self, judgement: Judgement) -> None:
        self._by_key[judgement.key] = judgement


def cases(task: Task, answer: str | None) -> list[Case]:
    """What a judge has to say of an answer: one case a free-text check; none for an empty answer, which scores 0 unasked."""
    text = final_text(answer or "").strip()
    return [case_of(check, text, task.question) for check in task.checks if check.kind == "free_text"] if text else []


def case_of(check: Check, text: str, question: str) -> Case:
    return Case(question.strip(), str(check.value).strip(), text.strip())


def needed(tasks: Iterable[Task], trajectories: Iterable[Trajectory]) -> list[Case]:
    """All cases of an evaluation, each once, in the order of the trajectories."""
    by_id = {task.id: task for task in tasks}
    found = (case for t in trajectories if t.task_id in by_id for case in cases(by_id[t.task_id], t.answer))
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------ asking and reading


@cache
def _instructions() -> str:
    return resources.files("agentic").joinpath("prompts/judge.txt").read_text(encoding="utf-8").strip()


def request(case: Case, tolerance: float = TOLERANCE, fence: str | None = None) -> list[Message]:
    """Messages for the judge. The fence is drawn anew after the answer was written, so no answer can close it."""
    parts = {"question": case.question, "reference": case.reference, "candidate": _cut(case.answer)}
    while fence is None or any(fence in part for part in parts.values()):
        fence = secrets.token_hex(12)
    system = _instructions().format(fence=fence, tolerance=f"{tolerance * 100:g} %")
    blocks = [f"<<<{name} {fence}>>>\n{_harmless(part)}\n<<<end of {name} {fence}>>>" for name, part in parts.items()]
    return [Message(role="system", content=system), Message(role="user", content="\n\n".join(blocks))]


def _cut(text: str) -> str:
    if len(text) <= MAX_ANSWER_CHARS:
        return text
    head, tail = MAX_ANSWER_CHARS * 3 // 4, MAX_ANSWER_CHARS // 4
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[-tail:]}"


def _harmless(text: str) -> str:
    """Without what a chat template or this prompt would read as a marker of its own."""
    return text.replace("<|", "<\u200b|").replace("<<<", "<\u200b<\u200b<").replace(">>>", ">\u200b>\u200b>")


class _Reply(Record):
    verdict: Literal["correct", "incorrect"]
    reason: str = ""


def read_reply(text: str) -> tuple[bool, str] | None:
    """(correct, reason) of a reply that is exactly the JSON object asked for; None for anything else.

    Reasoning in <think> before it and a fence around it are how models answer, not doubt; words beside it are.
    """
    text = re.sub(r"^\s*<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    if fenced := re.fullmatch(r"```(?:json)?\s*\n(.*?)\n?```", text, flags=re.DOTALL):
        text = fenced[1].strip()
    try:
        pairs = json.loads(text, object_pairs_hook=lambda found: found)
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            return None  # {"verdict": "correct", "verdict": "incorrect"}
        reply = _Reply.model_validate(dict(pairs), strict=True)
    except (ValueError, TypeError, RecursionError):
        return None
    return reply.verdict == "correct", reply.reason[:400]
