"""`sql_executor` as the environment sees it: what a task can query, and the cells that do it inside the session.

Values enter the cells as Python literals made by repr, so no query or path can break or extend the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from agentic.errors import UserError
from agentic.records import ExecResult, ObservationStatus, Task
from agentic.tables.database import describe
from agentic.tables.sqlite_file import check_sqlite, quiet_file

TABLES = "tables"
"""Name under which `sql_executor` knows the task's tables."""

SHOWN_ROWS = 100
NOTHING = (
    "there is no database, and SQL over tables needs DuckDB: pip install 'agentic-data-analysis[sql]'; use another tool"
)


def check_databases(task: Task) -> None:
    """Raises UserError for a name that no query could use."""
    names = [ref.name for ref in task.databases]
    for position, name in enumerate(names):
        if not name.isidentifier() or name == TABLES or name in names[:position]:
            raise UserError(
                f"task {task.id}: database name {name!r} is taken or no plain word; use letters, digits and _ (not {TABLES!r})"
            )


def can_query(task: Task) -> bool:
    """Whether there is anything that SQL can be run on."""
    return bool(task.databases) or (bool(task.tables) and find_spec("duckdb") is not None)


def databases_text(task: Task, base_dir: Path, max_chars: int) -> str:
    """Descriptions of the task's databases within `max_chars` together; one paragraph each, "" when there are none.

    Raises UserError for a file that is no readable database.
    """
    check_databases(task)
    parts: list[str] = []
    for position, ref in enumerate(task.databases):
        left = max_chars - sum(map(len, parts))
        path = (base_dir / ref.path).resolve()
        parts.append(describe(ref.name, path, left // (len(task.databases) - position)))
    return "\n".join(parts)


class DatabaseFiles:
    """The files of a task's databases while an episode lasts; `close` removes what had to be copied for it."""

    def __init__(self, task: Task, base_dir: Path, max_mb: int) -> None:
        """`max_mb`: what a session can hold. Raises UserError for a file that is missing, too large or always busy."""
        check_databases(task)
        self._copies = ExitStack()
        self.paths: dict[str, Path] = {}
        """By database name."""
        with ExitStack() as on_error:
            on_error.callback(self.close)
            sources = {ref.name: (base_dir / ref.path).resolve() for ref in task.databases}
            for path in sources.values():
                check_sqlite(path)
            self._check_size(task, sources.values(), max_mb)  # before they fill a disk
            for name, path in sources.items():
                folder = self._copies.enter_context(TemporaryDirectory(prefix="agentic-sql-"))
                self.paths[name] = quiet_file(path, Path(folder))
            self._check_size(task, self.paths.values(), max_mb)
            on_error.pop_all()

    def _check_size(self, task: Task, paths: Iterable[Path], max_mb: int) -> None:
        size = sum(path.stat().st_size for path in paths) >> 20
        if size >= max_mb:
            raise UserError(
                f"task {task.id}: its databases take {size} MiB and a session copies them, but its folder holds {max_mb}; "
                "give Limits(folder_mb=...) more, or use a smaller extract"
            )

    def close(self) -> None:
        self._copies.close()


def prelude(task: Task, databases: Mapping[str, str], deadline_s: float) -> list[str]:
    """Lines that make the sources known inside the session, and the helper `sql` when no table has that name; nothing when
    there is nothing to query. `databases`: file in the work folder by database name. The tables are loaded before.
    """
    if not can_query(task):
        return []
    tables = [ref.name for ref in task.tables] if find_spec("duckdb") is not None else []
    frames = ", ".join(f"{name!r}: {name}" for name in tables)
    helper = "sql" if all(ref.name != "sql" for ref in task.tables) else "_sql"
    return [
        "import agentic.sandbox.sql as _sources",
        f"{helper} = _sources.connect({dict(databases)!r}, {{{frames}}}, {deadline_s!r})",
        "del _sources",
    ]


def cell(query: str, database: str) -> str:
    """The cell of one call. It takes nothing from the namespace that earlier cells could have changed."""
    return f"import agentic.sandbox.sql as _sources\n_sources.run_tool({query!r}, {database!r}, {SHOWN_ROWS})"


def without_line(result: ExecResult) -> ExecResult:
    """The cell is ours: its line numbers mean nothing to the model."""
    if result.error is None:
        return result
    return result.model_copy(update={"error": result.error.model_copy(update={"line": None})})


def status(result: ExecResult) -> ObservationStatus:
    """A query that was stopped by its own deadline is a timeout, like one that the supervisor stopped."""
    late = result.status == "error" and result.error is not None and result.error.type == "TimeoutError"
    return ObservationStatus.TIMEOUT if late else ObservationStatus(result.status)
