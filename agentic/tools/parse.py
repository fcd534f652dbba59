"""Assistant text -> actions, for both dialects. This is the only parser: rollout, evaluation and serving share it.

Order of trust: strict JSON; then repair, always flagged. Nothing that the token budget cut is completed, nothing inside
reasoning or inside a string is run, and nothing after an unreadable call or a self-written tool result is believed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from agentic.jsonl import scrub
from agentic.records import Action
from agentic.tools.arguments import call_action, invalid, signatures
from agentic.tools.base import ToolSpec
from agentic.tools.repair import balanced, decode_at, repair_objects

Finish = Literal["stop", "length"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_MARK_TOOL_CALL = (
    rf"(?P<think><think(?:ing)?>)|(?P<thought></think(?:ing)?>)|(?P<call>{OPEN})"
    r"|(?P<result><tool_response>|<interpreter>|<observation>)|(?P<stranger><\|im_start\|>|^Observation\s*[:：])"
)
_MARKS = {
    "tool_call": re.compile(_MARK_TOOL_CALL, re.M),
    "react": re.compile(rf"{_MARK_TOOL_CALL}|(?P<code><code>)|(?P<answer><answer>)", re.M),
}
_MARK = _MARKS["tool_call"]
_THOUGHT = re.compile(r"</think(?:ing)?>")
_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\S\n]*\n(.*?)^[ \t]*```[ \t]*$", re.M | re.S)
_FENCED_CLOSE = re.compile(r"^[ \t]*```\s*(</code>)", re.M)
_INLINE_FENCE = re.compile(r"^\s*```[ \t]*(python|py|sql)\b[ \t]*(.*?)```\s*$", re.S)
_RUN_ON = re.compile(r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>|^Question\s*[:：]", re.M)
_TAG_IN_STRING = re.compile(
    r"<(?=\||/?(?:tool_call|tool_response|think|thinking|answer|code|interpreter|observation)>)"
)
_LANGUAGES = {
    "python": ("python_executor", "code"),
    "py": ("python_executor", "code"),
    "sql": ("sql_executor", "query"),
}


def parse_message(
    text: str,
    tools: Sequence[ToolSpec],
    *,
    dialect: Literal["tool_call", "react"] = "tool_call",
    finish: Finish = "stop",
) -> list[Action]:
    """What one assistant message asks for, in order; never empty and never an exception, whatever the text.

    finish="length" says that the token budget cut the message: an unclosed call or reasoning is then "truncated".
    A message yields tool and invalid actions, or exactly one answer.
    """
    text = scrub(text)
    if not text.strip():
        return [invalid("empty", "empty message: call a tool or give the final answer", text)]
    actions: list[Action] = []
    visible: list[str] = []
    position, reasoned = 0, False
    while mark := _MARKS[dialect].search(text, position):
        visible.append(text[position : mark.start()])
        position = mark.end()
        kind = mark.lastgroup
        if kind in ("call", "code"):
            read = _read_group if kind == "call" else _read_code
            found, position, readable = read(text, mark, tools, finish)
            actions += found
            if not readable:
                return actions
        elif kind == "think":
            end = _THOUGHT.search(text, position)
            if end is None:
                before = "".join(visible) if dialect == "tool_call" else ""
                return actions or [_unclosed_reasoning(text, mark, before, finish)]
            position, reasoned = end.end(), True
        elif kind == "thought":
            if not reasoned:  # the generation prompt opened the reasoning: everything so far was inside it
                actions, visible, reasoned = [], [], True
        elif actions:
            actions[-1].flags.append("answer_after_call" if kind == "answer" else "self_written_result")
            return actions
        elif kind == "answer":
            return [_answer(text[mark.start() :], text, finish)]
        elif kind == "result":
            error = "you wrote a tool result yourself; call a tool and wait for its result"
            return [invalid("self_written_result", error, text)]
        else:
            visible.append(mark[0])
    if actions:
        return actions
    visible.append(text[position:])
    shown = "".join(visible)
    if bare := _bare_call(shown, tools):
        return [bare]
    return [_answer(shown, text, finish) if dialect == "tool_call" else _last_fence(shown, text, tools, finish)]


def render_call(name: str, arguments: dict[str, Any]) -> str:
    """The canonical text of a call; parse_message gives back the same name and arguments.

    A "<" that would begin a protocol tag or a control token inside a string is written as \\u003c, so that simpler
    parsers, too, find one call.
    """
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, allow_nan=False)
    return OPEN + _TAG_IN_STRING.sub(r"\\u003c", scrub(body)) + CLOSE


# ------------------------------------------------------------------------------------------ tool_call groups


def _read_group(
    text: str, mark: re.Match[str], tools: Sequence[ToolSpec], finish: Finish
) -> tuple[list[Action], int, bool]:
    """The calls of one tag pair, the position after it, and whether all of it could be read."""
    begin = position = _skip(text, mark.end())
    objects: list[tuple[Any, bool]] = []
    while position < len(text) and text[position] in "{[":
        decoded = decode_at(text, position)
        if decoded is None:
            break
        objects.append((decoded.value, not decoded.strict))
        position = _skip(text, decoded.end)
    flags: list[str] = []
    rest = text[position:]
    next_mark = _MARK.search(text, position)
    close = text.find(CLOSE, position, next_mark.start() if next_mark else len(text))
    broken = bool(rest) and rest[0] in "{["
    if objects and not broken and close >= 0:
        end = close + len(CLOSE)
        if close > position:
            flags = ["text_after_call"]
            objects = [(value, True) for value, _ in objects]
    elif objects and not broken:
        if finish == "length" and not next_mark:
            return [_truncated(text[mark.start() :])], len(text), False
        flags = ["unclosed_tag"]
        end = len(text) if CLOSE.startswith(rest.rstrip()) else position
    elif objects:
        # Two objects in one pair, the last unreadable: what was read runs, the rest is said to be broken.
        raw = text[mark.start() : position]
        return [*_actions(objects, tools, raw, flags), _broken(text, position, close >= 0)], len(text), False
    else:
        closed, body, end = _loose_body(text, begin)
        if not closed and finish == "length":
            return [_truncated(text[mark.start() :])], len(text), False
        repaired = repair_objects(body, closed)
        if repaired is None:
            return [_broken(text, begin, closed)], len(text), False
        objects = [(value, True) for value in repaired]
        flags = [] if closed else ["unclosed_tag"]
    return _actions(objects, tools, text[mark.start() : end], flags), end, True


def _loose_body(text: str, begin: int) -> tuple[bool, str, int]:
    """(tag closed, body, position after) of a call that is not JSON.

    A closing tag inside a string does not end the call: the body has to look finished there.
    """
    limit = text.find(OPEN, begin)
    limit = len(text) if limit < 0 else limit
    close = text.find(CLOSE, begin, limit)
    while close >= 0:
        body = text[begin:close].rstrip()
        if body.endswith(("}", "]", "```")):
            return True, body, close + len(CLOSE)
        close = text.find(CLOSE, close + 1, limit)
    mark = _MARK.search(text, begin)
    limit = mark.start() if mark else limit
    body = text[begin:limit].rstrip()
    for length in range(len(CLOSE) - 1, 0, -1):
        body = body.removesuffix(CLOSE[:length])
    return False, body.strip(), limit


def _actions(objects: list[tuple[Any, bool]], tools: Sequence[ToolSpec], raw: str, flags: list[str]) -> list[Action]:
    actions: list[Action] = []
    for value, repaired in objects:
        listed = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
        calls, extra = (value, ["calls_as_list"]) if listed else ([value], [])
        actions += [call_action(call, tools, raw, repaired=repaired, flags=flags + extra) for call in calls]
    return actions


def _bare_call(shown: str, tools: Sequence[ToolSpec]) -> Action | None:
    """The action of a whole message that is one JSON call of a known tool without its tags; otherwise nothing."""
    body = shown.strip().removesuffix(CLOSE).strip()
    if fenced := re.fullmatch(r"```(?:json)?\s*(\{.*\})\s*```", body, re.S):
        body = fenced[1]
    decoded = decode_at(body, 0) if body.startswith("{") else None
    if decoded is None or decoded.end != len(body) or not {"name", "arguments"} <= decoded.value.keys():
        return None
    action = call_action(decoded.value, tools, shown, repaired=True, flags=["missing_tag"])
    return action if action.kind == "tool" else None


# ------------------------------------------------------------------------------------------------ react code


def _read_code(
    text: str, mark: re.Match[str], tools: Sequence[ToolSpec], finish: Finish
) -> tuple[list[Action], int, bool]:
    """The action of one <code> block, the position after it, and whether it could be read."""
    begin = mark.end()
    # The code may hold the closing tag in a string: one on the line of a closing fence is preferred.
    fenced = _FENCED_CLOSE.search(text, begin) if text[begin:].lstrip().startswith("```") else None
    close = fenced.start(1) if fenced else text.find("</code>", begin)
    closed = close >= 0
    if not closed and finish == "length":
        return [_truncated(text[mark.start() :])], len(text), False
    stop = close if closed else len(text)
    end = close + len("</code>") if closed else len(text)
    body, raw = text[begin:stop], text[mark.start() : end]
    flags = [] if closed else ["unclosed_tag"]
    blocks = [(found[1].lower() or "python", found[2]) for found in _FENCE.finditer(body)]
    if not blocks and (inline := _INLINE_FENCE.match(body)):
        blocks = [(inline[1], inline[2])]
    if len(blocks) > 1:
        flags.append("several_blocks")
    if not blocks and closed and body.strip() and "```" not in body:
        blocks = [("python", body)]
        flags.append("missing_fence")
    if not blocks:
        error = "<code> must hold one closed fence: ```python ... ``` or ```sql ... ```"
        return [invalid("broken_code", error, raw)], end, False
    repaired = "several_blocks" in flags or "missing_fence" in flags
    return [_code_action(*blocks[-1], tools, raw, flags, repaired=repaired)], end, True


def _last_fence(shown: str, text: str, tools: Sequence[ToolSpec], finish: Finish) -> Action:
    """Without <code>, the last fence that names a language is the code; earlier ones are drafts."""
    if finish == "length":  # the fence that counts may be the one that was cut
        return _truncated(text)
    named = [found for found in _FENCE.finditer(shown) if found[1].lower() in _LANGUAGES]
    if named:
        return _code_action(named[-1][1].lower(), named[-1][2], tools, text, ["missing_tag"], repaired=True)
    return invalid("no_action", "no action: write <code> with one fenced python or sql block, or <answer>", text)


def _code_action(
    language: str, code: str, tools: Sequence[ToolSpec], raw: str, flags: list[str], *, repaired: bool
) -> Action:
    tool, argument = _LANGUAGES.get(language, (language, "code"))
    if tool not in {spec.name for spec in tools}:
        return invalid("unknown_tool", f"no tool runs {language} here; tools: {signatures(tools)}", raw)
    code = code.strip("\n").rstrip()
    return Action(kind="tool", name=tool, arguments={argument: code}, raw=raw, repaired=repaired, flags=flags)


# ---------------------------------------------------------------------------------------- answers and refusals


def _answer(shown: str, text: str, finish: Finish) -> Action:
    """The final answer in text without reasoning; what follows the first answer is a run-on and dropped."""
    flags: list[str] = []
    _, opened, body = shown.partition("<answer>")
    if opened:
        body, closed, after = body.partition("</answer>")
        if not closed:
            body = re.sub(r"</?(?:a(?:n(?:s(?:w(?:er?)?)?)?)?)?$", "", body.rstrip())
            flags.append("truncated" if finish == "length" else "unclosed_tag")
        elif after.strip():
            flags.append("run_on")
    else:
        body = shown.replace("</answer>", "")
        if finish == "length":
            if any(body.endswith(OPEN[:length]) for length in range(2, len(OPEN))):
                return _truncated(text)
            flags.append("truncated")
    cut = _RUN_ON.search(body.lstrip())
    if cut and cut.start() > 0:
        body = body.lstrip()[: cut.start()]
        flags.append("run_on")
    if not body.strip():
        return invalid("empty", "no answer and no call: call a tool or give the final answer", text)
    return Action(kind="answer", answer=body.strip(), raw=text, flags=flags)


def _unclosed_reasoning(text: str, mark: re.Match[str], before: str, finish: Finish) -> Action:
    called = re.search(f"{OPEN}|<code>", text[mark.end() :])
    if not called and before.strip() and finish == "stop":
        answer = _answer(before, text, finish)
        answer.flags.append("unclosed_reasoning")
        return answer
    flag = "call_inside_unclosed_reasoning" if called else "unclosed_reasoning"
    error = f"{flag}: close the reasoning with </think>, then call a tool or give the final answer"
    action = invalid(flag, error, text)
    if finish == "length":
        action.flags.append("truncated")
    return action


def _truncated(raw: str) -> Action:
    return invalid("truncated", "truncated: the message was cut before the call ended; write a shorter call", raw)


def _broken(text: str, position: int, closed: bool) -> Action:
    """The refusal of a call that begins at `position` and is not JSON."""
    if not closed and not balanced(text[position:]):
        return _truncated(text[position:])
    try:
        json.JSONDecoder().raw_decode(text, position)
        reason = "unexpected text after it"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos - position}"
    except (ValueError, RecursionError):
        reason = "a number or the nesting is beyond the limits"
    example = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'
    return invalid("broken_json", f"the call is not valid JSON ({reason}); write {example}", text[position:])


def _skip(text: str, position: int) -> int:
    """Position after white space and commas between objects."""
    while position < len(text) and (text[position].isspace() or text[position] == ","):
        position += 1
    return position
