"""Phrasings of the general questions. A phrase is a function of what the program mentions and a random generator."""

from __future__ import annotations

import random
from collections.abc import Callable

Said = dict[str, str]
Phrase = Callable[[Said, random.Random], str]

_AGG_EN = {
    "mean": ["mean", "average"],
    "sum": ["total", "sum of"],
    "median": ["median"],
    "max": ["maximum", "highest", "largest"],
    "min": ["minimum", "lowest", "smallest"],
    "std": ["standard deviation of"],
}
_AGG_ZH = {
    "mean": ["平均值", "均值"],
    "sum": ["总和", "合计"],
    "median": ["中位数"],
    "max": ["最大值"],
    "min": ["最小值"],
    "std": ["标准差"],
}
_MORE_EN = {
    "more": ["above", "greater than", "over", "more than"],
    "less": ["below", "less than", "under", "smaller than"],
}
_MORE_ZH = {"more": ["大于", "超过", "高于"], "less": ["小于", "低于"]}
_TOP_EN = {"top": ["highest", "largest", "greatest"], "bottom": ["lowest", "smallest"]}
_TOP_ZH = {"top": ["最高", "最大"], "bottom": ["最低", "最小"]}


def phrase(template: str, language: str = "en") -> Phrase:
    """A template with {x} {y} {g} {v} {h} {w} {t} {k} and the words {agg} {more} {top}, chosen at random."""
    agg, more, top = (_AGG_EN, _MORE_EN, _TOP_EN) if language == "en" else (_AGG_ZH, _MORE_ZH, _TOP_ZH)

    def render(said: Said, rng: random.Random) -> str:
        words = dict(said)
        if "agg" in said:
            words["agg"] = rng.choice(agg[said["agg"]])
        if "more" in said:
            words["more"] = rng.choice(more[said["more"]])
        if "top" in said:
            words["top"] = rng.choice(top[said["top"]])
            words["most"] = {"top": ("most", "最多"), "bottom": ("fewest", "最少")}[said["top"]][language != "en"]
            words["mostly"] = {"top": ("most common", "最常见"), "bottom": ("least common", "最少见")}[said["top"]][
                language != "en"
            ]
            words["first"] = {"top": "first", "bottom": "last"}[said["top"]]
            words["side"] = {"top": ("top", "前"), "bottom": ("bottom", "后")}[said["top"]][language != "en"]
        text = template.format(**words)
        return (
            text[0].upper() + text[1:] if language == "en" and rng.random() < 0.85 and text[0] == template[0] else text
        )

    return render


def _all(language: str, templates: dict[str, list[str]]) -> dict[str, list[Phrase]]:
    return {kind: [phrase(template, language) for template in many] for kind, many in templates.items()}


