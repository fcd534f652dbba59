"""The batches of a training: tokenised at the start where the data is small, line by line while training where it is not.

Both give `len(batches)` places an epoch, a multiple of the batches of an optimizer step, and `batches.rows(epoch, place)`,
the packed rows of one. What a place holds depends on the data, the seed and the batches of a step only: not on how many
processes share the step, how many workers tokenise, or where a run was resumed.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentic.errors import UserError
from agentic.formats import Parsed, iter_examples
from agentic.model.chat import Renderer
from agentic.train.lines import Lines
from agentic.train.packing import IGNORED, Group, Row, Tokens, make_batches, make_groups, make_row

EMPTY = Row([0], [IGNORED], [0], [1], [1])
"""A row without a trained token: fills the last step of an epoch, so that every process has a batch in every step."""
SAMPLE_EPOCH = 1 << 32
"""Its own stream of random numbers: a sample must not be the beginning of the first epoch."""
_SAMPLED = 256
"""Lines tokenised to estimate what the others hold."""
_FILL = 0.9
"""Planned share of the token budget: estimates miss by a few per cent."""
_MOST_PLACES = 32
"""Batches that one unit of a streamed file is packed into: more would keep more tokens in memory."""


class Batches(Protocol):
    """What a trainer needs of its data."""

    examples: int
    """Examples, as far as they are known: those of streamed data include what will be dropped."""
    tools: list[dict[str, Any]]
    """Schemas of the tools that occur, by first occurrence (streamed: in the sample)."""

    def __len__(self) -> int: ...

    def rows(self, epoch: int, place: int) -> list[Row]: ...

    def describe(self, max_length: int) -> list[str]: ...


@dataclass(frozen=True)
class Corpus:
    """Tokenised data."""

    examples: list[Tokens]
    tools: list[dict[str, Any]]
    """Schemas of every tool that occurs, by first occurrence."""
    too_long: int
    """Dropped: longer than max_length."""
    untrained: int
    """Dropped: no trained token (all turns have weight 0)."""

    @property
    def tokens(self) -> int:
        return sum(len(example.ids) for example in self.examples)

    @property
    def trained(self) -> int:
        return sum(example.trained for example in self.examples)


def load_corpus(paths: tuple[Path, ...], renderer: Renderer, max_length: int) -> Corpus:
    """Read and tokenise all; an example that the template cannot render is named with file and line."""
    rows = (row for path in paths for row in iter_examples(path))
    return _tokenise(rows, renderer, max_length, ", ".join(map(str, paths)))


def _tokenise(rows: Iterator[Parsed], renderer: Renderer, max_length: int, source: str) -> Corpus:
    examples: list[Tokens] = []
    tools: dict[str, dict[str, Any]] = {}
    dropped: Counter[str] = Counter()
    for row in rows:
        for tool in row.example.tools:
            tools.setdefault(tool.name, tool.schema())
        encoded = renderer.encode_row(row)
        tokens = Tokens.from_mask(encoded.ids, encoded.mask)
        if not tokens.trained:
            dropped["untrained"] += 1
        elif len(tokens.ids) > max_length:
            dropped["too long"] += 1
        else:
            examples.append(tokens)
    if not examples:
        raise UserError(
            f"{source}: no example left to train on ({dropped['too long']} longer than "
            f"{max_length} tokens, {dropped['untrained']} without trained tokens); raise --max_length or look with "
            "agentic data check"
        )
    return Corpus(examples, list(tools.values()), dropped["too long"], dropped["untrained"])


def shuffled(count: int, seed: int, epoch: int) -> Any:
    """A permutation of 0..count-1 for one epoch, int64 [count]."""
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(count)


class LoadedBatches:
    """Everything tokenised and packed once; every epoch visits the batches in another order."""

    def __init__(
        self, corpus: Corpus, tokens_per_batch: int, share_prefix: bool, seed: int, batches_per_step: int
    ) -> None:
        self.corpus = corpus
        self.examples, self.tools = len(corpus.examples), corpus.tools
        self.batches = make_batches(corpus.examples, tokens_per_batch, share_prefix, seed)
        self._places = -(-len(self.batches) // batches_per_step) * batches_per_step
        self._seed = seed
        self._current: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._places

    def rows(self, epoch: int, place: int) -> list[Row]:
        if place >= len(self.batches):
            return [EMPTY]
        if self._current[0] != epoch:
            self._current = (epoch, shuffled(len(self.batches), self._seed, epoch))
        return self.batches[self._current[1][place]]

    def describe(self, max_length: int) -> list[str]:
        corpus, batches = self.corpus, self.batches
        computed = sum(len(row) for batch in batches for row in batch)
        padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
        return [
            f"{len(corpus.examples)} examples, {corpus.tokens} tokens, {corpus.trained} trained "
            f"({corpus.trained / corpus.tokens:.1%}); dropped {corpus.too_long} longer than {max_length} tokens, "
            f"{corpus.untrained} without trained tokens",
            f"packed into {computed} tokens ({computed / corpus.tokens:.0%}), padding {1 - computed / padded:.1%}; "
            f"{len(batches)} batches",
        ]


class StreamedBatches:
    """Lines are tokenised when their batch comes up.

    An epoch is a seeded permutation of the lines, cut into units of equal bytes. A unit is tokenised as a whole and packed
    into `places` batches of about the same size. Units stand in columns, one for each batch of an optimizer step: the
    batches of a unit are used in consecutive steps, always by the same process and worker, so no line is tokenised twice.
    """

    def __init__(
        self,
        lines: Lines,
        renderer: Renderer,
        max_length: int,
        tokens_per_batch: int,
        share_prefix: bool,
        seed: int,
        batches_per_step: int,
    ) -> None:
        """Tokenises a sample of the lines to estimate tokens from bytes; the estimate decides the number of batches."""
        self.lines, self.renderer, self.max_length = lines, renderer, max_length
        self.budget, self.share_prefix, self.seed, self.columns = tokens_per_batch, share_prefix, seed, batches_per_step
        self.examples = len(lines)
        self._bytes = lines.lengths()
        self._sample, ratio = self._estimate()
        self.tools = self._sample.tools
        self.tokens = ratio * float(self._bytes.sum())
        column = self.tokens / (_FILL * self.budget * self.columns)  # batches, if every column had its share
        self.rounds = math.ceil(column / _MOST_PLACES)
        self.places = math.ceil(column / self.rounds)
        self._epoch: tuple[int, Any, Any] = (-1, None, None)
        self._open: dict[int, tuple[tuple[int, int], list[list[Row]]]] = {}

    def __len__(self) -> int:
        return self.rounds * self.places * self.columns

    def rows(self, epoch: int, place: int) -> list[Row]:
        """Raises UserError that names file and line of a line that is no example."""
        step, column = divmod(place, self.columns)
        turn, slot = divmod(step, self.places)
        key = (epoch, turn * self.columns + column)
        if column not in self._open or self._open[column][0] != key:
            self._open[column] = (key, self._pack(self._unit(*key)))
        return self._open[column][1][slot]

    def describe(self, max_length: int) -> list[str]:
        sample = self._sample
        seen = len(sample.examples) + sample.too_long + sample.untrained
        return [
            f"{len(self.lines)} lines, tokenised while training; about {self.tokens:.2g} tokens to compute, "
            f"{sample.trained / sample.tokens:.1%} of them trained, {sample.too_long / seen:.1%} of the lines longer than "
            f"{max_length} tokens (dropped), estimated from {seen} lines",
            f"{len(self)} batches",
        ]

    def _estimate(self) -> tuple[Corpus, float]:
        """A sample, and the tokens to compute for each byte of the files."""
        count = min(_SAMPLED, len(self.lines))
        chosen = shuffled(len(self.lines), self.seed, SAMPLE_EPOCH)[:count].tolist()
        source = ", ".join(map(str, self.lines.paths))
        sample = _tokenise((self.lines.example(index) for index in chosen), self.renderer, self.max_length, source)
        # Grouped as units will be: many examples at once would share more than those of a unit do.
        size = max(1, int(_MOST_PLACES * _FILL * self.budget * len(sample.examples) / sample.tokens))
        computed = 0
        for start in range(0, len(sample.examples), size):
            part = sample.examples[start : start + size]
            computed += sum(map(len, make_groups(part, self.share_prefix, self.budget, self.seed)))
        return sample, computed / float(self._bytes[chosen].sum())

    def _unit(self, epoch: int, unit: int) -> list[int]:
        """Line numbers of a unit."""
        import numpy as np

        if self._epoch[0] != epoch:
            order = shuffled(len(self.lines), self.seed, epoch)
            ends = np.cumsum(self._bytes[order], dtype=np.int64)
            units = self.rounds * self.columns
            cuts = np.searchsorted(ends, np.arange(units + 1) * (int(ends[-1]) / units), side="left")
            cuts[-1] = len(order)
            # 4 bytes a line are kept for the epoch.
            self._epoch = (epoch, order.astype(np.uint32), cuts)
        _, order, cuts = self._epoch
        chosen: list[int] = order[cuts[unit] : cuts[unit + 1]].tolist()
        return chosen

    def _tokens(self, index: int) -> Tokens | None:
        """One line; None where it is dropped."""
        example = self.lines.example(index).example
        try:
            encoded = self.renderer.encode(example.messages, example.tools)
        except UserError as error:
            raise UserError(f"{self.lines.where(index)}: {error}") from None
        tokens = Tokens.from_mask(encoded.ids, encoded.mask)
        return tokens if tokens.trained and len(tokens.ids) <= self.max_length else None

    def _pack(self, chosen: list[int]) -> list[list[Row]]:
        """The batches of a unit: the largest group first, each into the batch that is least full."""
        examples = [tokens for index in chosen if (tokens := self._tokens(index)) is not None]
        groups = make_groups(examples, self.share_prefix, self.budget, self.seed) if examples else []
        heap = [(0, slot) for slot in range(self.places)]
        members: list[list[Group]] = [[] for _ in range(self.places)]
        for group in sorted(groups, key=len, reverse=True):
            used, slot = heapq.heappop(heap)
            members[slot].append(group)
            heapq.heappush(heap, (used + len(group), slot))
        return [[make_row(found)] if found else [EMPTY] for found in members]
