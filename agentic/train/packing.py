"""Packing by tokens, with shared prompt prefixes stored once.

A group is [prefix, suffix 1, suffix 2, ...]: examples over the same table share their system text and card, so those
tokens are computed once. A row is one or more groups. A token attends, within its group and causally, to the prefix
and to its own suffix; positions restart after the prefix. Each example so sees exactly what it would see alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

IGNORED = -100
MIN_PREFIX = 48
"""Shorter shared prefixes are not worth a group."""
MAX_GROUP = 8
"""Examples per group: more would make the gradient of a batch one table's gradient."""


@dataclass(frozen=True)
class Tokens:
    """One tokenised example. `labels[i]` is `ids[i]` where it is trained, else -100; labels[0] is always -100."""

    ids: list[int]
    labels: list[int]
    key: int = -1
    """Who it is, for those who look up more about it; the row that holds it says so in `keys`."""

    @classmethod
    def from_mask(cls, ids: list[int], mask: list[int], key: int = -1) -> Tokens:
        """The first token has no predecessor that could predict it, so it is never trained."""
        labels = [token if trained else IGNORED for token, trained in zip(ids, mask, strict=True)]
        return cls(ids, [IGNORED, *labels[1:]], key)

    @property
    def trained(self) -> int:
        return sum(label != IGNORED for label in self.labels)

    @property
    def shareable(self) -> int:
        """How many leading tokens may be shared: none is trained, and neither is the token after them.

        (The hidden state of the last shared token predicts the first token of one suffix only by accident.)
        """
        first = next((index for index, label in enumerate(self.labels) if label != IGNORED), len(self.ids))
        return max(0, first - 1)


@dataclass
class Row:
    """One packed sequence of length L."""

    ids: list[int]
    labels: list[int]
    positions: list[int]
    groups: list[int]
    """Group of each token, from 1."""
    segments: list[int]
    """0: prefix of the group; k >= 1: its k-th example."""
    keys: list[int] = field(default_factory=list)
    """Of the examples in the order in which they stand: their trained tokens follow one another in this order."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Group:
    """Examples that share their first `prefix` tokens."""

    examples: list[Tokens]
    prefix: int

    def __len__(self) -> int:
        return self.prefix + sum(len(example.ids) - self.prefix for example in self.examples)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest prefix that both may share."""
    limit = min(a.shareable, b.shareable)
    low, high = 0, limit
    # Slices compare in C: bisection beats a Python loop over tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if a.ids[low:middle] == b.ids[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def make_groups(examples: Sequence[Tokens], share_prefix: bool, max_tokens: int, seed: int) -> list[Group]:
    """Group examples that share a long prefix (about the same card), at most MAX_GROUP and `max_tokens` each."""
    generator = random.Random(seed)
    if not share_prefix:
        return [Group([example], 0) for example in examples]
    groups: list[Group] = []
    for cluster in _clusters(examples):
        # Neighbours in sorted order ask almost the same question: mix them.
        generator.shuffle(cluster)
        members = [cluster[0]]
        prefix = cluster[0].shareable
        for example in cluster[1:]:
            shared = min(prefix, common_prefix(members[0], example))
            grown = Group([*members, example], shared)
            if shared >= MIN_PREFIX and len(grown.examples) <= MAX_GROUP and len(grown) <= max_tokens:
                members, prefix = grown.examples, shared
            else:
                groups.append(_group(members, prefix))
                members, prefix = [example], example.shareable
        groups.append(_group(members, prefix))
    return groups


def _group(members: list[Tokens], prefix: int) -> Group:
    return Group(members, prefix if len(members) > 1 else 0)


