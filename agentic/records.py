"""What is on disk and what crosses a module boundary.

Everything here is a pydantic model so that a file is checked once, at its edge; inside the package the objects
are passed around as they are. Fields that are unknown in a file are errors, not silently dropped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 1

Dialect = Literal["tool_call", "react"]
"""How an agent writes its actions (tools/dialect.py)."""


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


# ---------------------------------------------------------------------------------------------- tasks


class TableRef(Record):
    """A table the agent may read."""

    name: str
    """Identifier under which the table is a DataFrame in the Python tool."""
    path: str
    """File, relative to the JSONL file that holds the task (or absolute)."""
    description: str = ""


class DatabaseRef(Record):
    """A sqlite database the agent may query."""

    name: str
    """Identifier by which `sql_executor` and the helper `sql` know it; not "tables", which means the task's tables."""
    path: str
    """File, relative to the JSONL file that holds the task (or absolute)."""


class Document(Record):
    id: str
    title: str
    text: str


class Check(Record):
    """What the final answer must say. See reward/answer.py for the comparison rules."""

    kind: Literal["number", "text", "choice", "list", "ordered_list", "boolean", "date", "table", "free_text"]
    value: Any
    """number: int or float; text, choice, date: str; list: list of str or numbers; boolean: bool; table: {"columns": [names],
    "rows": [[cells], ...]}; free_text: str, the reference answer that a judge compares with."""
    unit: str | None = None
    """For numbers: "%" when a percent is asked (12.5 means 12.5 %), otherwise a unit word or nothing."""
    decimals: int | None = None
    """Decimals asked: the tolerance is half a unit of the last one. None: counts are exact, others 0.5 % relative."""
    accept: list[str] = Field(default_factory=list)
    """Other accepted forms of a text answer."""
    options: list[str] = Field(default_factory=list)
    """kind=choice: the alternatives; an answer that names more than the right one is wrong."""
    ordered: bool | None = None
    """kind=table: True when the order of the rows was asked."""


class ToolFunction(Record):
    name: str
    arguments: str
    """JSON text on disk, so that Arrow does not pad dicts with null keys; a dict only when rendering."""


class ToolCall(Record):
    type: Literal["function"] = "function"
    id: str | None = None
    function: ToolFunction


class Message(Record):
    """One chat message in OpenAI form."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[ToolCall] | None = None
    name: str | None = None
    """role=tool: the tool that answered."""
    tool_call_id: str | None = None
    weight: int | None = None
    """role=assistant: 0 keeps a turn in the context but out of the loss (a mistake that is mended later)."""


class Task(Record):
    id: str
    question: str
    language: Literal["en", "zh"] = "en"
    tables: list[TableRef] = Field(default_factory=list)
    databases: list[DatabaseRef] = Field(default_factory=list)
    documents: list[Document] = Field(default_factory=list)
    tools: list[str] = Field(default_factory=lambda: ["python_executor"])
    """Names of the tools offered, in the order in which they are shown."""
    expected_tools: list[str] = Field(default_factory=list)
    answer: str = ""
    """A sentence that passes the checks."""
    checks: list[Check] = Field(default_factory=list)
    max_turns: int = 6
    expert_trajectory: list[Message] = Field(default_factory=list)
    """Assistant and tool messages after the prompt; executed in the real environment."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """task_type, category, difficulty, program (canonical text: the identity of the task)."""


# ---------------------------------------------------------------------------------------- trajectories


class Action(Record):
    """What one assistant message asks for (both dialects parse into this)."""

    kind: Literal["tool", "answer", "invalid"]
    name: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    answer: str | None = None
    """kind=answer: the text given to the user (reasoning removed)."""
    raw: str = ""
    repaired: bool = False
    """True when strict parsing failed and a repair succeeded; the call runs but is not schema-valid."""
    flags: list[str] = Field(default_factory=list)
    """Format violations that did not prevent parsing, e.g. "run_on", "arguments_as_string", "unclosed_tag"."""
    error: str | None = None
    """kind=invalid: what is wrong, said to the model with the remedy."""


class ObservationStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    KILLED = "killed"
    BLOCKED = "blocked"
    PROTOCOL_ERROR = "protocol_error"
    INVALID_ACTION = "invalid_action"


class Observation(Record):
    """The result of one action. `text` is what the model is told and is never empty."""

    status: ObservationStatus
    text: str
    tool: str | None = None
    wall_ms: float = 0.0
    data: dict[str, Any] = Field(default_factory=dict)
    """Typed extras: the full execution result, retrieved document ids, the calculator's value."""


class StopReason(StrEnum):
    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    TRUNCATED = "truncated"
    PARSE_ERROR = "parse_error"
    VOID = "void"
    SANDBOX_LOST = "sandbox_lost"
    DEADLINE = "deadline"
    POLICY_ERROR = "policy_error"


class Turn(Record):
    """One assistant message and what came of it."""

    text: str
    """Exactly what the policy wrote."""
    actions: list[Action]
    observations: list[Observation] = Field(default_factory=list)
    """One per executed or refused tool action, in order."""
    generated_tokens: int = 0
    policy_ms: float = 0.0


class Trajectory(Record):
    format_version: int = FORMAT_VERSION
    task_id: str
    sample: int = 0
    policy: str = ""
    policy_version: str = ""
    turns: list[Turn] = Field(default_factory=list)
    answer: str | None = None
    stop_reason: StopReason = StopReason.VOID
    void: bool = False
    """No valid action and no answer: the trajectory carries no signal about the task."""
    error: str | None = None
    """Why the policy or the harness failed (stop_reason policy_error, sandbox_lost)."""
    prompt_ids: list[int] = Field(default_factory=list)
    completion_ids: list[int] = Field(default_factory=list)
    mask: list[int] = Field(default_factory=list)
    """1 where the policy sampled the token. len(completion_ids) == len(mask) == len(logprobs), or all empty."""
    logprobs: list[float] = Field(default_factory=list)
    reward: float | None = None
    """None before it is scored, and for an unjudged answer, which belongs in no mean and in no loss."""
    parts: dict[str, float] = Field(default_factory=dict)
    isolation: str = ""
    wall_ms: float = 0.0


class Verdict(Record):
    """The comparison of one answer with one task's checks."""

    score: float
    """Share of the checks that pass, in [0, 1]."""
    correct: bool
    """All checks pass."""
    reason: str
    """One short sentence that names the first check that failed, or "all checks pass"."""
    unjudged: bool = False
    """A free-text check had no judge or no judgement: neither right nor wrong. To be left out of means and of the loss."""


# --------------------------------------------------------------------------------------------- sandbox


class ExecError(Record):
    type: str
    message: str
    line: int | None = None


class ExecResult(Record):
    """One Python cell (environment.md, "Result")."""

    status: Literal["ok", "error", "timeout", "memory", "killed", "blocked", "protocol_error"]
    stdout: str = ""
    value: str | None = None
    """repr of the last expression, as a notebook shows it."""
    error: ExecError | None = None
    figures: list[str] = Field(default_factory=list)
    files_changed: list[str] = Field(default_factory=list)
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    peak_mb: float = 0.0
    dropped_chars: int = 0
    state: Literal["kept", "restored", "lost"] = "kept"
    isolation: str = "L0"