_EN = {
    "aggregate": [
        "what is the {agg} {x}?",
        "{agg} {x}?",
        "calculate the {agg} {x}.",
        "find the {agg} {x} in the table.",
        "give me the {agg} {x} over all rows.",
        "what's the overall {agg} {x}?",
    ],
    "filtered_aggregate": [
        "what is the {agg} {x} for {g} {v}?",
        "what is the {agg} {x} where {g} is {v}?",
        "for {g} = {v}, what is the {agg} {x}?",
        "{agg} {x} of rows with {g} {v}?",
        "what is the {agg} {x} of {v}?",
        "among rows whose {g} is {v}, find the {agg} {x}.",
        "what was the {agg} {x} for {v}?",
    ],
    "filtered_twice": [
        "what is the {agg} {x} where {g} is {v} and {h} is {w}?",
        "for {g} {v} and {h} {w}, what is the {agg} {x}?",
        "{agg} {x} for rows with {g} = {v} and {h} = {w}?",
        "what is the {agg} {x} of {v} with {h} {w}?",
    ],
    "aggregate_above": [
        "what is the {agg} {x} for rows with {y} {more} {t}?",
        "{agg} {x} where {y} is {more} {t}?",
        "among rows with {y} {more} {t}, what is the {agg} {x}?",
    ],
    "extreme_group": [
        "which {g} has the {top} {agg} {x}?",
        "what {g} has the {top} {agg} {x}?",
        "ranked by {agg} {x}, which {g} comes {first}?",
        "find the {g} with the {top} {agg} {x}.",
        "name the {g} whose {agg} {x} is {top}.",
    ],
    "top_groups": [
        "which {k} {g} values have the {top} {agg} {x}?",
        "what are the {side} {k} {g} by {agg} {x}?",
        "list the {k} {g} with the {top} {agg} {x}, in order.",
        "{side} {k} {g} by {agg} {x}?",
    ],
    "extreme_row": [
        "which {g} has the {top} {x}?",
        "what {g} has the {top} {x}?",
        "find the {g} with the {top} {x}.",
        "whose {x} is the {top}? give the {g}.",
        "{g} with the {top} {x}?",
    ],
    "top_rows": [
        "which {k} {g} have the {top} {x}?",
        "what are the {side} {k} {g} by {x}?",
        "list the {k} {g} with the {top} {x}, in order.",
        "{side} {k} {g} by {x}?",
    ],
    "rows": [
        "how many rows are there?",
        "how many records does the table have?",
        "what is the number of rows?",
        "count the rows.",
    ],
    "count_equal": [
        "how many rows have {g} {v}?",
        "how many rows have {g} equal to {v}?",
        "how many {v} are there?",
        "count the rows where {g} is {v}.",
        "how many records are there with {g} = {v}?",
        "what is the number of rows whose {g} is {v}?",
    ],
    "count_both": [
        "how many rows with {g} {v} have {y} {more} {t}?",
        "how many {v} rows have a {y} {more} {t}?",
        "count rows where {g} is {v} and {y} is {more} {t}.",
    ],
    "count_above": [
        "how many rows have {y} {more} {t}?",
        "how many rows have a {y} {more} {t}?",
        "count the rows where {y} is {more} {t}.",
        "in how many rows is {y} {more} {t}?",
    ],
    "distinct": [
        "how many different {g} are there?",
        "how many distinct {g} values are there?",
        "how many unique {g} does the table have?",
        "what is the number of distinct {g}?",
    ],
    "most_common": [
        "what is the {mostly} {g}?",
        "which {g} is {mostly}?",
        "which {g} has the {most} rows?",
        "which {g} appears in the {most} rows?",
    ],
    "missing": [
        "how many values of {x} are missing?",
        "how many rows have no {x}?",
        "count the missing values in {x}.",
        "how many {x} entries are empty?",
    ],
    "correlation": [
        "what is the correlation between {x} and {y}?",
        "how strongly are {x} and {y} correlated?",
        "correlation of {x} with {y}?",
        "compute the Pearson correlation of {x} and {y}.",
    ],
    "share_of_rows": [
        "what percentage of rows have {g} {v}?",
        "what percent of the rows have {g} equal to {v}?",
        "what share of rows is {v}, in percent?",
        "percentage of rows where {g} is {v}?",
    ],
    "share_of_sum": [
        "what percentage of total {x} comes from {g} {v}?",
        "what percent of the total {x} is from {v}?",
        "share of {v} in total {x}, in percent?",
        "how much of total {x} does {g} {v} make up, in percent?",
    ],
    "ratio": [
        "what is the ratio of {agg} {x} to {agg} {y}?",
        "{agg} {x} divided by {agg} {y}?",
        "compute the ratio of the {agg} {x} to the {agg} {y}.",
    ],
    "difference": [
        "what is the difference in {agg} {x} between {v} and {w}?",
        "how much higher is the {agg} {x} for {g} {v} than for {w}?",
        "{agg} {x} of {v} minus that of {w}?",
        "by how much does the {agg} {x} of {v} exceed that of {w}?",
    ],
}

