"""BM25 over a task's documents, for Chinese and English without a tokenizer.

Chinese has no spaces: its runs are cut into character bigrams. Latin words are lower-cased, snake_case and camelCase
names are matched whole and by their parts.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from agentic.records import Document

K1 = 1.5
B = 0.75
TITLE_WEIGHT = 3
"""A word of the title counts as much as this many of the text."""

_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af\U00020000-\U0003ffff"
_RUN = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def terms(text: str) -> list[str]:
    """Index terms of a text, in order, repeats kept."""
    found: list[str] = []
    for run in _RUN.findall(unicodedata.normalize("NFKC", text)):
        if re.match(f"[{_CJK}]", run):
            found += [run[i : i + 2] for i in range(len(run) - 1)] or [run]
            continue
        parts = [_stem(part.lower()) for piece in run.split("_") for part in _CAMEL.split(piece) if part]
        found += parts
        if len(parts) > 1:
            found.append(run.lower())
    return found


def _stem(word: str) -> str:
    """Plural and singular meet; nothing more, so that names stay apart."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


class Retriever:
    """An index over documents; building it reads each document once."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = list(documents)
        self._counts: list[Counter[str]] = []
        for document in self._documents:
            counts = Counter(terms(document.text))
            for term in terms(document.title):
                counts[term] += TITLE_WEIGHT
            self._counts.append(counts)
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._mean_length = sum(self._lengths) / len(self._lengths) if self._lengths else 0.0
        self._holding = Counter(term for counts in self._counts for term in counts)

    def search(self, query: str, top_k: int = 1) -> list[Document]:
        """At most `top_k` documents that share a term with the query, best first; ties keep the documents' order."""
        wanted = set(terms(query))
        scores = [self._score(wanted, index) for index in range(len(self._documents))]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        return [self._documents[index] for index in order[: max(top_k, 0)] if scores[index] > 0]

    def _score(self, wanted: set[str], index: int) -> float:
        counts, total = self._counts[index], 0.0
        for term in sorted(
            wanted & counts.keys()
        ):  # sorted: a set's order, and so the rounding, changes with the hash seed
            holding = self._holding[term]
            rarity = math.log(1 + (len(self._documents) - holding + 0.5) / (holding + 0.5))
            damping = K1 * (1 - B + B * self._lengths[index] / self._mean_length)
            total += rarity * counts[term] * (K1 + 1) / (counts[term] + damping)
        return total
