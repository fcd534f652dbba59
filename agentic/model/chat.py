"""One renderer for SFT, rollout, evaluation and serving: messages to token ids, with the mask of the agent's tokens.

A conversation is a chain of segments, and each segment is tokenised alone:

    prompt        everything up to and including the first generation prompt
    assistant     the text of one turn and its end token            (mask 1)
    continuation  what the template writes after that end token, tool and user messages, the next generation prompt

A rollout appends sampled ids where SFT appends an assistant segment, so both see the same ids for the same messages.
Nothing is found by searching for markers in text that a model or a data file wrote: control tokens inside contents are
cut in two before rendering and so never become the special id.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Any

from agentic.errors import UserError
from agentic.formats import Parsed
from agentic.jsonl import scrub
from agentic.records import Message
from agentic.tools.base import TOOLS, ToolSpec
from agentic.tools.parse import render_call

# A Unicode noncharacter ("for internal use"): the text is cut here before tokenisation and the mark is dropped.
_CUT = "\ufdd0"
_PROBE = "PROBE"


@dataclass(frozen=True)
class Encoded:
    """A rendered conversation."""

    ids: list[int]
    mask: list[int]
    """1 on assistant tokens and their end tokens (0 for turns of weight 0); same length as ids."""


def tools_text(tools: Sequence[ToolSpec]) -> str:
    """The tools block that the shipped template adds to the system message, for servers that get plain text."""
    lines = [f"- {tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}" for tool in tools]
    first = tools[0]
    if first.name == "python_executor":
        example = {"code": "print(len(df))"}
    else:
        example = dict.fromkeys(first.required, "...")
    return "\n".join(["Tools:", *lines, f"Call a tool like this: {render_call(first.name, example)}"])


def shipped_template() -> str:
    """Source of prompts/chat_template.jinja."""
    return (resources.files("agentic") / "prompts" / "chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")


class Renderer:
    """Renders for one tokenizer (a Hugging Face tokenizer with a chat template, or with the ChatML tokens).

    The tokenizer's own template is used natively when it shows tools, writes calls as `<tool_call>` JSON and never
    rewrites earlier turns. Otherwise the shipped template is set on tokenizers that know ChatML; for the rest the own
    template is kept, the tools stand in the system text and calls in the assistant text.

    Raises UserError when the template yields no assistant span or no single end token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        vocabulary = tokenizer.get_added_vocab()
        special = set(tokenizer.all_special_tokens) | {
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        # Tags such as <tool_call> may be added tokens without being "special": agents write them, data must not.
        tags = {token for token in vocabulary if len(token) > 2 and token[0] in "<["}
        self._special = _alternatives(special)
        self._control = _alternatives(special | tags)
        self.native_tools = self._is_native()
        # The shipped template can write calls, too, but render_call is their definition.
        self._native_calls = self.native_tools and tokenizer.chat_template != shipped_template()
        if not self.native_tools:
            if all(token in vocabulary for token in ("<|im_start|>", "<|im_end|>")):
                tokenizer.chat_template = shipped_template()
                self.native_tools = True
            elif not tokenizer.chat_template:
                raise UserError(
                    "the tokenizer has no chat template and no <|im_start|>/<|im_end|> tokens; "
                    "use an instruction-tuned model or add a chat_template.jinja to its folder"
                )
        self._system_role = self._accepts([{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}])
        self._tool_role = self._accepts(
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "x"},
                {"role": "tool", "content": _PROBE},
            ]
        )
        self._end_text, self.end_ids = self._find_end()
        source = json.dumps([tokenizer.chat_template, self.native_tools, self._end_text])
        self.template_hash: str = hashlib.sha256(source.encode()).hexdigest()[:16]

    # ------------------------------------------------------------------------------------------- public

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of `messages`, ending with the generation prompt; earlier turns are segmented as in `encode`."""
        return self._encode(messages, tools, generation_prompt=True).ids

    def continuation_ids(self, messages: Sequence[Message], start: int, tools: Sequence[ToolSpec]) -> list[int]:
        """Ids between the end token of assistant turn `messages[start - 1]` and the next turn.

        `messages[start:]` are the tool and user messages that follow it. Raises UserError when the template rewrites
        the messages before them.
        """
        before = self._through_end(self._render(messages[:start], tools), start)
        return self._tokenise(self._extend(before, self._render(messages, tools, generation_prompt=True), start))

    def assistant_ids(self, message: Message) -> list[int]:
        """Ids of one turn: content, calls, end token."""
        return [*self._tokenise(self._assistant_text(message)), *self.end_ids]

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Encoded:
        """Ids and mask of a whole conversation; ends with the last turn's end token when the last message is a turn."""
        return self._encode(messages, tools, generation_prompt=False)

    def encode_row(self, row: Parsed) -> Encoded:
        """`encode` for a row of an SFT file; what the template cannot render is said with file and line."""
        try:
            return self.encode(row.example.messages, row.example.tools)
        except UserError as error:
            raise UserError(f"{row.where}: {error}") from None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of one turn: everything before its end token."""
        ids = list(ids)
        if self.end_ids[0] in ids:
            ids = ids[: ids.index(self.end_ids[0])]
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool = False) -> str:
        """The rendered text, for people to read."""
        return self._render(messages, tools, generation_prompt).replace(_CUT, "")

    # ---------------------------------------------------------------------------------------- segments

    def _encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool) -> Encoded:
        ids: list[int] = []
        mask: list[int] = []

        def add(segment: list[int], value: int) -> None:
            ids.extend(segment)
            mask.extend([value] * len(segment))

        done = ""
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        for index in turns:
            message = messages[index]
            prompt = self._render(messages[:index], tools, generation_prompt=True)
            add(self._tokenise(self._extend(done, prompt, index)), 0)
            done = self._through_end(self._render(messages[: index + 1], tools), index + 1)
            if done != prompt + self._assistant_text(message) + self._end_text:
                raise _rewritten(index + 1)
            add(self.assistant_ids(message), 0 if message.weight == 0 else 1)
        if generation_prompt or not turns or turns[-1] != len(messages) - 1:
            full = self._render(messages, tools, generation_prompt)
            add(self._tokenise(self._extend(done, full, len(messages))), 0)
        return Encoded(ids, mask)

    def _extend(self, done: str, text: str, count: int) -> str:
        """What `text` adds to `done`, of which it must be an extension."""
        if not text.startswith(done):
            raise _rewritten(count)
        return text[len(done) :]

    def _through_end(self, text: str, count: int) -> str:
        """`text` up to and including its last end marker (contents hold none: they are cut)."""
        position = text.rfind(self._end_text)
        if position < 0:
            raise _rewritten(count)
        return text[: position + len(self._end_text)]

    def _assistant_text(self, message: Message) -> str:
        """Rendered text of one turn without its end marker."""
        before = self._user_prompt
        after = self._through_end(self._render([Message(role="user", content="x"), message], []), 2)
        return self._extend(before, after, 2)[: -len(self._end_text)]

    @functools.cached_property
    def _user_prompt(self) -> str:
        return self._render([Message(role="user", content="x")], [], generation_prompt=True)

    def _tokenise(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in text.split(_CUT):
            if piece:
                ids.extend(self.tokenizer(piece, add_special_tokens=False)["input_ids"])
        return ids

    # --------------------------------------------------------------------------------------- rendering

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool = False) -> str:
        rows = [self._row(message) for message in messages]
        if tools and not self.native_tools:
            _add_to_system(rows, tools_text(tools))
        if not self._system_role:
            _fold_system(rows)
        schemas = [tool.schema() for tool in tools] if tools and self.native_tools else None
        return self._apply(rows, schemas, generation_prompt)

    def _row(self, message: Message) -> dict[str, Any]:
        pattern = self._special if message.role == "assistant" else self._control
        row: dict[str, Any] = {"role": message.role, "content": _cut(message.content, pattern)}
        if message.role == "tool":
            if message.name:
                row["name"] = message.name
            if not self._tool_role:
                row = {"role": "user", "content": row["content"]}
        if message.tool_calls:
            calls = [(call.function.name, _arguments(call.function.arguments)) for call in message.tool_calls]
            if self._native_calls:
                row["tool_calls"] = [
                    {"type": "function", "function": {"name": name, "arguments": _cut(arguments, self._special)}}
                    for name, arguments in calls
                ]
            else:
                texts = [_cut(render_call(name, arguments), self._special) for name, arguments in calls]
                row["content"] = "\n".join([row["content"], *texts] if row["content"] else texts)
        return row

    def _apply(self, rows: list[dict[str, Any]], schemas: list[dict[str, Any]] | None, generation_prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                rows, tools=schemas, tokenize=False, add_generation_prompt=generation_prompt
            )
        except TemplateError as error:
            raise UserError(f"the chat template refuses the conversation: {error}") from None
        return text

    # ------------------------------------------------------------------------------- looking at a template

    def _is_native(self) -> bool:
        """Whether the own template shows tools, writes calls that our parser reads, and keeps earlier turns."""
        if not self.tokenizer.chat_template:
            return False
        schemas = [TOOLS["python_executor"].schema()]
        call = {"type": "function", "function": {"name": "python_executor", "arguments": {"code": _PROBE}}}
        rows: list[dict[str, Any]] = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "t"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "u"},
        ]
        try:
            stages = [
                self._apply(rows[: index + 1], schemas, rows[index]["role"] == "tool") for index in range(len(rows))
            ]
        except UserError:
            return False
        written = stages[2][len(stages[1]) :]
        return (
            "python_executor" in stages[1]
            and re.search(r"<tool_call>\s*\{.*\"arguments\".*\}\s*</tool_call>", written, re.DOTALL) is not None
            and all(later.startswith(earlier) for earlier, later in pairwise(stages))
        )

    def _accepts(self, rows: list[dict[str, Any]]) -> bool:
        try:
            return _PROBE in self._apply(rows, None, False)
        except UserError:
            return False

    def _find_end(self) -> tuple[str, list[int]]:
        """End marker and its id, from a rendered turn."""
        user = {"role": "user", "content": "x"}
        prompt = self._apply([user], None, True)
        turn = self._apply([user, {"role": "assistant", "content": _PROBE}], None, False)
        if (
            prompt == self._apply([user], None, False)
            or not turn.startswith(prompt)
            or _PROBE not in turn[len(prompt) :]
        ):
            raise UserError(
                "the chat template gives no assistant span: a turn must follow the text that "
                "add_generation_prompt=True ends with; mend chat_template.jinja, otherwise nothing says which tokens "
                "are the agent's"
            )
        tail = turn[len(prompt) :].split(_PROBE, 1)[1]
        match = self._special.search(tail)
        if match is None:
            raise UserError(
                f"the chat template ends a turn with {tail!r}, which is no single special token of the tokenizer; "
                "add the marker as a special token (generation could never stop on it)"
            )
        ids = self._tokenise(match.group())
        if len(ids) != 1:
            raise UserError(f"the end marker {match.group()!r} becomes {len(ids)} tokens; add it as one special token")
        return match.group(), ids


def _rewritten(count: int) -> UserError:
    return UserError(
        f"the chat template rewrites earlier text when message {count} is added (a rendered prefix must stay a prefix, "
        "or training and rollout see different tokens); use a template that keeps earlier turns, reasoning included"
    )


def _alternatives(tokens: set[str]) -> re.Pattern[str]:
    # Longest first; a set without tokens matches nothing.
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True) if token) or r"(?!)")


def _cut(value: Any, pattern: re.Pattern[str]) -> Any:
    """Put the cut mark behind the first character of every control token in the strings of `value`."""
    if isinstance(value, dict):
        return {_cut(key, pattern): _cut(item, pattern) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, pattern) for item in value]
    if not isinstance(value, str):
        return value
    text = scrub(value).replace(_CUT, "\ufffd")
    pieces: list[str] = []
    position = 0
    # Each search starts one character after the last match: the rest of a token may hold another one.
    while match := pattern.search(text, position):
        cut = match.start() + 1
        pieces.append(text[position:cut])
        position = cut
    pieces.append(text[position:])
    return _CUT.join(pieces)


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"tool call arguments are not JSON ({error.msg}): {text[:80]!r}") from None
    if not isinstance(arguments, dict):
        raise UserError(f"tool call arguments must be a JSON object: {text[:80]!r}")
    return arguments


def _add_to_system(rows: list[dict[str, Any]], text: str) -> None:
    if rows and rows[0]["role"] == "system":
        rows[0]["content"] = f"{rows[0]['content']}\n{text}".lstrip("\n")
    else:
        rows.insert(0, {"role": "system", "content": text})


def _fold_system(rows: list[dict[str, Any]]) -> None:
    """Templates without a system role: its text opens the first user message."""
    if len(rows) > 1 and rows[0]["role"] == "system" and rows[1]["role"] == "user":
        system = rows.pop(0)
        rows[0]["content"] = f"{system['content']}\n\n{rows[0]['content']}"
