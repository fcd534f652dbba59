"""What a general question is about: columns by their roles, values and thresholds, drawn from one table."""

from __future__ import annotations

import difflib
import random
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd


class Unfit(Exception):
    """The frame has no column (or no unambiguous answer) for this kind of question."""


@dataclass(frozen=True)
class Columns:
    """Roles of a frame's columns, found from the data."""

    numbers: list[str]
    groups: list[str]
    """Categories: 2 to 60 values that repeat (text, bool, or small integers such as a year)."""
    labels: list[str]
    """Text that names the row: unique, without missing values."""


def column_roles(frame: pd.DataFrame) -> Columns:
    numbers, groups, labels = [], [], []
    for name in frame.columns:
        column = frame[name]
        present = column.dropna()
        distinct = present.nunique()
        if distinct < 2 or pd.api.types.is_datetime64_any_dtype(column):
            continue
        if pd.api.types.is_bool_dtype(column):
            groups.append(name)
        elif pd.api.types.is_numeric_dtype(column):
            is_integer = bool(np.all(np.mod(present, 1) == 0))
            if re.search(r"(^|[^a-z])(id|no|code|zip|编号)([^a-z]|$)", str(name).lower()):
                continue
            dated = re.search(r"year|month|年份|月份", str(name).lower()) and distinct <= 60
            if is_integer and (dated or (distinct <= 8 and len(present) >= 5 * distinct)):
                groups.append(name)
            else:
                numbers.append(name)
        elif distinct == len(column) and len(column) <= 5000:
            labels.append(name)
        elif distinct <= 60 and len(present) >= 2 * distinct and present.map(lambda v: isinstance(v, str)).all():
            groups.append(name)
    return Columns(numbers, groups, labels)


def humanised(name: str) -> str:
    """`bodyMass_g` -> `body mass g`: how a person says a column name."""
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return " ".join(re.sub(r"[_\-]+", " ", words).lower().split())


class Draw:
    """Draws arguments from one frame; raises Unfit where the frame has no fitting column."""

    def __init__(self, frame: pd.DataFrame, rng: random.Random, language: str) -> None:
        self.frame, self.rng, self.language = frame, rng, language
        self.roles = column_roles(frame)
        self.names = [str(name) for name in frame.columns]
        self._spoken = {name: humanised(name) for name in self.names}

    def pick(self, names: list[str], but: tuple[str, ...] = ()) -> str:
        left = [name for name in names if name not in but]
        if not left:
            raise Unfit
        return self.rng.choice(left)

    def number(self, *but: str) -> str:
        return self.pick(self.roles.numbers, but)

    def group(self, *but: str) -> str:
        return self.pick(self.roles.groups, but)

    def label(self) -> str:
        return self.pick(self.roles.labels)

    def value(self, group: str) -> object:
        counts = self.frame[group].value_counts()
        value = self.rng.choice([v for v in counts.index if counts[v] >= 2] or [None])
        if value is None:
            raise Unfit
        return value.item() if isinstance(value, np.generic) else value

    def threshold(self, name: str) -> int | float:
        low, high = self.frame[name].quantile([0.15, 0.85])
        middle = low + (high - low) * self.rng.random()
        digits = 0 if abs(middle) >= 10 else 2
        rounded = round(float(middle), digits)
        return int(rounded) if digits == 0 else rounded

    def say(self, name: str) -> str:
        """How the question mentions a column: as spelt, quoted, or in plain words where that stays unambiguous."""
        chance = self.rng.random()
        spoken = self._spoken[name]
        if chance < 0.08:
            return f'"{name}"'
        if (
            chance < 0.30
            and spoken
            and not difflib.get_close_matches(spoken, [s for n, s in self._spoken.items() if n != name], 1, 0.85)
        ):
            return spoken
        return name

    def say_value(self, value: object) -> str:
        if isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and self.rng.random() < 0.1:
            return f'"{value}"'
        return str(value)
