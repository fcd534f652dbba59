"""Multiset equality under a tolerance: every stated item with a gold item of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
MAX_AUGMENTED = 300
"""Longer lists are paired greedily: exact there but for numbers nearer to each other than their tolerance."""


def unpaired(items: Sequence[A], gold: Sequence[B], same: Callable[[A, B], bool]) -> int | None:
    """Place of the first item that cannot be paired, None when all can (Kuhn's augmenting paths)."""
    partner: dict[int, int] = {}  # gold -> item

    def place(item: int, tried: set[int]) -> bool:
        fits = [g for g in range(len(gold)) if g not in tried and same(items[item], gold[g])]
        for g in fits:
            if g not in partner:
                partner[g] = item
                return True
        if len(gold) > MAX_AUGMENTED:
            return False
        for g in fits:
            if g not in tried:
                tried.add(g)
                if place(partner[g], tried):
                    partner[g] = item
                    return True
        return False

    return next((item for item in range(len(items)) if not place(item, set())), None)
