"""Phrasings of operations questions in English and Chinese.

{m} the metric, {w} the filters, {d} the dimension ({ds}: plural), {e} a second dimension, {a} {b} the slices or periods
that are named, {n} {o} further metrics, {t} a threshold, {k} a count. {is} {was} {am} (with its article) follow the number of
{m}, {was_n} that of {n}. Of two slices {a} is the one with the higher value where a difference is asked, so that an answer
in words needs no sign.
"""

from __future__ import annotations

import random

from agentic.tasks.metrics import Metric
from agentic.tasks.programs import Arguments, Program, Space
from agentic.tasks.world import World

_EN = {
    "value": ["what {was} the {m}{w}?", "what {is} the {m}{w}?", "{m}{w}?", "compute the {m}{w}.", "give the {m}{w}."],
    "what_if": [
        "if the {m}{w} {rise} by {p}%, what would it be?",
        "suppose the {m}{w} {rise} by {p}%: what is the new value?",
    ],
    "extreme": [
        "which {d} had the {top} {m}{w}?",
        "what {d} has the {top} {m}{w}?",
        "name the {d} with the {top} {m}{w}.",
    ],
    "top_k": [
        "which {k} {ds} had the highest {m}{w}, in order?",
        "top {k} {ds} by {m}{w}?",
        "list the {k} {ds} with the highest {m}{w}, highest first.",
    ],
    "bottom_k": [
        "which {k} {ds} had the lowest {m}{w}, lowest first?",
        "bottom {k} {ds} by {m}{w}, starting with the lowest?",
        "list the {k} {ds} with the lowest {m}{w}, lowest first.",
    ],
    "rank": [
        "where does {a} rank by {m} among the {ds}{w}, with 1 for the highest?",
        "what rank does {a} have among the {ds} by {m}{w}, counted from the highest?",
        "counted from the highest {m}{w}, what rank does {a} have among the {ds}?",
    ],
    "change": ["by how much did the {m}{w} change from {a} to {b}?", "what is the change in {m}{w} from {a} to {b}?"],
    "change_percent": [
        "by what percent did the {m}{w} change from {a} to {b}?",
        "what is the percent change in {m}{w} from {a} to {b}?",
    ],
    "contribution": [
        "what percent of the change in {m}{w} from {a} to {b} came from {n}?",
        "how much did {n} contribute to the change in {m}{w} from {a} to {b}, in percent of that change?",
        "of the change in {m}{w} between {a} and {b}, what percent is due to {n}?",
    ],
    "difference": [
        "what is the difference in {m} between {a} and {b}{w}?",
        "what is the difference in {m} between {b} and {a}{w}?",
        "how much higher {is} the {m} of {a} than of {b}{w}?",
        "how much lower {is} the {m} of {b} than of {a}{w}?",
    ],
    "ratio": [
        "what is the ratio of the {m} of {a} to that of {b}{w}?",
        "how many times the {m} of {b} {is} the {m} of {a}{w}?",
        "divide the {m} of {a} by that of {b}{w}: what is the result?",
    ],
    "share": ["what percent of the {m}{w} came from {a}?", "what is the share of {a} in the {m}{w}, in percent?"],
    "count_above": ["how many {ds} had {am} above {t}{w}?", "in how many {ds} {was} the {m} above {t}{w}?"],
    "list_above": [
        "which {ds} had {am} above {t}{w}?",
        "list all {ds} whose {m} {was} above {t}{w}.",
        "name every {d} with {am} of more than {t}{w}.",
    ],
    "scenario": [
        "if the {n} {rise} by {p}% and the {o} {rise2} by {p2}%, what would the {m}{w} be?",
        "suppose the {n} {rise} by {p}% while the {o} {rise2} by {p2}%: what is the new {m}{w}?",
        "what would the {m}{w} be if the {n} {rise} by {p}% and the {o} {rise2} by {p2}%?",
    ],
    "chain_change": [
        "take the {d} with the {top} {m} in {a}{w}: by what percent did its {m}{w} change from {a} to {b}?",
        "which {d} had the {top} {m} in {a}{w}, and by what percent did its {m}{w} change to {b}? give the percent.",
        "by what percent did the {m}{w} change from {a} to {b} for the {d} that was {top} in {a}{w}?",
    ],
    "chain_metric": [
        "what {was_n} the {n}{w} of the {d} with the {top} {m}{w}?",
        "find the {d} with the {top} {m}{w}; what {was_n} its {n}{w}?",
        "for the {d} whose {m}{w} {was} {top}, what {was_n} the {n}{w}?",
    ],
    "drill": [
        "within the {d} that has the {top} {m}{w}, which {e} has the {top} {m}{w}?",
        "find the {d} with the {top} {m}{w}, then name its {e} with the {top} {m}{w}.",
    ],
    "spread": [
        "how far apart are the highest and the lowest {m} among the {ds}{w}?",
        "what is the gap between the {d} with the highest and the one with the lowest {m}{w}?",
    ],
    "top_share": [
        "what percent of the {m}{w} came from the largest {d}?",
        "how large is the share of the leading {d} in the {m}{w}, in percent?",
    ],
}
_ZH = {
    "value": ["{w}的{m}是多少？", "求{w}的{m}。", "{w}{m}是多少？"],
    "what_if": ["如果{w}的{m}{rise}{p}%，会是多少？", "假设{w}的{m}{rise}{p}%，新的值是多少？"],
    "extreme": ["{w}哪个{d}的{m}{top}？", "{w}{m}{top}的{d}是哪个？"],
    "top_k": ["{w}{m}最高的{k}个{d}依次是哪些？", "{w}按{m}排名前{k}的{d}有哪些？"],
    "bottom_k": ["{w}{m}最低的{k}个{d}从低到高依次是哪些？", "{w}按{m}从低到高，前{k}个{d}有哪些？"],
    "rank": [
        "{w}{a}的{m}在各{d}中从高到低排第几？",
        "{w}按{m}从高到低，{a}在所有{d}中的名次是多少？",
        "{w}各{d}按{m}由高到低排序，{a}排第几？",
    ],
    "change": ["{w}的{m}从{a}到{b}变化了多少？", "从{a}到{b}，{w}{m}的变化是多少？"],
    "change_percent": ["{w}的{m}从{a}到{b}变化了百分之多少？", "从{a}到{b}，{w}{m}的变化率是多少？"],
    "contribution": [
        "从{a}到{b}，{w}{m}的变化中有百分之多少来自{n}？",
        "{n}对{w}{m}从{a}到{b}的变化贡献了百分之多少？",
    ],
    "difference": [
        "{w}{a}和{b}的{m}相差多少？",
        "{w}{b}和{a}的{m}相差多少？",
        "{w}{a}的{m}比{b}高多少？",
        "{w}{b}的{m}比{a}低多少？",
    ],
    "ratio": ["{w}{a}的{m}是{b}的多少倍？", "{w}{a}与{b}的{m}之比是多少？", "{w}用{a}的{m}除以{b}的{m}，结果是多少？"],
    "share": ["{w}{a}占{m}的百分比是多少？", "{w}的{m}中{a}占百分之多少？"],
    "count_above": ["{w}有多少个{d}的{m}超过{t}？", "{w}{m}高于{t}的{d}有几个？"],
    "list_above": ["{w}哪些{d}的{m}超过{t}？", "列出{w}{m}高于{t}的所有{d}。", "{w}{m}大于{t}的{d}有哪些？"],
    "scenario": [
        "如果{w}的{n}{rise}{p}%，{o}{rise2}{p2}%，{m}会是多少？",
        "假设{w}的{n}{rise}{p}%而{o}{rise2}{p2}%，新的{m}是多少？",
    ],
    "chain_change": [
        "{w}{a} {m}{top}的{d}，其{w}{m}从{a}到{b}变化了百分之多少？",
        "先找出{w}{a} {m}{top}的{d}，其{w}{m}到{b}的变化率是多少？",
    ],
    "chain_metric": ["{w}{m}{top}的{d}，其{w}{n}是多少？", "先找出{w}{m}{top}的{d}，再求该{d}{w}的{n}。"],
    "drill": ["{w}{m}{top}的{d}里，哪个{e}的{w}{m}{top}？", "先找出{w}{m}{top}的{d}，其中{w}{m}{top}的{e}是哪个？"],
    "spread": ["{w}各{d}的{m}最高与最低相差多少？", "{w}{m}最高的{d}比最低的高出多少？"],
    "top_share": ["{w}最大的{d}占{m}的百分之多少？", "{w}的{m}中，占比最高的{d}占百分之多少？"],
}
_WHOLE_ZH = {"what_if", "change", "change_percent", "share", "scenario", "top_share"}
"""Phrasings in which the place of the filters may not stay empty."""


