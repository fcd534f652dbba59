"""A program as a task: its question, its documents, the expert's code, the check and what must not pass it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from agentic.records import Check, Document
from agentic.reward.fold import fold, mentions
from agentic.tasks.metrics import Metric
from agentic.tasks.ops_gold import NUMBERS, Gold, gold_of, mistaken, rise_factor, with_filter
from agentic.tasks.ops_words import question_text
from agentic.tasks.phrases import ANSWERS
from agentic.tasks.programs import Arguments, Program, Space
from agentic.tasks.world import Filters, World

DOCUMENTS = 5
_HARD = {"scenario", "contribution", "chain_change", "chain_metric", "drill"}
_MEDIUM = {"what_if", "rank", "ratio", "list_above", "top_share", "spread"}
_POINTS = {"change", "difference", "spread"}


@dataclass(frozen=True)
class Cell:
    """One Python turn of the expert."""

    code: str
    prints: str | None
    """What it must print; None: the number from which the answer is made."""


@dataclass(frozen=True)
class OpsQuestion:
    program: Program
    arguments: Arguments
    """In the question's order."""
    question: str
    queries: tuple[tuple[str, str], ...]
    """(what the expert asks the retriever, id of the document it needs), in the order of the steps."""
    cells: tuple[Cell, ...]
    calculation: str | None
    """Calculator expression after the last cell."""
    gold: Gold
    check: Check
    answer: str
    documents: list[Document]
    difficulty: str
    wrong: dict[str, str]
    """What was mistaken -> the answer that a mistaken program gives."""


def realise(program: Program, world: World, rng: random.Random, language: str) -> OpsQuestion:
    """Question, code and gold of a program; raises Unfit where the answer would be a tie or not finite."""
    asked = program.arguments
    if program.operation == "ratio" and rng.random() < 0.5:
        asked = asked[::-1]
    gold = gold_of(world, program, asked)
    if program.operation == "difference" and gold.value < 0:
        # "How much lower is b than a?" A difference is asked as a distance, so that "b is 5 lower" is no other answer than 5.
        asked = asked[::-1]
        gold = gold_of(world, program, asked)
    names = {m.id: rng.choice(m.name_zh if language == "zh" else m.name_en) for m in _mentioned(program, world)}
    wanted = [program.metric, *([program.second] if program.second else [])]
    cells, calculation = _cells(program, world, asked, gold)
    percent = is_percent(program, gold)
    wrong = {what: sentence(language, other, percent) for what, other in mistaken(world, program, asked, gold)}
    if percent and gold.kind in NUMBERS and abs(gold.value) > 0.1:
        wrong["fraction"] = sentence(language, Gold(gold.kind, round(gold.value / 100, 6)), percent)
    return OpsQuestion(
        program=program,
        arguments=asked,
        question=question_text(program, world, asked, names, rng, language),
        queries=tuple((names[metric.id], metric.id) for metric in wanted),
        cells=tuple(cells),
        calculation=calculation,
        gold=gold,
        check=_check(gold, _unit(program, percent)),
        answer=sentence(language, gold, percent),
        documents=_documents(wanted, list(_mentioned(program, world)), world, rng, language),
        difficulty=_difficulty(program),
        wrong=wrong,
    )


def _mentioned(program: Program, world: World) -> list[Metric]:
    """The metrics that the question names."""
    if program.operation == "scenario":
        parts = Space(world).scenario_parts(program.metric)
        assert parts is not None
        return [program.metric, *parts]
    return [program.metric, *([program.second] if program.second else [])]


def is_percent(program: Program, gold: Gold) -> bool:
    if gold.kind == "percent":
        return True
    asked = program.second or program.metric
    return gold.kind == "number" and asked.unit == "%" and program.operation not in {*_POINTS, "ratio"}


def _unit(program: Program, percent: bool) -> str | None:
    """The distance between two rates is in percentage points: "1.5 percentage points" and 1.5 both say 1.5."""
    return "%" if percent else "pp" if program.metric.unit == "%" and program.operation in _POINTS else None


