"""What a build counts while its tasks pass by: the manifest, and the data card that is written from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agentic.records import Task
from agentic.tasks.ops import OpsQuestion
from agentic.tasks.world import World
from agentic.tools.retriever import Retriever


@dataclass
class SplitCount:
    tasks: int = 0
    languages: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    difficulties: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)

    def add(self, task: Task, turns: int) -> None:
        self.tasks += 1
        self.languages[task.language] += 1
        self.categories[str(task.metadata["category"])] += 1
        self.difficulties[str(task.metadata["difficulty"])] += 1
        self.turns[turns] += 1

    def to_json(self) -> dict[str, Any]:
        return {
            "tasks": self.tasks,
            "languages": dict(sorted(self.languages.items())),
            "categories": dict(sorted(self.categories.items())),
            "difficulties": dict(sorted(self.difficulties.items())),
            "expert_turns": {str(turns): count for turns, count in sorted(self.turns.items())},
        }


@dataclass
class Retrieval:
    """How well the definitions are found, and how much depends on them."""

    needed: int = 0
    by_question: int = 0
    """Definitions among the first two documents when the query is the question."""
    by_query: int = 0
    """The same for the expert's query."""
    tasks: int = 0
    with_rival: int = 0
    """Tasks whose metric has a rival definition of the same name."""
    rival_differs: int = 0
    """Those of them whose answer is clearly another one under it."""

    def add(self, asked: OpsQuestion, world: World) -> None:
        retriever = Retriever(asked.documents)
        found = {document.id for document in retriever.search(asked.question, 2)}
        for query, wanted in asked.queries:
            self.needed += 1
            self.by_question += wanted in found
            self.by_query += wanted in {document.id for document in retriever.search(query, 2)}
        self.tasks += 1
        metrics = [asked.program.metric, *([asked.program.second] if asked.program.second else [])]
        self.with_rival += any(world.rivals(metric) for metric in metrics)
        self.rival_differs += "rival" in asked.wrong

    def to_json(self) -> dict[str, Any]:
        return {
            "definitions_needed": self.needed,
            "recall_at_2_by_question": _share(self.by_question, self.needed),
            "recall_at_2_by_expert_query": _share(self.by_query, self.needed),
            "tasks_with_a_rival_definition": _share(self.with_rival, self.tasks),
            "tasks_whose_answer_a_rival_changes": _share(self.rival_differs, self.tasks),
        }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def data_card(manifest: dict[str, Any], example: Task | None) -> str:
    """README.md of a built folder, from its manifest and one task."""
    splits: dict[str, Any] = manifest["splits"]
    lines = [
        "# Operations data",
        "",
        f"Built by `agentic build` {manifest['version']} with seed {manifest['seed']}, language {manifest['language']}."
        " Every answer was computed twice: looked up in dense arrays, and executed by the expert's code in the sandbox"
        " of the environment; its observations are what a model sees. Nothing was written by a language model.",
        "",
        "| file | tasks | languages | difficulty | sha256 |",
        "|---|---|---|---|---|",
    ]
    for name, one in splits.items():
        spoken = ", ".join(f"{count} {language}" for language, count in one["languages"].items())
        hard = ", ".join(f"{count} {word}" for word, count in one["difficulties"].items())
        lines.append(f"| {name}.jsonl | {one['tasks']} | {spoken} | {hard} | `{one['sha256'][:12]}` |")
    kinds = sorted({category for one in splits.values() for category in one["categories"]})
    lines += ["", "Tasks by kind:", "", f"| kind | {' | '.join(splits)} |", f"|---|{'---|' * len(splits)}"]
    for kind in kinds:
        lines.append(f"| {kind} | {' | '.join(str(one['categories'].get(kind, 0)) for one in splits.values())} |")
    found = manifest["retrieval"]
    lines += [
        "",
        f"Programs shared by two files: {manifest['duplicates']['shared_between_splits']}. Programs twice in a file:"
        f" {manifest['duplicates']['inside_splits']}. The identity of a task is its canonical program"
        " (`metadata.program`), not its sentence.",
        "",
        f"The needed definition is among the first two documents for {found['recall_at_2_by_question']:.1%} of the"
        f" questions as they stand, and for {found['recall_at_2_by_expert_query']:.1%} of the experts' queries."
        f" {found['tasks_whose_answer_a_rival_changes']:.1%} of the tasks have another answer under a rival definition of"
        " the same name, so they can only be answered after reading.",
        "",
        f"Dropped: {sum(manifest['drop_reasons'].values())}"
        + "".join(f"; {count} {reason}" for reason, count in manifest["drop_reasons"].items())
        + ".",
        "",
        "Tables: "
        + ", ".join(f"`{name}`" for name in manifest["tables"])
        + ". "
        + (
            "They are the user's own (dates got a column with their month)."
            if manifest["own_tables"]
            else "They are generated, and stand for no real company."
        ),
    ]
    if example is not None:
        lines += ["", f"An example: *{example.question}* - {example.answer}", ""]
    lines += ["Check it with `agentic validate --data .`, turn it into an SFT set with `agentic dataset`.", ""]
    return "\n".join(lines)
