"""The environment: reset, step, score. One episode on one screen.

The same environment serves training, evaluation and use. It owns what the agent must not touch: the gold, the
documents and the sandbox session (opened at the first Python cell, closed with the episode).
"""

from __future__ import annotations

import keyword
import time
from dataclasses import dataclass
from pathlib import Path

from agentic.errors import UserError
from agentic.records import (
    Action,
    Dialect,
    ExecResult,
    Message,
    Observation,
    ObservationStatus,
    TableRef,
    Task,
    Trajectory,
    Verdict,
)
from agentic.reward.judge import Judge
from agentic.reward.trajectory import PRESETS, WEIGHTS, Preset, record_score, score_trajectory
from agentic.sandbox import Sandbox, Session
from agentic.tables.card import DEFAULT_CHARS, card, load_tables
from agentic.tables.names import close_columns
from agentic.tables.read import Table
from agentic.tools import sql
from agentic.tools.base import TOOLS, ToolSpec
from agentic.tools.calculator import CalculatorError, calculate
from agentic.tools.dialect import system_text
from agentic.tools.retriever import Retriever
from agentic.tools.values import unknown_values

__all__ = [
    "PRESETS",
    "WEIGHTS",
    "Environment",
    "EnvironmentLimits",
    "Preset",
    "prompt_messages",
    "score_trajectory",
    "task_tools",
]

OBSERVATION_CHARS = 1200
ELSEWHERE = "only the work folder can be read and written; network and other programs are disabled"
QUERY_SHARE = 0.9
"""Part of a cell's time after which a query stops by itself, with a message of its own."""
MAX_HINTS = 3
"""Comparisons with unknown values that one observation mentions."""
MAX_DOCUMENTS = 10
"""Documents that one retriever call returns at most."""


def task_tools(task: Task) -> list[ToolSpec]:
    """The tools a task offers, in its order. Raises UserError for a name that is no tool."""
    unknown = [name for name in task.tools if name not in TOOLS]
    if unknown:
        raise UserError(f"task {task.id}: unknown tool {unknown[0]!r}; the tools are {', '.join(TOOLS)}")
    return [TOOLS[name] for name in task.tools]