def sentence(language: str, gold: Gold, percent: bool) -> str:
    """The answer in words."""
    said = ANSWERS[language]
    if gold.kind in NUMBERS:
        return said["percent_value" if percent else "number"](repr(gold.value))
    if gold.kind in {"values", "items"}:
        return said[gold.kind](", ".join(map(str, gold.value)))
    return said["number" if gold.kind == "rank" else gold.kind](str(gold.value))


def _check(gold: Gold, unit: str | None) -> Check:
    if gold.kind in NUMBERS:
        return Check(kind="number", value=gold.value, unit=unit)
    if gold.kind in {"count", "rank"}:
        return Check(kind="number", value=gold.value)
    if gold.kind == "value":
        return Check(kind="text", value=str(gold.value))
    return Check(kind="ordered_list" if gold.kind == "values" else "list", value=[str(level) for level in gold.value])


def _difficulty(program: Program) -> str:
    if program.operation in _HARD:
        return "hard"
    return "medium" if program.operation in _MEDIUM or len(program.metric.tables) > 1 else "easy"


# ------------------------------------------------------------------------------------------ the expert's code


def _selection(world: World, metric: Metric, by: Sequence[str], filters: Filters) -> str:
    """Lines that bind each table's one-letter variable to its filtered (and grouped) rows."""
    lines = []
    for table in metric.tables:
        name, rows = world.variables[table], world.source(table)
        if rows != table:  # joined: the filters need the result's columns
            lines.append(f"{name} = {rows}")
            rows = name
        conditions = [f"{rows}[{c.column!r}] {c.comparison} {c.value!r}" for c in metric.conditions if c.table == table]
        conditions += [f"{rows}[{column!r}] == {value!r}" for column, value in filters]
        if len(conditions) == 1:
            rows = f"{rows}[{conditions[0]}]"
        elif conditions:
            rows = f"{rows}[{' & '.join(f'({condition})' for condition in conditions)}]"
        columns = repr(by[0]) if len(by) == 1 else repr(list(by))
        lines.append(f"{name} = {rows}" + (f".groupby({columns})" if by else ""))
    return "\n".join(lines)


def _cells(program: Program, world: World, asked: Arguments, gold: Gold) -> tuple[list[Cell], str | None]:
    operation, metric, filters = program.operation, program.metric, program.filters
    expression = metric.pandas(world.variables)
    if operation in {"value", "what_if"}:
        code = f"{_selection(world, metric, (), filters)}\nprint(round({expression}, 4))"
        if operation == "value":
            return [Cell(code, None)], None
        return [Cell(code, None)], f"round({{0}} * {rise_factor(asked[0])}, 4)"
    if operation == "scenario":
        parts = metric.parts()
        assert parts is not None
        upper, lower = (Metric("", (), (), part).pandas(world.variables) for part in parts[:2])
        code = f"{_selection(world, metric, (), filters)}\nprint(round({upper}, 4), round({lower}, 4))"
        quotient = f"{{0}} * {rise_factor(asked[0])} / ({{1}} * {rise_factor(asked[1])}){parts[2]}"
        return [Cell(code, None)], f"round({quotient}, 4)"
    assert program.dimension is not None
    if operation == "contribution":
        assert program.along is not None
        level, first, second = asked
        code = (
            f"{_selection(world, metric, (program.along, program.dimension), filters)}\nm = {expression}\n"
            f"d = m[{second!r}] - m[{first!r}]\nprint(round(d[{level!r}] / d.sum() * 100, 4))"
        )
        return [Cell(code, None)], None
    if operation in {"chain_change", "chain_metric", "drill"}:
        return _chain_cells(program, world, asked, gold), None
    tail, prints = _tail(operation, asked, gold)
    code = f"{_selection(world, metric, (program.dimension,), filters)}\nm = {expression}\nprint({tail})"
    return [Cell(code, prints)], None