def question_text(
    program: Program, world: World, asked: Arguments, names: dict[str, str], rng: random.Random, language: str
) -> str:
    """One phrasing. `names`: metric id -> the name by which this question calls it."""
    said = _said(program, world, asked, names, language)
    if language == "zh":
        where = "".join(world.dimensions[c].where_zh.format(v) for c, v in _ordered(program, world)).strip()
        where += " " if where and where[-1].isascii() else ""
        where = where or ("所有数据" if program.operation in _WHOLE_ZH else "")
        text = rng.choice(_ZH[program.operation]).format(w=where, **said)
        return text.removeprefix("的")
    where = "".join(world.dimensions[c].where_en.format(v) for c, v in reversed(_ordered(program, world)))
    text = rng.choice(_EN[program.operation]).format(w=where, **said)
    return text[0].upper() + text[1:]


def _ordered(program: Program, world: World) -> list[tuple[str, object]]:
    """Filters as they are said in Chinese: the time first, then from the last dimension to the first."""
    place = {column: index for index, column in enumerate(world.dimensions)}
    return sorted(program.filters, key=lambda item: (not world.dimensions[item[0]].is_time, -place[item[0]]))


def _said(program: Program, world: World, asked: Arguments, names: dict[str, str], language: str) -> dict[str, object]:
    zh = language == "zh"
    name = names[program.metric.id]
    said: dict[str, object] = {"m": name, **_number(name)}
    if program.dimension is not None:
        dimension = world.dimensions[program.dimension]
        said |= {
            "d": dimension.name_zh if zh else dimension.one_en,
            "ds": dimension.name_zh if zh else dimension.many_en,
        }
    operation = program.operation
    if operation in {"extreme", "chain_change", "chain_metric", "drill"}:
        said["top"] = (("最高", "最低") if zh else ("highest", "lowest"))[not asked[0]]
    if operation in {"top_k", "bottom_k"}:
        said["k"] = asked[0]
    elif operation in {"count_above", "list_above"}:
        said["t"] = asked[0]
    elif operation in {"what_if", "scenario"}:
        said |= {"p": abs(int(asked[0])), "rise": _rise(asked[0], zh, name)}
        if operation == "scenario":
            parts = Space(world).scenario_parts(program.metric)
            assert parts is not None
            upper, lower = (names[part.id] for part in parts)
            said |= {"n": upper, "o": lower, "p2": abs(int(asked[1]))}
            said |= {"rise": _rise(asked[0], zh, upper), "rise2": _rise(asked[1], zh, lower)}
    elif operation == "contribution":
        said |= {"n": asked[0], "a": asked[1], "b": asked[2]}
    elif operation == "chain_change":
        said |= {"a": asked[1], "b": asked[2]}
    elif operation == "chain_metric":
        second: Metric | None = program.second
        assert second is not None
        said |= {"n": names[second.id], "was_n": _number(names[second.id])["was"]}
    elif operation == "drill":
        assert program.along is not None
        said["e"] = world.dimensions[program.along].name_zh if zh else world.dimensions[program.along].one_en
    elif operation not in {"value", "extreme", "spread", "top_share"}:
        said["a"] = asked[0]
        if len(asked) > 1:
            said["b"] = asked[1]
    return said


def _plural(name: str) -> bool:
    """ "refunds", "orders per active user"; not "gross", "status" or "ROAS"."""
    head = name.split(" per ")[0].split(" of ")[0]
    return head.endswith("s") and not head.endswith(("ss", "us", "is"))


def _number(name: str) -> dict[str, str]:
    if _plural(name):
        return {"is": "are", "was": "were", "am": name}
    return {"is": "is", "was": "was", "am": f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"}


def _rise(percent: object, zh: bool, name: str) -> str:
    rises = int(str(percent)) > 0
    if zh:
        return "上升" if rises else "下降"
    return ("rise" if rises else "fall") + ("" if _plural(name) else "s")
