"""Write SFT data: tasks with expert trajectories in four forms (agentic/formats.py reads them back)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agentic import jsonl
from agentic.config import DatasetConfig
from agentic.data_analysis_env import prompt_messages, task_tools
from agentic.errors import UserError
from agentic.formats import THINK, Example, Row, row_form
from agentic.records import Dialect, Message, Task
from agentic.tools.base import ToolSpec
from agentic.tools.dialect import in_react, shown_tools

# Only text in exactly this layout is taken apart, so that putting it together again gives the same text.
_SPLIT_THINK = re.compile(r"\A<think>\n(.+?)\n</think>\n\n(.*)\Z", re.DOTALL)


class Unrepresentable(Exception):
    """A form has no place for something an example says; the message names it."""


def task_example(task: Task, base_dir: Path, dialect: Dialect = "tool_call") -> Example:
    """The expert trajectory of a task behind the prompt that the environment shows (tables relative to `base_dir`)."""
    expert = in_react(task.expert_trajectory) if dialect == "react" else task.expert_trajectory
    messages = [*prompt_messages(task, base_dir, dialect=dialect), *expert]
    return Example(task.id, messages, shown_tools(task_tools(task), dialect))


def messages_row(example: Example) -> Row:
    """OpenAI messages; arguments and tools as JSON text."""
    return {
        "id": example.id,
        "messages": [message.model_dump(mode="json", exclude_none=True) for message in example.messages],
        "tools": _tools_text(example.tools),
    }


def conversations_row(example: Example) -> Row:
    """Five string keys in every turn ("" where nothing stands): tools on the system message, calls on the assistant's.

    Raises Unrepresentable for turns of weight 0, for which the form has no field.
    """
    _refuse_weights(example)
    turns = []
    for message in _with_system(example):
        thought, content = _split_thought(message)
        turns.append(
            {
                "role": message.role,
                "content": content,
                "reasoning_content": thought,
                "tools": _tools_text(example.tools) if message.role == "system" and example.tools else "",
                "tool_calls": json.dumps(_plain_calls(message), ensure_ascii=False) if message.tool_calls else "",
            }
        )
    return {"conversations": turns}


def sharegpt_row(example: Example) -> Row:
    """from/value turns; a call is its JSON (a list when there are several), with reasoning in front of it.

    Raises Unrepresentable for turns of weight 0 and for plain text beside a call.
    """
    _refuse_weights(example)
    names = {"user": "human", "assistant": "gpt", "tool": "observation"}
    system = [message.content for message in example.messages if message.role == "system"]
    turns = []
    for message in example.messages:
        if message.role == "system":
            continue
        if message.tool_calls:
            if THINK.sub("", message.content).strip():
                raise Unrepresentable("text beside a tool call")
            calls = _plain_calls(message)
            value = message.content + json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
            turns.append({"from": "function_call", "value": value})
        else:
            turns.append({"from": names[message.role], "value": message.content})
    functions = [tool.schema()["function"] for tool in example.tools]
    tools = json.dumps(functions, ensure_ascii=False) if functions else ""
    return {"id": example.id, "conversations": turns, "system": "\n\n".join(system), "tools": tools}


def verl_row(task: Task, prompt: Sequence[Message], index: int) -> Row:
    """A prompt with its checks, for RL in verl; the checks and the tables travel as JSON text."""
    checks = [check.model_dump(mode="json", exclude_none=True) for check in task.checks]
    tables = [table.model_dump(mode="json") for table in task.tables]
    return {
        "data_source": "agentic_data_analysis",
        "prompt": [{"role": message.role, "content": message.content} for message in prompt],
        "ability": str(task.metadata.get("category") or task.metadata.get("task_type") or "data_analysis"),
        "reward_model": {"style": "rule", "ground_truth": json.dumps(checks, ensure_ascii=False)},
        "extra_info": {
            "index": index,
            "id": task.id,
            "question": task.question,
            "answer": task.answer,
            "tools": _tools_text(task_tools(task)),
            "tables": json.dumps(tables, ensure_ascii=False),
            "max_turns": task.max_turns,
        },
    }


def _with_system(example: Example) -> list[Message]:
    """The form keeps tools on the system message, so one has to exist where there are tools."""
    if example.tools and all(message.role != "system" for message in example.messages):
        return [Message(role="system"), *example.messages]
    return example.messages


def _tools_text(tools: Sequence[ToolSpec]) -> str:
    return json.dumps([tool.schema() for tool in tools], ensure_ascii=False) if tools else ""


def _plain_calls(message: Message) -> list[Row]:
    calls = message.tool_calls or []
    return [{"name": call.function.name, "arguments": json.loads(call.function.arguments)} for call in calls]


def _split_thought(message: Message) -> tuple[str, str]:
    match = _SPLIT_THINK.match(message.content) if message.role == "assistant" else None
    return (match[1], match[2]) if match else ("", message.content)


def _refuse_weights(example: Example) -> None:
    if any(message.weight == 0 for message in example.messages):
        raise Unrepresentable("turns of weight 0, which this form would train on")


_WRITERS: dict[str, Callable[[Example], Row]] = {
    "messages": messages_row,
    "conversations": conversations_row,
    "sharegpt": sharegpt_row,
}


def dataset_rows(config: DatasetConfig, counts: Counter[str]) -> Iterator[Row]:
    """Rows of the command, in task order; `counts` gets "tasks", "written", and "left out: why"."""
    base_dir = config.input.parent
    for index, task in enumerate(jsonl.read(config.input, Task)):
        if config.limit is not None and index >= config.limit:
            break
        counts["tasks"] += 1
        if config.format == "verl":
            yield verl_row(task, prompt_messages(task, base_dir, dialect=config.dialect), index)
        elif not task.expert_trajectory:
            counts["left out: no expert trajectory"] += 1
            continue
        else:
            try:
                row = _WRITERS[config.format](task_example(task, base_dir, config.dialect))
            except Unrepresentable as error:
                counts[f"left out: {error}"] += 1
                continue
            yield row
        counts["written"] += 1


def run(config: DatasetConfig) -> int:
    """`agentic dataset`."""
    if config.output.resolve() == config.input.resolve():
        raise UserError(f"{config.output}: --output is the --input file; name another")
    jsonl.check_output(config.output)
    counts: Counter[str] = Counter()

    def rows() -> Iterator[Row]:
        if config.append and config.output.exists():
            for number, row in jsonl.iter_rows(config.output):
                where = f"{config.output}, line {number}"
                form = "verl" if config.format == "verl" and "data_source" in row else row_form(row, where)
                if form != config.format:
                    raise UserError(
                        f"{where}: holds {form} rows; append with --format {form}, or name another --output"
                    )
                counts["kept"] += 1
                yield row
        yield from dataset_rows(config, counts)
        if not counts["written"]:
            reasons = "; ".join(key for key in counts if key.startswith("left out")) or "the file holds no tasks"
            raise UserError(f"{config.input}: nothing to write ({reasons})")

    jsonl.write(config.output, rows())
    kept = f" after {counts['kept']} kept" if counts["kept"] else ""
    print(f"{config.output}: {counts['written']} rows in {config.format} form{kept}, from {counts['tasks']} tasks")
    for reason, count in counts.items():
        if reason.startswith("left out"):
            print(f"  {count} {reason}")
    if any("weight 0" in reason for reason in counts):
        print("  --format messages keeps turns of weight 0 in the context and out of the loss")
    return 0