_ZH = {
    "aggregate": ["{x}的{agg}是多少？", "求{x}的{agg}。", "所有行的{x}{agg}是多少？", "计算{x}的{agg}"],
    "filtered_aggregate": [
        "{g}为{v}的{x}{agg}是多少？",
        "{v}的{x}{agg}是多少？",
        "{g}是{v}时，{x}的{agg}是多少？",
        "求{g}等于{v}的行的{x}{agg}。",
    ],
    "filtered_twice": ["{g}为{v}且{h}为{w}的{x}{agg}是多少？", "求{g}是{v}、{h}是{w}的行的{x}{agg}。"],
    "aggregate_above": ["{y}{more}{t}的行，{x}的{agg}是多少？", "当{y}{more}{t}时，{x}{agg}是多少？"],
    "extreme_group": ["哪个{g}的{x}{agg}{top}？", "{x}{agg}{top}的{g}是哪个？", "按{x}{agg}看，哪个{g}{top}？"],
    "top_groups": ["{x}{agg}{top}的{k}个{g}是哪些？", "按{x}{agg}排序，{side}{k}的{g}有哪些？"],
    "extreme_row": ["哪个{g}的{x}{top}？", "{x}{top}的{g}是谁？", "{x}{top}的是哪个{g}？"],
    "top_rows": ["{x}{top}的{k}个{g}是哪些？", "按{x}排序，{side}{k}的{g}有哪些？"],
    "rows": ["一共有多少行？", "表里有多少条记录？", "数据有多少行？"],
    "count_equal": ["{g}为{v}的有多少行？", "有多少条记录的{g}是{v}？", "{v}有多少行？"],
    "count_both": ["{g}为{v}且{y}{more}{t}的有多少行？", "有多少行的{g}是{v}并且{y}{more}{t}？"],
    "count_above": ["{y}{more}{t}的有多少行？", "有多少条记录的{y}{more}{t}？"],
    "distinct": ["有多少种不同的{g}？", "{g}有几种取值？", "一共有多少个不同的{g}？"],
    "most_common": ["{mostly}的{g}是什么？", "哪个{g}的行数{most}？"],
    "missing": ["{x}有多少个缺失值？", "有多少行没有{x}？"],
    "correlation": ["{x}和{y}的相关系数是多少？", "{x}与{y}的相关性有多大？"],
    "share_of_rows": ["{g}为{v}的行占百分之多少？", "{v}占总行数的百分比是多少？"],
    "share_of_sum": ["{v}的{x}占总{x}的百分比是多少？", "{g}为{v}的{x}占全部{x}的百分之多少？"],
    "ratio": ["{x}{agg}与{y}{agg}的比值是多少？", "{x}的{agg}除以{y}的{agg}是多少？"],
    "difference": ["{v}和{w}的{x}{agg}相差多少？", "{v}的{x}{agg}比{w}高多少？"],
}

QUESTIONS: dict[str, dict[str, list[Phrase]]] = {"en": _all("en", _EN), "zh": _all("zh", _ZH)}

# Answers are one short sentence: every token of them is generated.
ANSWERS: dict[str, dict[str, Callable[[str], str]]] = {
    "en": {
        "number": lambda v: f"The answer is {v}.",
        "count": lambda v: f"The count is {v}.",
        "percent": lambda v: f"The share is {v}%.",
        "percent_value": lambda v: f"The answer is {v}%.",
        "value": lambda v: f"It is {v}.",
        "values": lambda v: f"In order: {v}.",
        "items": lambda v: f"They are: {v}.",
    },
    "zh": {
        "number": lambda v: f"结果是{v}。",
        "count": lambda v: f"数量是{v}。",
        "percent": lambda v: f"占比是{v}%。",
        "percent_value": lambda v: f"结果是{v}%。",
        "value": lambda v: f"是{v}。",
        "values": lambda v: f"依次是{v}。",
        "items": lambda v: f"有：{v}。",
    },
}
