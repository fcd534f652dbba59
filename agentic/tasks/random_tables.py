"""Random tables with varied names: the training ground of the general questions.

Real files and benchmark tables are never a source here; everything is drawn from tasks/words.py and a random generator.
"""

from __future__ import annotations

import random

import numpy as np
import pandas as pd

from agentic.tasks import words

_NUMBERS_EN, _NUMBERS_ZH = words.split(words.NUMBERS_EN), words.split(words.NUMBERS_ZH)


def pseudo_word(rng: random.Random) -> str:
    return "".join(rng.choice(words.SYLLABLES) for _ in range(rng.randint(2, 3)))


def code(rng: random.Random) -> str:
    """A short code such as QX7 or k_12: categories and columns of real files are often codes."""
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTXZ") for _ in range(rng.randint(2, 4)))
    return letters + (str(rng.randint(1, 99)) if rng.random() < 0.4 else "")


def _snake(parts: list[str]) -> str:
    return "_".join(part.lower() for part in parts)


def _camel(parts: list[str]) -> str:
    return parts[0].lower() + "".join(part.capitalize() for part in parts[1:])


STYLES = {
    "snake": _snake,
    "camel": _camel,
    "pascal": lambda parts: "".join(part.capitalize() for part in parts),
    "title": lambda parts: " ".join(part.capitalize() for part in parts),
    "title_snake": lambda parts: "_".join(part.capitalize() for part in parts),
    "sentence": lambda parts: " ".join(parts).capitalize(),
    "lower": lambda parts: " ".join(part.lower() for part in parts),
    "joined": lambda parts: "".join(part.lower() for part in parts),
    "upper": lambda parts: "_".join(part.upper() for part in parts),
    "kebab": lambda parts: "-".join(part.lower() for part in parts),
}
_STYLE_WEIGHTS = [30, 10, 8, 16, 5, 6, 8, 6, 6, 2]


def spell(base: str, style: str, rng: random.Random) -> str:
    """A base name in the file's style, now and then with a prefix, a suffix, a unit or an abbreviation."""
    parts = base.split()
    if rng.random() < 0.12:
        parts = [rng.choice(words.PREFIXES), *parts]
    if rng.random() < 0.12:
        parts = [*parts, *rng.choice(words.SUFFIXES).split()]
    if rng.random() < 0.05 and len(parts) > 1:
        parts = [part[: rng.randint(3, 4)] for part in parts]
    name = STYLES[style](parts)
    if style in {"title", "sentence", "lower"} and rng.random() < 0.25:
        name += " " + rng.choice(words.UNITS)
    return name


def _number_column(base: str, rows: int, rng: random.Random, generator: np.random.Generator) -> pd.Series:
    scale = 10 ** rng.uniform(0, 5.5)
    shape = rng.random()
    if base.startswith(("latitude", "longitude", "change", "growth")) or shape < 0.06:
        values = generator.normal(0, scale / 3, rows)
    elif shape < 0.5:
        values = generator.normal(scale, scale * rng.uniform(0.08, 0.35), rows)
    elif shape < 0.8:
        values = generator.lognormal(np.log(scale), 0.6, rows)
    else:
        values = generator.uniform(0, scale, rows)
    decimals = rng.choice([0, 0, 0, 1, 1, 2, 2, 3])
    column = pd.Series(np.round(values, decimals))
    missing = rng.random() < 0.2
    if decimals == 0 and not missing:
        return column.astype("int64")
    if missing:
        column[generator.random(rows) < rng.uniform(0.01, 0.12)] = np.nan
    return column


def _category_column(values: list[str], rows: int, rng: random.Random, generator: np.random.Generator) -> pd.Series:
    chosen = rng.sample(values, min(len(values), rng.randint(2, 8)))
    weights = generator.dirichlet(np.full(len(chosen), 3.0))
    column = pd.Series(generator.choice(np.array(chosen, dtype=object), rows, p=weights))
    if rng.random() < 0.08:
        column[generator.random(rows) < 0.05] = None
    return column


