"""The two dialects in which an agent writes its actions: how each is shown, beside how it is parsed (tools/parse.py).

tool_call: `<tool_call>` JSON, results in tool messages. react: one fenced cell in `<code>`, results in `<interpreter>`,
the end in `<answer>`; tools other than Python keep their `<tool_call>` form there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

from agentic.records import Dialect, Message, Observation
from agentic.tools.base import ToolSpec
from agentic.tools.parse import render_call

_PROMPTS: dict[Dialect, str] = {"tool_call": "system.txt", "react": "react.txt"}


@cache
def system_text(dialect: Dialect = "tool_call") -> str:
    """What the agent is told about its task; the tools are added by the renderer."""
    return resources.files("agentic").joinpath(f"prompts/{_PROMPTS[dialect]}").read_text(encoding="utf-8").strip()


def shown_tools(tools: Sequence[ToolSpec], dialect: Dialect) -> list[ToolSpec]:
    """The tools that the renderer lists: react describes Python in its system text, so only the others are left."""
    if dialect == "react":
        return [tool for tool in tools if tool.name != "python_executor"]
    return list(tools)


def observation_message(observation: Observation, index: int = 0, dialect: Dialect = "tool_call") -> Message:
    """How an observation is told to the model."""
    if dialect == "react" and observation.tool in {"python_executor", None}:
        return Message(role="user", content=_interpreter(observation.text))
    return Message(role="tool", content=observation.text, name=observation.tool, tool_call_id=f"call_{index}")


def in_react(messages: Sequence[Message]) -> list[Message]:
    """An expert trajectory (records in tool_call form) as the react dialect writes it."""
    shown: list[Message] = []
    for message in messages:
        if message.role == "tool" and message.name == "python_executor":
            shown.append(Message(role="user", content=_interpreter(message.content)))
        elif message.role != "assistant":
            shown.append(message)
        elif message.tool_calls:
            calls = [_react_call(call.function.name, call.function.arguments) for call in message.tool_calls]
            text = "\n".join([message.content, *calls] if message.content else calls)
            shown.append(Message(role="assistant", content=text, weight=message.weight))
        else:
            answer = f"<answer>{message.content}</answer>"
            shown.append(Message(role="assistant", content=answer, weight=message.weight))
    return shown


def _interpreter(text: str) -> str:
    return f"<interpreter>\n{text}\n</interpreter>"


def _react_call(name: str, arguments: str) -> str:
    values = json.loads(arguments)
    if name == "python_executor":
        return f"<code>\n```python\n{values['code']}\n```\n</code>"
    return render_call(name, values)