def _tail(operation: str, asked: Arguments, gold: Gold) -> tuple[str, str | None]:
    """The printed expression over the series m, and what it prints where that is no rounded number."""
    a, b = (*map(repr, asked), "", "")[:2]
    shown = str(gold.value)
    if operation == "extreme":
        return f"m.{'idxmax' if asked[0] else 'idxmin'}()", shown
    if operation in {"top_k", "bottom_k"}:
        return f"m.{'nlargest' if operation == 'top_k' else 'nsmallest'}({a}).index.tolist()", shown
    if operation == "rank":
        return f"int(m.rank(ascending=False)[{a}])", shown
    if operation == "count_above":
        return f"(m > {a}).sum()", shown
    if operation == "list_above":
        return f"m[m > {a}].index.tolist()", shown
    number = {
        "change": f"m[{b}] - m[{a}]",
        "difference": f"m[{a}] - m[{b}]",
        "change_percent": f"(m[{b}] / m[{a}] - 1) * 100",
        "ratio": f"m[{a}] / m[{b}]",
        "share": f"m[{a}] / m.sum() * 100",
        "top_share": "m.max() / m.sum() * 100",
        "spread": "m.max() - m.min()",
    }[operation]
    return f"round({number}, 4)", None


def _chain_cells(program: Program, world: World, asked: Arguments, gold: Gold) -> list[Cell]:
    """Two turns: the second one writes down what the first has printed."""
    metric, filters, dimension, along = program.metric, program.filters, program.dimension, program.along
    assert dimension is not None and gold.best is not None
    expression = metric.pandas(world.variables)
    pick = "idxmax" if asked[0] else "idxmin"
    start = with_filter(filters, along, asked[1]) if program.operation == "chain_change" and along else filters
    first = f"{_selection(world, metric, (dimension,), start)}\nm = {expression}\nprint(m.{pick}())"
    inner = with_filter(filters, dimension, gold.best)
    if program.operation == "chain_metric":
        assert program.second is not None
        second = program.second.pandas(world.variables)
        code = f"{_selection(world, program.second, (), inner)}\nprint(round({second}, 4))"
        return [Cell(first, str(gold.best)), Cell(code, None)]
    assert along is not None
    code = f"{_selection(world, metric, (along,), inner)}\nm = {expression}\n"
    if program.operation == "drill":
        return [Cell(first, str(gold.best)), Cell(f"{code}print(m.{pick}())", str(gold.value))]
    _, before, after = map(repr, asked)
    return [Cell(first, str(gold.best)), Cell(f"{code}print(round((m[{after}] / m[{before}] - 1) * 100, 4))", None)]


# ------------------------------------------------------------------------------------------------- documents


@lru_cache(maxsize=4096)
def _speaks_of(one: Metric, other: Metric) -> bool:
    """Whether the description of either names the other."""
    for said, named in ((one, other), (other, one)):
        for text, names in ((said.description_en, named.name_en), (said.description_zh, named.name_zh)):
            folded = fold(text or "")
            if folded and any(mentions(folded, fold(name)) for name in names):
                return True
    return False


def _documents(
    wanted: list[Metric], mentioned: list[Metric], world: World, rng: random.Random, language: str
) -> list[Document]:
    """The definitions that are needed among distractors.

    Rival definitions of one name never appear together, nor does a definition whose description speaks of another one's name
    ("In this company GMV leaves refunds out", said of GMV per user, beside a GMV that does not).
    """
    chosen = list(wanted)
    kept_out = {rival.id for metric in mentioned for rival in world.rivals(metric)}
    others = [other for other in world.metrics if other.id not in kept_out and other not in wanted]
    rng.shuffle(others)
    for other in others:
        if len(chosen) == DOCUMENTS:
            break
        if other.id not in kept_out and not any(_speaks_of(other, metric) for metric in (*chosen, *mentioned)):
            chosen.append(other)
            kept_out |= {rival.id for rival in world.rivals(other)}
    chosen.sort(key=lambda metric: metric.id)
    documents = []
    for metric in chosen:
        _, text = metric.document(language)
        title = " / ".join(metric.name_zh if language == "zh" else metric.name_en)
        documents.append(Document(id=metric.id, title=title, text=text))
    return documents