def _clusters(examples: Sequence[Tokens]) -> list[list[Tokens]]:
    """Runs of the sorted examples, cut where neighbours share clearly less than those around them do."""
    if not examples:
        return []
    ordered = sorted(examples, key=lambda example: example.ids)
    shared = [common_prefix(a, b) for a, b in pairwise(ordered)]
    clusters = [[ordered[0]]]
    for index, example in enumerate(ordered[1:]):
        around = max([*shared[max(0, index - 1) : index], *shared[index + 1 : index + 2]], default=0)
        if shared[index] < max(MIN_PREFIX, 0.75 * around):
            clusters.append([example])
        else:
            clusters[-1].append(example)
    return clusters


def make_row(groups: Sequence[Group]) -> Row:
    """Lay groups out one after another."""
    row = Row([], [], [], [], [])
    for number, group in enumerate(groups, start=1):
        parts = [(0, group.examples[0], 0, group.prefix)]
        parts += [(k, example, group.prefix, len(example.ids)) for k, example in enumerate(group.examples, start=1)]
        row.keys += [example.key for example in group.examples]
        for segment, example, start, end in parts:
            row.ids += example.ids[start:end]
            row.labels += example.labels[start:end]
            row.positions += range(start, end)
            row.groups += [number] * (end - start)
            row.segments += [segment] * (end - start)
    return row


def make_batches(
    examples: Sequence[Tokens], tokens_per_batch: int, share_prefix: bool = True, seed: int = 0
) -> list[list[Row]]:
    """Pack examples into rows and rows into batches of at most `tokens_per_batch` tokens, padding included.

    A single example longer than the budget is a batch of its own. Same seed, same batches.
    """
    groups = make_groups(examples, share_prefix, tokens_per_batch, seed)
    random.Random(seed).shuffle(groups)
    rows = [make_row(members) for members in _fill(groups, tokens_per_batch)]
    # Rows of about the same length stand together, so that little is padded.
    rows.sort(key=len)
    batches: list[list[Row]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * len(row) <= tokens_per_batch:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _fill(groups: Sequence[Group], capacity: int) -> list[list[Group]]:
    """First fit in the given (shuffled) order, over a bounded number of open rows."""
    full: list[list[Group]] = []
    open_rows: list[tuple[int, list[Group]]] = []
    for group in groups:
        size = len(group)
        for index, (used, members) in enumerate(open_rows):
            if used + size <= capacity:
                open_rows[index] = (used + size, [*members, group])
                break
        else:
            open_rows.append((size, [group]))
            if len(open_rows) > 32:
                fullest = max(range(len(open_rows)), key=lambda index: open_rows[index][0])
                full.append(open_rows.pop(fullest)[1])
    return full + [members for _, members in open_rows]


def segment_bounds(row: Row) -> list[tuple[int, int, int, int]]:
    """(prefix start, prefix end, start, end) of every segment in order; a segment without a prefix has 0, 0."""
    bounds: list[tuple[int, int, int, int]] = []
    start, prefix = 0, (0, 0)
    for index in range(1, len(row) + 1):
        if index < len(row) and (row.groups[index], row.segments[index]) == (row.groups[start], row.segments[start]):
            continue
        if row.segments[start] == 0:
            bounds.append((0, 0, start, index))
            prefix = (start, index)
        else:
            shares = prefix[1] > prefix[0] and row.groups[prefix[0]] == row.groups[start]
            bounds.append((*(prefix if shares else (0, 0)), start, index))
        start = index
    return bounds


def collate(rows: Sequence[Row], pad_id: int) -> dict[str, torch.Tensor]:
    """input_ids, labels, position_ids: int64 [B, L] of B rows padded to L; padding has label -100.

    Who sees whom is not in here: `segment_bounds` says it to train/attention.py.
    """
    import torch

    length = max(len(row) for row in rows)

    def stack(field: str, fill: int) -> torch.Tensor:
        values: list[list[int]] = [getattr(row, field) for row in rows]
        return torch.tensor([value + [fill] * (length - len(value)) for value in values], dtype=torch.long)

    return {
        "input_ids": stack("ids", pad_id),
        "labels": stack("labels", IGNORED),
        "position_ids": stack("positions", 0),
    }
