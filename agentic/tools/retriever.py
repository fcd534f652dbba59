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
from functools import lru_cache

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


@lru_cache(maxsize=1024)
def _counted(title: str, text: str) -> Counter[str]:
    """Weighted terms of a document; the tasks of a data set share their documents. Not to be changed."""
    counts = Counter(terms(text))
    for term in terms(title):
        counts[term] += TITLE_WEIGHT
    return counts


@lru_cache(maxsize=1024)
def _names(title: str) -> tuple[frozenset[str], ...]:
    """Terms of each name in a title that lists several ("ROAS / return on ad spend")."""
    return tuple(frozenset(terms(name)) for name in re.split(r"\s/\s", title) if terms(name))


class Retriever:
    """An index over documents; building it reads each document once."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = list(documents)
        self._counts: list[Counter[str]] = []
        for document in self._documents:
            self._counts.append(_counted(document.title, document.text))
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
        """BM25, and once more the weight of the longest name of the title that stands in the query whole: "new users" means
        the document of that name, not "new user share"."""
        counts, total = self._counts[index], 0.0
        # sorted: a set's order, and so the rounding, changes with the hash seed
        for term in sorted(wanted & counts.keys()):
            damping = K1 * (1 - B + B * self._lengths[index] / self._mean_length)
            total += self._rarity(term) * counts[term] * (K1 + 1) / (counts[term] + damping)
        whole = [name for name in _names(self._documents[index].title) if name <= wanted]
        return total + max((sum(map(self._rarity, sorted(name))) for name in whole), default=0.0)

    def _rarity(self, term: str) -> float:
        holding = self._holding[term]
        return math.log(1 + (len(self._documents) - holding + 0.5) / (holding + 0.5))
