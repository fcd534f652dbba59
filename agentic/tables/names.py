"""Names of columns and tables: how SQL has to spell them, and which one was probably meant."""

from __future__ import annotations

import difflib
import re
import sqlite3
from functools import lru_cache


def close_columns(wanted: str, columns: list[str]) -> list[str]:
    """Column names that `wanted` may have meant, nearest first: compared without case, spaces and punctuation."""

    def bare(text: str) -> str:
        return "".join(character for character in text.lower() if character.isalnum())

    spelled: dict[str, str] = {}
    for column in columns:
        spelled.setdefault(bare(column), column)
    if bare(wanted) in spelled:
        return [spelled[bare(wanted)]]
    near = difflib.get_close_matches(bare(wanted), list(spelled), n=3, cutoff=0.6)
    return [spelled[key] for key in near]


def quote(name: str) -> str:
    """In double quotes, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=4096)
def quoted(name: str) -> str:
    """As SQL must spell the name: in double quotes where it is a keyword, or no plain word.

    >>> quoted("city"), quoted("order"), quoted("unit price"), quoted("2023"), quoted("订单")
    ('city', '"order"', '"unit price"', '"2023"', '订单')
    """
    if not re.fullmatch(r"[^\W\d]\w*", name):
        return quote(name)
    # sqlite's list of keywords changes with its version and cannot be asked for: try the name.
    connection = sqlite3.connect(":memory:")
    try:
        found = connection.execute(f"SELECT {name} FROM (SELECT 'it' AS {quote(name)})").fetchone()
    except sqlite3.Error:
        return quote(name)
    finally:
        connection.close()
    return name if found == ("it",) else quote(name)
