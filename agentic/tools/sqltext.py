"""SQL as text: its tokens, whether it is one query, and which of its words deserve a hint. Nothing is executed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from agentic.tables.names import quoted

ALLOWED = ("SELECT", "WITH", "VALUES", "EXPLAIN")
"""First words of the statements that run."""

_LOOKING = ("SHOW", "DESCRIBE", "DESC", "PRAGMA")
_FUNCTIONS = {"SUM", "TOTAL", "AVG", "MEAN", "MIN", "MAX", "MEDIAN", "STDDEV", "COUNT", "ROUND", "ABS"}
_TEXT_SENSITIVE = {"SUM", "TOTAL", "AVG", "MEAN", "MIN", "MAX"}
_AFTER_TERM = {"", ",", ")", "ASC", "DESC", "NULLS", "LIMIT", "COLLATE", "OFFSET", "UNION", "ROWS", "RANGE"}

Dialect = Literal["sqlite", "duckdb"]

_COMMENT = {"sqlite": r"--[^\n]*|/\*.*?(?:\*/|\Z)", "duckdb": r"--[^\n\r]*|/\*"}
_STRING = {
    "sqlite": "",
    "duckdb": r"e'(?:[^'\\]+|''|\\.)*+(?:'|\Z) | (?P<dollar>\$(?:[^\W\d]\w*)?\$).*?(?:(?-i:(?P=dollar))|\Z) |",
}
_BRACKETS = {"sqlite": r"| \[[^\]]*(?:\]|\Z)", "duckdb": ""}  # to DuckDB, a list


def _token_pattern(dialect: Dialect) -> re.Pattern[str]:
    # A part that is not closed goes on to the end; the engine then says what is wrong with it.
    return re.compile(
        rf"""(?P<space>\s+|{_COMMENT[dialect]})
        |(?P<string>{_STRING[dialect]} '(?:[^']+|'')*+(?:'|\Z))
        |(?P<name>"(?:[^"]+|"")*+(?:"|\Z) | `(?:[^`]+|``)*+(?:`|\Z) {_BRACKETS[dialect]} | [^\W\d][\w$]*)
        |(?P<number>(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)
        |(?P<symbol>.)""",
        re.S | re.X | re.I,
    )


_TOKENS: dict[Dialect, re.Pattern[str]] = {"sqlite": _token_pattern("sqlite"), "duckdb": _token_pattern("duckdb")}
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class StatementError(ValueError):
    """The text is not one query."""


class Token(NamedTuple):
    kind: str
    """string, name, number or symbol."""
    text: str
    start: int

    @property
    def word(self) -> str:
        """Upper case, for keywords and symbols; a quoted name is no keyword."""
        return self.text.upper()

    @property
    def name(self) -> str:
        """The name without its quotes."""
        first = self.text[0]
        if self.kind == "name" and first in '"`[':
            return self.text[1:-1] if first == "[" else self.text[1:-1].replace(first * 2, first)
        return self.text


def tokens(query: str, dialect: Dialect = "sqlite") -> list[Token]:
    """Without spaces and comments. To DuckDB, comments nest, and $$ or $word$ encloses a text."""
    pattern = _TOKENS[dialect]
    found = []
    place = 0
    while match := pattern.match(query, place):
        place = match.end()
        kind = match.lastgroup
        if kind != "space":
            found.append(Token(str(kind), match.group(), match.start()))
        elif match.group() == "/*":
            place = _comment_end(query, place)
    return found


def _comment_end(query: str, place: int) -> int:
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(query, place)
        if edge is None:
            return len(query)
        depth += 1 if edge.group() == "/*" else -1
        place = edge.end()
    return place


def one_query(query: str, dialect: Dialect = "sqlite") -> str:
    """The single statement in `query`, without the semicolon that ends it.

    Raises StatementError when there is none, more than one, or one that does more than read.

    >>> one_query("-- all\\nSELECT ';' ; ")
    "SELECT ';' "
    """
    if "\0" in query:
        raise StatementError("the query holds a NUL character")
    found = tokens(query, dialect)
    while found and found[0].text == ";":
        del found[0]
    ends = [position for position, token in enumerate(found) if token.text == ";"]
    statement = found[: ends[0]] if ends else found
    if not statement:
        raise StatementError("the query is empty; write one SELECT")
    if any(token.text != ";" for token in found[len(statement) :]):
        raise StatementError("more than one statement; send them one at a time")
    first = next((token.word for token in statement if token.text != "("), "")
    if first not in ALLOWED:
        shown = first if first.isalpha() and len(first) < 20 else "this"
        raise StatementError(f"{shown} cannot be run: only SELECT is allowed (also WITH, VALUES and EXPLAIN)")
    return query[statement[0].start : found[len(statement)].start if ends else len(query)]


def is_look_around(query: str) -> bool:
    """Whether the statement asks which tables or columns there are, in another way than by SELECT."""
    found = tokens(query)
    return bool(found) and (found[0].word in _LOOKING or found[0].text == ".")


def without_double_quotes(query: str) -> str:
    """Every "name" as `name`: in double quotes sqlite takes a name that is no column for a text, and says nothing.

    >>> without_double_quotes('''select "a""b", '"' from t -- "x" ''')
    'select `a"b`, \\'"\\' from t -- "x" '
    """

    def change(match: re.Match[str]) -> str:
        text = match.group()
        if match.lastgroup != "name" or text[0] != '"' or len(text) < 2 or text[-1] != '"':
            return text
        return "`" + text[1:-1].replace('""', '"').replace("`", "``") + "`"

    return _TOKENS["sqlite"].sub(change, query)


def as_written(title: str, query: str) -> str:
    """Title of a result column as the model wrote it: sqlite makes it from the text that was sent.

    >>> as_written("max(`a b`)", 'select max("a b") from t')
    'max("a b")'
    """
    if "`" in query:  # the model's own
        return title
    return re.sub(r"`([^`]*)`", r'"\1"', title) if "(" in title or " " in title else title


def is_double_quoted(name: str, query: str) -> bool:
    """Whether `query` has `name` in double quotes: it may have been meant as a text."""
    return any(token.kind == "name" and token.text[0] == '"' and token.name == name for token in tokens(query))


def number_names(query: str, columns: Iterable[str], dialect: Dialect = "sqlite") -> list[str]:
    """Columns with a number for a name which the query has without quotes where a column belongs.

    >>> number_names("select sum(2023) from t where year in (2024) limit 2023", ["2023", "2024"])
    ['2023']
    """
    names = set(columns)
    found = tokens(query, dialect)
    hits = []
    for position, token in enumerate(found):
        if token.kind != "number" or token.text not in names:
            continue
        before = found[position - 1].word if position else ""
        opener = found[position - 2].word if position > 1 else ""
        if before in ("SELECT", "BY", "DISTINCT") or (before == "(" and opener in _FUNCTIONS):
            hits.append(token.text)
    return list(dict.fromkeys(hits))


def unquoted_names(query: str, names: Iterable[str], near: str | None = None, dialect: Dialect = "sqlite") -> list[str]:
    """Those of `names` that stand in the query without the quotes they need. A keyword does so where it is meant as one,
    too: it counts only at `near`, the word at which the engine stopped, or right before it ("": the end; None: nowhere).

    >>> unquoted_names("select unit price from order order by a", ["unit price", "order", "by", "a"], "order")
    ['unit price', 'order']
    """
    found = tokens(query, dialect)
    lower = query.lower()
    stops = [place for place, token in enumerate(found) if token.text == near] if near else [len(found)]
    at_stop = (
        {token.word for place in stops for token in found[max(place - 1, 0) : place + 1]} if near is not None else set()
    )
    starts = {token.start: place for place, token in enumerate(found)}
    hits = []
    for name in names:
        parts = tokens(name, dialect)
        if name.lower() not in lower or quoted(name) == name or any(part.kind == "string" for part in parts):
            continue
        if len(parts) == 1 and parts[0].kind != "symbol":
            if parts[0].kind == "name" and parts[0].text == name and name.upper() in at_stop:
                hits.append(name)
            continue
        begin = lower.find(name.lower())
        while begin >= 0:
            place = starts.get(begin)
            if place is not None and [t.word for t in found[place : place + len(parts)]] == [t.word for t in parts]:
                hits.append(name)
                break
            begin = lower.find(name.lower(), begin + 1)
    return hits


def compared_names(query: str, dialect: Dialect = "sqlite") -> list[str]:
    """Names that stand alone in an aggregate which compares or adds, or in ORDER BY; not those of the query itself (AS).

    >>> compared_names('select max(t."unit price") from t order by b desc, cast(c as real)')
    ['unit price', 'b']
    """
    found = tokens(query, dialect)
    given = {found[i + 1].name.lower() for i, token in enumerate(found[:-1]) if token.word == "AS"}
    names = [*_aggregated(found), *_sorted(found)]
    return list(dict.fromkeys(name for name in names if name.lower() not in given))


def _column(found: Sequence[Token], position: int) -> tuple[str, int]:
    """Name of the column, with or without its table, that begins at `position`, and where it ends; "" when there is none."""
    while position + 2 < len(found) and found[position].kind == "name" and found[position + 1].text == ".":
        position += 2
    if position < len(found) and found[position].kind == "name":
        return found[position].name, position + 1
    return "", position


def _word(found: Sequence[Token], position: int) -> str:
    return found[position].word if position < len(found) else ""


def _aggregated(found: Sequence[Token]) -> list[str]:
    names = []
    for position, token in enumerate(found):
        if token.word in _TEXT_SENSITIVE and _word(found, position + 1) == "(":
            name, end = _column(found, position + 2 + (_word(found, position + 2) == "DISTINCT"))
            if name and _word(found, end) == ")":
                names.append(name)
    return names


def _sorted(found: Sequence[Token]) -> list[str]:
    names = []
    for position, token in enumerate(found):
        if token.word != "ORDER" or _word(found, position + 1) != "BY":
            continue
        depth, start = 0, position + 2
        for place in range(start, len(found)):
            word = _word(found, place)
            depth += (word == "(") - (word == ")")
            if depth < 0 or (depth == 0 and word in ("LIMIT", "ROWS", "RANGE")):
                break
            if place == start or (depth == 0 and _word(found, place - 1) == ","):
                name, end = _column(found, place)
                if name and _word(found, end) in _AFTER_TERM:
                    names.append(name)
    return names
