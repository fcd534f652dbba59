"""Means over everything a step saw: sums and counts, so that micro-batches and processes add up to the true mean.

(The mean of one process, or a mean of means, is another number.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class Sums:
    """Named sums with their counts."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[float, float]] = {}
        self.largest: dict[str, float] = {}

    def add(self, name: str, value: float, count: float = 1.0) -> None:
        """Add `value`, which is itself a sum over `count` things (0: a total, of which no mean is taken).

        What is no finite number is left out of both.
        """
        if math.isfinite(value):
            total, number = self.held.get(name, (0.0, 0.0))
            self.held[name] = (total + value, number + count)

    def top(self, name: str, value: float) -> None:
        """Keep the largest value."""
        if math.isfinite(value):
            self.largest[name] = max(value, self.largest.get(name, value))

    def merge(self, others: Iterable[Sums]) -> Sums:
        """A new one with everything of this and the others."""
        merged = Sums()
        for one in (self, *others):
            for name, (value, count) in one.held.items():
                merged.add(name, value, count)
            for name, value in one.largest.items():
                merged.top(name, value)
        return merged

    def total(self, name: str) -> float:
        return self.held.get(name, (0.0, 0.0))[0]

    def mean(self, name: str) -> float | None:
        """None where nothing was counted."""
        value, count = self.held.get(name, (0.0, 0.0))
        return value / count if count else None

    def values(self) -> dict[str, float]:
        """Everything by name: means, totals, largest values."""
        means = {name: value / count if count else value for name, (value, count) in self.held.items()}
        return means | self.largest
