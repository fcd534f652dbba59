"""docs/scoring.md says what the code does: its examples and its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentic.records import Check
from agentic.reward.answer import compare
from agentic.reward.trajectory import WEIGHTS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "scoring.md").read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    """Cells of the table under a header line."""
    lines = PAGE.split(f"{header}\n")[1].splitlines()[1:]
    table = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def parsed(text: str) -> Check:
    kind, value = text.split(" ", 1)
    if kind == "number":
        number, _, unit = value.partition(" ")
        return Check(kind="number", value=float(number) if "." in number else int(number), unit=unit or None)
    if kind == "choice":
        value, options = value.split(": ")
        return Check(kind="choice", value=value, options=options.split(", "))
    if kind == "boolean":
        return Check(kind="boolean", value=value == "true")
    return Check.model_validate({"kind": kind, "value": value.split(", ") if "list" in kind else value})


EXAMPLES = rows("| check | question | answer | right |")


@pytest.mark.parametrize("example", EXAMPLES, ids=[row[2][:24] for row in EXAMPLES])
def test_examples(example: list[str]) -> None:
    check, question, answer, expected = example
    verdict = compare(answer, [parsed(check)], question)
    assert verdict.correct == {"yes": True, "no": False}[expected], verdict.reason


def test_the_table_is_read_whole() -> None:
    assert len(EXAMPLES) >= 25


def test_the_weights_are_those_of_the_code() -> None:
    shown = {row[0].strip("`"): float(row[2].split()[0]) for row in rows("| part | meaning | weight in `ops` |")}
    assert shown == {**WEIGHTS, "avg_turns": 0.0}
