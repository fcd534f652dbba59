"""Texts without case, width and punctuation, and where one stands in another."""

from __future__ import annotations

import re
import unicodedata


def fold(text: str) -> str:
    """Case, width and punctuation removed; a point between digits stays, as do letters of every script."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    text = re.sub(r"(?<![\d])\.|\.(?!\d)", " ", text)
    text = re.sub(r"[^\w.+#]|_", " ", text)
    return " ".join(text.split())


NEAR = 120
"""Characters beside a place that can change what it says; a longer look back would cost quadratic time on a dump."""


def ahead(text: str, place: int) -> str:
    """The last NEAR characters before a place."""
    return text[max(0, place - NEAR) : place]


def behind(text: str, place: int) -> str:
    """The NEAR characters from a place on."""
    return text[place : place + NEAR]


def mentions(folded: str, form: str) -> list[tuple[int, int]]:
    """Spans of a folded form in a folded text, at word boundaries for Latin letters and digits."""
    if not form:
        return []
    left = r"(?<![a-z0-9])" if re.match(r"[a-z0-9]", form) else ""
    right = r"(?![a-z0-9])" if re.search(r"[a-z0-9]$", form) else ""
    return [m.span() for m in re.finditer(left + re.escape(form) + right, folded)]