def _labels(rows: int, rng: random.Random, chinese: bool) -> list[str]:
    made: dict[str, None] = {}
    while len(made) < rows:
        if chinese:
            label = rng.choice(words.SURNAMES_ZH) + "".join(
                rng.choice(words.GIVEN_ZH) for _ in range(rng.randint(1, 2))
            )
            label = label if label not in made else f"{label}{len(made)}"
        else:
            label = " ".join(pseudo_word(rng).capitalize() for _ in range(rng.randint(1, 2)))
        made[label] = None
    return list(made)


def random_table(rng: random.Random, language: str = "en") -> pd.DataFrame:
    """A frame with a label column (often), 1-4 categories, 2-6 numbers and, at times, a year or a date.

    language "zh" gives Chinese names and values. Deterministic in `rng`.
    """
    generator = np.random.default_rng(rng.getrandbits(63))
    rows = int(10 ** rng.uniform(1.2, 2.9))
    chinese = language == "zh"
    style = rng.choices(list(STYLES), _STYLE_WEIGHTS)[0]
    columns: dict[str, pd.Series] = {}

    def add(base: str, column: pd.Series) -> None:
        name = base if chinese else spell(base, style, rng)
        if name not in columns:
            columns[name] = column

    if rng.random() < 0.55:
        label = rng.choice(words.LABELS_ZH if chinese else words.LABELS_EN)
        add(label, pd.Series(_labels(rows, rng, chinese)))
    if rng.random() < 0.15:
        add("编号" if chinese else "id", pd.Series(np.arange(1, rows + 1) + rng.randint(0, 5000)))
    catalogue = words.CATEGORIES_ZH if chinese else words.CATEGORIES_EN
    for base in rng.sample(list(catalogue), rng.randint(1, 4)):
        values = words.split(catalogue[base])
        if not chinese and rng.random() < 0.3:
            # Unknown words and codes: the model must copy values from the card or the question, letter by letter.
            values = list(
                {code(rng) if rng.random() < 0.5 else pseudo_word(rng).capitalize() for _ in range(rng.randint(3, 12))}
            )
            values.sort()
            base = base if rng.random() < 0.6 else pseudo_word(rng)
        if not chinese:
            case = rng.random()
            values = (
                [v.upper() for v in values] if case < 0.1 else [v.title() for v in values] if case < 0.4 else values
            )
        add(base, _category_column(values, rows, rng, generator))
    if rng.random() < 0.35:
        first = rng.randint(1950, 2020)
        years = np.arange(first, first + rng.randint(3, 12))
        add("年份" if chinese else "year", pd.Series(generator.choice(years, rows)))
    if rng.random() < 0.12:
        add("月份" if chinese else "month", pd.Series(generator.integers(1, 13, rows)))
    if rng.random() < 0.15:
        start = pd.Timestamp(rng.randint(1990, 2023), 1, 1)
        add("日期" if chinese else "date", pd.Series(pd.date_range(start, periods=rows, freq="D")))
    if rng.random() < 0.12 and not chinese:
        add(rng.choice(["active", "returned", "insured", "is member"]), pd.Series(generator.random(rows) < 0.4))
    for base in rng.sample(_NUMBERS_ZH if chinese else _NUMBERS_EN, rng.randint(2, 6)):
        if not chinese and rng.random() < 0.08:
            base = rng.choice(
                [pseudo_word(rng), code(rng), f"x{rng.randint(1, 9)}", f"{pseudo_word(rng)} {rng.randint(1, 9)}"]
            )
        add(base, _number_column(base, rows, rng, generator))
    names = list(columns)
    if rng.random() < 0.5:
        head = names[:1]
        rest = names[1:]
        rng.shuffle(rest)
        names = head + rest
    return pd.DataFrame({name: columns[name] for name in names})
