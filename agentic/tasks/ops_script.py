"""The expert of an operations task: look the definition up, compute, for a what-if calculate, answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from agentic.records import Document, Task
from agentic.tasks.draw import Unfit
from agentic.tasks.expert import Calculation, Script, Step, printed_number, python_step, with_mistake
from agentic.tasks.ops import OpsQuestion, is_percent, sentence
from agentic.tasks.ops_gold import NUMBERS, Gold
from agentic.tasks.phrases import ANSWERS
from agentic.tasks.world import World
from agentic.tools.parse import render_call
from agentic.tools.retriever import Retriever, terms

MISTAKE_RATE = 0.06
"""Share of the training experts whose first cell misspells a column."""
DETOUR_RATE = 0.2
"""Share of the training experts' look-ups that ask for a part of the name first, where that finds another document."""
TOOLS = ["python_executor", "retriever", "calculator"]


@dataclass(frozen=True)
class Stated:
    """The answer, with the number as the last observation shows it."""

    language: str
    gold: Gold
    percent: bool

    def __call__(self, observation: str) -> str:
        if printed_number(observation, self.gold.value) is None:
            return sentence(self.language, self.gold, self.percent)  # and the script is refused for it
        return ANSWERS[self.language]["percent_value" if self.percent else "number"](observation)


def ops_script(
    task_id: str, asked: OpsQuestion, world: World, language: str, base_dir: Path, rng: random.Random, slips: bool
) -> Script:
    """`slips`: some experts make a mistake or a poor query first, and go on from there. Raises Unfit when no query finds the
    definition."""
    retriever = Retriever(asked.documents)
    steps: list[Step] = []
    for position, (query, wanted) in enumerate(asked.queries):
        poor = _poor_query(query, wanted, retriever, rng) if slips and rng.random() < DETOUR_RATE else None
        if poor is not None:
            steps.append(Step(render_call("retriever", {"query": poor}), detour=True))
        search = _query(query, wanted, asked.documents, retriever)
        steps.append(Step(render_call("retriever", {"query": search}), finds=wanted))
        # A chain over two metrics looks the second one up when it needs it.
        last = position == len(asked.queries) - 1
        cells = asked.cells[position:] if last else asked.cells[position : position + 1]
        if position == 0 and slips and rng.random() < MISTAKE_RATE:
            steps += _misspelt(asked, world, rng)
        steps += [python_step(cell.code, prints=cell.prints) for cell in cells]
    if asked.calculation is not None:
        steps.append(Step(Calculation(asked.calculation)))
    percent = is_percent(asked.program, asked.gold)
    is_number = asked.gold.kind in NUMBERS
    steps.append(Step(Stated(language, asked.gold, percent) if is_number else asked.answer))
    task = _task(task_id, asked, world, language)
    return Script(task, base_dir, steps, gold=asked.gold.value if is_number else None)


def _misspelt(asked: OpsQuestion, world: World, rng: random.Random) -> list[Step]:
    known = [column for table in asked.program.metric.tables for column in world.rows(table).columns]
    wrong = with_mistake(asked.cells[0].code, asked.program.metric.columns, known, rng)
    return [python_step(wrong, mistake=True)] if wrong is not None else []


def _query(name: str, wanted: str, documents: list[Document], retriever: Retriever) -> str:
    """The name that the question uses, or the document's whole title where another document is nearer to the name."""
    title = next(document.title for document in documents if document.id == wanted)
    for query in (name, title):
        found = retriever.search(query, 1)
        if found and found[0].id == wanted:
            return query
    raise Unfit


def _poor_query(name: str, wanted: str, retriever: Retriever, rng: random.Random) -> str | None:
    """A part of the name that finds another document, or None."""
    words = list(dict.fromkeys(terms(name)))
    rng.shuffle(words)
    for word in words:
        found = retriever.search(word, 1)
        if word != name and found and found[0].id != wanted:
            return word
    return None


def _task(task_id: str, asked: OpsQuestion, world: World, language: str) -> Task:
    program = asked.program
    metrics = [program.metric.id, *([program.second.id] if program.second else [])]
    prefix = f"{world.name}:" if world.name else ""
    return Task(
        id=task_id,
        question=asked.question,
        language="zh" if language == "zh" else "en",
        tables=world.refs,
        documents=asked.documents,
        tools=TOOLS,
        expected_tools=["retriever", "python_executor", *(["calculator"] if asked.calculation else [])],
        answer=asked.answer,
        checks=[asked.check],
        max_turns=8,
        metadata={
            "task_type": "ops",
            "category": program.operation,
            "difficulty": asked.difficulty,
            "metric": "+".join(metrics),
            "program": prefix + program.canonical,
            "asked": [str(argument) for argument in asked.arguments],
            "wrong": asked.wrong,
        },
    )
