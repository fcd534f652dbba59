"""`agentic data check`: an SFT file as the trainer will see it."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentic.config import DataCheckConfig
from agentic.errors import MissingExtra
from agentic.formats import Parsed, iter_examples
from agentic.records import Message

if TYPE_CHECKING:
    from agentic.model.chat import Renderer

# Around the tokens that are trained; not found in ordinary text, and readable without colours.
OPEN, CLOSE = "⟦", "⟧"


@dataclass
class Structure:
    """What the rows hold, before any tokenizer."""

    rows: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    """Tool name -> calls."""
    turns: list[int] = field(default_factory=list)
    """Assistant turns per row."""
    untrained_turns: int = 0
    """Assistant turns of weight 0."""
    rows_without_loss: int = 0
    """Rows whose assistant turns all have weight 0."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Unknown field -> rows that have it; the trainer does not see them."""
    padded_rows: int = 0
    nulls: int = 0
    repeated: int = 0
    """Rows whose messages equal those of an earlier row."""
    unknown_tools: Counter[str] = field(default_factory=Counter)
    """Called, but not offered in the row."""
    unanswered: int = 0
    """Rows that end with a tool message: the model never learns to answer."""

    _seen: set[int] = field(default_factory=set)

    def add(self, parsed: Parsed) -> None:
        messages = parsed.example.messages
        turns = [message for message in messages if message.role == "assistant"]
        self.rows += 1
        self.forms[parsed.form] += 1
        self.roles.update(message.role for message in messages)
        self.turns.append(len(turns))
        self.untrained_turns += sum(turn.weight == 0 for turn in turns)
        self.rows_without_loss += all(turn.weight == 0 for turn in turns)
        self.dropped.update(parsed.dropped)
        self.padded_rows += parsed.nulls > 0
        self.nulls += parsed.nulls
        names = [call.function.name for turn in turns for call in turn.tool_calls or []]
        self.calls.update(names)
        offered = {tool.name for tool in parsed.example.tools}
        self.unknown_tools.update(name for name in names if name not in offered)
        self.unanswered += messages[-1].role == "tool"
        key = hash(tuple(_identity(message) for message in messages))
        self.repeated += key in self._seen
        self._seen.add(key)


def _identity(message: Message) -> tuple[str, ...]:
    calls = [f"{call.function.name}({call.function.arguments})" for call in message.tool_calls or []]
    return (message.role, message.content, *calls)


def run(config: DataCheckConfig) -> int:
    """Print the report. Exit code 0, or 1 when no row would be trained on."""
    rows = iter_examples(config.path)
    first = next(rows)
    renderer = load_renderer(config.model) if config.model else None
    structure, lengths = Structure(), Lengths(config.max_length)
    for parsed in itertools.chain([first], rows):
        structure.add(parsed)
        if renderer:
            lengths.add(renderer.encode_row(parsed).mask)
    print("\n".join(structure_lines(config.path, structure)))
    if renderer is None:
        print("tokens      not counted: name a tokenizer with --model (smollm2, a folder, or a Hugging Face id)")
        return int(structure.rows_without_loss == structure.rows)
    print("\n".join(lengths.lines()))
    print(f"\nfirst row, trained tokens between {OPEN} and {CLOSE}:\n")
    print(marked(renderer, first))
    return int(lengths.kept_trained == 0)


def structure_lines(path: Path, found: Structure) -> list[str]:
    """The report without a tokenizer, one fact a line; what asks for a look opens with "!"."""
    lines = [
        f"{path}",
        f"rows        {found.rows}: {_counts(found.forms)}",
        f"messages    {_counts(found.roles)}",
        f"turns       {min(found.turns)} to {max(found.turns)} assistant turns a row, "
        f"median {statistics.median(found.turns):g}; {found.untrained_turns} of weight 0 (context only)",
        f"tool calls  {_counts(found.calls) or 'none'}",
    ]
    warnings = {
        f"{found.rows_without_loss} rows have nothing to train: all their turns have weight 0": found.rows_without_loss,
        f"fields that are not read: {_counts(found.dropped)}": found.dropped,
        f"{found.nulls} null values in {found.padded_rows} rows (Arrow padding?): they are left out; "
        "arguments and tools written as JSON text avoid them": found.nulls,
        f"{found.repeated} rows repeat the messages of an earlier row": found.repeated,
        f"tools called but not offered in their row: {_counts(found.unknown_tools)}": found.unknown_tools,
        f"{found.unanswered} rows end with a tool result: no answer is learned from them": found.unanswered,
    }
    return lines + [f"! {text}" for text, present in warnings.items() if present]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


@dataclass
class Lengths:
    """Token counts of rendered rows."""

    max_length: int
    all: list[int] = field(default_factory=list)
    """Tokens of every row."""
    kept: int = 0
    """Tokens of the rows that are not too long."""
    kept_trained: int = 0
    """Trained tokens of those rows."""

    def add(self, mask: Sequence[int]) -> None:
        """Count one row; `mask` is 1 on its trained tokens."""
        self.all.append(len(mask))
        if len(mask) <= self.max_length:
            self.kept += len(mask)
            self.kept_trained += sum(mask)

    def lines(self) -> list[str]:
        ordered = sorted(self.all)
        at = {share: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.95)}
        long = sum(length > self.max_length for length in ordered)
        share = f"{self.kept_trained / self.kept:.1%}" if self.kept else "none"
        lines = [
            f"tokens      {sum(ordered)}; a row: median {at[0.5]}, 95 % up to {at[0.95]}, longest {ordered[-1]}",
            f"trained     {share} of the tokens of the rows that fit ({self.kept_trained} of {self.kept})",
        ]
        return lines + (
            [f"! {long} rows are longer than {self.max_length} tokens and would be dropped"] if long else []
        )


def load_renderer(model: str) -> Renderer:
    """The renderer of a model's tokenizer; an adapter without one uses its base model's."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingExtra("counting tokens", "train") from None
    from agentic.model.chat import Renderer
    from agentic.model.fetch import base_of_adapter, resolve
    from agentic.model.quiet import quiet_libraries

    quiet_libraries()
    folder = Path(resolve(model))
    if not (folder / "tokenizer_config.json").exists() and (folder / "adapter_config.json").exists():
        folder = Path(base_of_adapter(folder))
    return Renderer(AutoTokenizer.from_pretrained(folder))


def marked(renderer: Renderer, parsed: Parsed) -> str:
    """The rendered text of a row with its trained tokens between marks; control characters are escaped."""
    encoded = renderer.encode_row(parsed)
    text = ""
    for trained, pairs in itertools.groupby(zip(encoded.mask, encoded.ids, strict=True), key=lambda pair: pair[0]):
        part = printable(renderer.tokenizer.decode([token for _, token in pairs], skip_special_tokens=False))
        text += f"{OPEN}{part}{CLOSE}" if trained else part
    return text


def printable(text: str) -> str:
    """Text of unknown origin for a terminal: what could move the cursor or change colours is spelled out."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)