def prompt_messages(
    task: Task, base_dir: Path, card_chars: int = DEFAULT_CHARS, dialect: Dialect = "tool_call"
) -> list[Message]:
    """System and user message of a task; paths of tables and databases are relative to `base_dir`. The tool block is added by
    the renderer.

    The card comes before the question, so that questions over one set of tables share a token prefix. Databases share its
    budget with the tables.
    """
    databases = sql.databases_text(task, base_dir, card_chars // 2 if task.tables else card_chars)
    shown = _tables_card(task.tables, base_dir, card_chars - len(databases))
    shown = "\n".join(part for part in (shown, databases) if part)
    user = f"{shown}\nQuestion: {task.question}"
    return [Message(role="system", content=system_text(dialect)), Message(role="user", content=user)]


def _tables_card(refs: list[TableRef], base_dir: Path, chars: int) -> str:
    """Writing a card takes ten milliseconds, and thousands of tasks share their tables."""
    tables = load_tables(refs, base_dir)
    stats = [(base_dir / ref.path).stat() for ref in refs]
    key = (
        *((ref.name, ref.description, str(base_dir / ref.path)) for ref in refs),
        *((stat.st_mtime_ns, stat.st_size) for stat in stats),
        chars,
    )
    if key not in _CARDS:
        if len(_CARDS) >= _KEPT_CARDS:
            del _CARDS[next(iter(_CARDS))]
        described = {ref.name: ref.description for ref in refs}
        _CARDS[key] = card({name: table.frame for name, table in tables.items()}, described, chars)
    return _CARDS[key]


_KEPT_CARDS = 64
_CARDS: dict[object, str] = {}


def cut(text: str, limit: int = OBSERVATION_CHARS, dropped: int = 0) -> str:
    """Head and tail of a long text with the number of dropped characters between them.

    `dropped` characters are missing from the middle of the text already; they are counted along.
    """
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n... {len(text) - head - tail + dropped} characters dropped ...\n{text[-tail:]}"


@dataclass(frozen=True)
class EnvironmentLimits:
    cell_timeout_s: float = 10.0
    observation_chars: int = OBSERVATION_CHARS


class Environment:
    """One episode. Use `reset`, then `step` for every action, then `score`; `close` always.

    `session`: one that `open_session` of an environment with the same tables made. It is used and not closed: whoever lends
    it answers for what earlier episodes left there (trusted scripts only; a model's code needs a session of its own).
    `seed` starts the random generators of the environment's own session, so that an episode can be repeated exactly.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        limits: EnvironmentLimits | None = None,
        seed: str | None = None,
        session: Session | None = None,
    ) -> None:
        self.sandbox = sandbox
        self._lent = session
        self.limits = limits or EnvironmentLimits()
        self.seed = seed
        self.task: Task | None = None
        self._session: Session | None = None
        self._tables: dict[str, Table] = {}
        self._databases: sql.DatabaseFiles | None = None
        self._base_dir = Path()

    async def reset(self, task: Task, base_dir: Path, dialect: Dialect = "tool_call") -> list[Message]:
        """Start an episode; returns the prompt messages. Paths of the task are relative to `base_dir`.

        Raises UserError for a table or database that cannot be read or whose name no code could use.
        """
        await self.close()
        for ref in task.tables:
            if not ref.name.isidentifier() or keyword.iskeyword(ref.name):
                raise UserError(f"task {task.id}: table name {ref.name!r} is no Python name; use letters, digits and _")
        self.task, self._base_dir = task, base_dir
        self._tables = load_tables(task.tables, base_dir)
        self._databases = sql.DatabaseFiles(task, base_dir, self.sandbox.limits.folder_mb)
        self._retriever = Retriever(task.documents)
        return prompt_messages(task, base_dir, dialect=dialect)

    async def step(self, action: Action) -> Observation:
        """Run one action. Whatever the agent does wrong comes back as an observation that says how to go on.

        Raises SandboxError when there is no Python session to be had: the agent can do nothing about it.
        """
        assert self.task is not None, "reset() comes before step()"
        started = time.perf_counter()
        problem = self._problem(action)
        if problem is not None:
            observation = Observation(status=ObservationStatus.INVALID_ACTION, text=problem)
        elif action.name == "python_executor":
            observation = await self._python(str(action.arguments["code"]))
        elif action.name == "sql_executor":
            observation = await self._sql(str(action.arguments["query"]), str(action.arguments.get("database") or ""))
        elif action.name == "retriever":
            observation = self._retrieve(action)
        else:
            observation = self._calculate(str(action.arguments["expression"]))
        observation.tool = action.name
        observation.wall_ms = (time.perf_counter() - started) * 1000
        return observation

    def score(self, trajectory: Trajectory, preset: Preset = "ops", judge: Judge | None = None) -> Verdict:
        """Fill in the reward and its parts from what was observed; nothing is executed again.

        The reward stays None for free text that `judge` does not judge.
        """
        assert self.task is not None, "reset() comes before score()"
        return record_score(self.task, trajectory, preset, judge)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
        if self._databases is not None:
            self._databases.close()
            self._databases = None

    def _problem(self, action: Action) -> str | None:
        """Why an action cannot be run at all, or None."""
        assert self.task is not None
        if action.kind == "invalid" or action.name is None:
            return action.error or "no tool was called"
        if action.name not in self.task.tools:
            return f"unknown tool {action.name}; the tools are: {', '.join(self.task.tools)}"
        missing = [name for name in TOOLS[action.name].required if name not in action.arguments]
        return f"{action.name} needs {', '.join(missing)}" if missing else None

    def _retrieve(self, action: Action) -> Observation:
        top_k = action.arguments.get("top_k", 1)
        top_k = min(max(top_k, 1), MAX_DOCUMENTS) if isinstance(top_k, int) else 1
        found = self._retriever.search(str(action.arguments["query"]), top_k)
        if not found:
            return Observation(status=ObservationStatus.ERROR, text="no document matches; use other words")
        text = "\n".join(f"[{document.title}] {document.text}" for document in found)
        return Observation(
            status=ObservationStatus.OK,
            text=cut(text, self.limits.observation_chars),
            data={"documents": [document.id for document in found]},
        )

    def _calculate(self, expression: str) -> Observation:
        try:
            value = calculate(expression)
        except CalculatorError as error:
            return Observation(status=ObservationStatus.ERROR, text=f"calculator: {error}")
        shown = str(round(value, 6) if isinstance(value, float) else value)
        if 0 < abs(value) < 1e-3:  # six decimals would leave few digits, or none
            shown = f"{value:.6g}"
        return Observation(status=ObservationStatus.OK, text=shown, data={"value": value})

    async def open_session(self) -> Session:
        """A new session with the task's tables and databases; the caller closes it."""
        return await self.sandbox.session(*self._files(), seed=self.seed)

    async def _run(self, code: str) -> ExecResult:
        session = self._lent or self._session
        if session is None:
            session = self._session = await self.open_session()
        return await session.run(code, self.limits.cell_timeout_s)

    async def _sql(self, query: str, database: str) -> Observation:
        assert self.task is not None
        if not sql.can_query(self.task):
            return Observation(status=ObservationStatus.ERROR, text=sql.NOTHING)
        result = sql.without_line(await self._run(sql.cell(query, database)))
        data = result.model_dump(exclude_none=True)
        return Observation(status=sql.status(result), text=self._told(result), data=data)

    async def _python(self, code: str) -> Observation:
        result = await self._run(code)
        told = self._told(result)
        if result.status == "ok":
            frames = {name: table.frame for name, table in self._tables.items()}
            hints = [f"Hint: {cut(sentence, 200)}" for sentence in unknown_values(code, frames)[:MAX_HINTS]]
            told = "\n".join([told, *hints])
        return Observation(
            status=ObservationStatus(result.status), text=told, data=result.model_dump(exclude_none=True)
        )

    def _files(self) -> tuple[dict[str, Path], str]:
        """Files for the work folder, and the cell that reads them into the names of the card and opens the databases.

        Names are passed as Python literals made by repr, so no path can break or extend the code.
        """
        assert self.task is not None
        files: dict[str, Path] = {}
        lines = ["from agentic.tables.read import read_table as _read"]
        for ref in self.task.tables:
            source = (self._base_dir / ref.path).resolve()
            name = source.name if source.name not in files else f"{ref.name}_{source.name}"
            files[name] = source
            lines.append(f"{ref.name} = _read({name!r}).frame")
        lines.append("del _read")
        assert self._databases is not None
        names: dict[str, str] = {}
        for name, path in self._databases.paths.items():
            names[name] = path.name if path.name not in files else f"{name}_{path.name}"
            files[names[name]] = path
        lines += sql.prelude(self.task, names, self.limits.cell_timeout_s * QUERY_SHARE)
        return files, "\n".join(lines)

    def _told(self, result: ExecResult) -> str:
        """What the model reads: output, then the error with a hint; never empty."""
        parts = [result.stdout.rstrip()] if result.stdout.strip() else []
        if result.value is not None:
            parts.append(result.value)
        if result.error is not None:
            where = f" (line {result.error.line})" if result.error.line else ""
            parts.append(f"{result.error.type}: {result.error.message}{where}")
            hint = self._hint(result)
            if hint:
                parts.append(f"Hint: {hint}")
        elif not parts:
            parts.append("(no output; use print)" if result.status == "ok" else f"({result.status})")
        if result.figures:
            parts.append(f"(figures saved: {', '.join(result.figures)})")
        if result.state == "restored":
            parts.append("(the session was restarted; earlier cells were run again)")
        elif result.state == "lost":
            parts.append("(the session was restarted; variables are lost)")
        return cut("\n".join(parts), self.limits.observation_chars, result.dropped_chars)

    def _hint(self, result: ExecResult) -> str:
        """A remedy for the errors that small models make most: a name that is nearly right, a place that is closed."""
        assert result.error is not None
        if result.status == "blocked":
            return "" if "in the sandbox" in result.error.message else ELSEWHERE
        columns = [str(column) for table in self._tables.values() for column in table.frame.columns]
        if result.error.type == "KeyError":
            # A grouped frame says it in other words than a plain one.
            wanted = result.error.message.strip("'\"").removeprefix("Column not found: ")
            holders = [name for name, table in self._tables.items() if wanted in table.frame.columns]
            if holders:  # spelt right, and asked of something else: a grouped result, another table
                return f"{wanted!r} is a column of {', '.join(holders)}"
            close = close_columns(wanted, columns)
            if close:
                return (
                    f"the column is {close[0]!r}"
                    if len(close) == 1
                    else f"close columns: {', '.join(map(repr, close))}"
                )
            return f"columns: {cut(', '.join(map(repr, columns)), 400)}"
        if result.error.type == "NameError":
            return f"the tables are: {', '.join(self._tables)}"
        return ""
