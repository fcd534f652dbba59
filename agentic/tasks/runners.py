"""Executes very many expert scripts: chunks of them, one session per set of tables, one or more worker processes.

The scripts are ours, so they may take turns in one session; the names they bind are removed after each. That this gives
what a session of its own would give is not assumed: in every chunk one script, chosen by the seed, is played again in a
fresh session, and the build fails unless every observation is the same. A chunk's result depends on nothing but the chunk,
so the bytes of a data set do not depend on the number of workers.
"""

from __future__ import annotations

import ast
import asyncio
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from agentic import jsonl
from agentic.data_analysis_env import Environment
from agentic.errors import UserError
from agentic.records import Trajectory
from agentic.rollout import run_episode
from agentic.sandbox import Sandbox, Session
from agentic.tasks.expert import Script, finished, script_policy

CHUNK = 200
"""Scripts of one chunk; one of them is proved."""


@dataclass(frozen=True)
class Chunk:
    scripts: list[Script]
    proved: int
    """Index of the script that is played again in a fresh session."""


@dataclass(frozen=True)
class Played:
    """What became of a script."""

    line: str | None
    """The finished task as a line of JSON, or None."""
    reason: str = ""
    """Why there is none."""


def _bound(trajectory: Trajectory) -> set[str]:
    """Names that the Python cells of an episode may have bound."""
    names = {"_"}
    for turn in trajectory.turns:
        for action in turn.actions:
            if action.name == "python_executor":
                with suppress(SyntaxError):
                    for statement in ast.parse(str(action.arguments.get("code", ""))).body:
                        if isinstance(statement, ast.Assign):
                            parts: list[ast.AST] = [n for target in statement.targets for n in ast.walk(target)]
                        elif isinstance(statement, ast.Expr):
                            continue  # walking every expression of thousands of cells takes longer than they run
                        else:
                            parts = list(ast.walk(statement))
                        names |= {n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                        names |= {n.asname or n.name for n in parts if isinstance(n, ast.alias)}
                        names |= {n.name for n in parts if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return names


def _observed(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [
        (str(observation.status), observation.text) for turn in trajectory.turns for observation in turn.observations
    ]


async def play_chunk(sandbox: Sandbox, chunk: Chunk) -> list[Played]:
    """Every script of the chunk through the environment. Raises UserError when the proof fails."""
    policy = script_policy(chunk.scripts)
    session: Session | None = None
    tables: object = None
    played: list[Played] = []
    try:
        for number, script in enumerate(chunk.scripts):
            task = script.task
            wanted = (script.base_dir, [(ref.name, ref.path) for ref in task.tables])
            if session is None or session.closed or tables != wanted:
                if session is not None:
                    await session.close()
                environment = Environment(sandbox, seed=task.id)
                await environment.reset(task, script.base_dir)
                session, tables = await environment.open_session(), wanted
                session.freezes = False
                await environment.close()
            trajectory = await run_episode(task, script.base_dir, policy, sandbox, session=session)
            if number == chunk.proved:
                fresh = await run_episode(task, script.base_dir, policy, sandbox)
                if _observed(fresh) != _observed(trajectory):
                    raise UserError(
                        f"task {task.id}: the shared session observed {_observed(trajectory)}, a fresh one"
                        f" {_observed(fresh)}; please report this with the command and its seed"
                    )
            session.forget(_bound(trajectory))
            done = finished(script, trajectory)
            played.append(Played(None, done) if isinstance(done, str) else Played(jsonl.dumps(done)))
    finally:
        if session is not None:
            await session.close()
    return played


# ------------------------------------------------------------------------------------------------- processes


def _work(connection: Connection) -> None:
    """A worker process: plays chunks until its connection closes, which it does when the parent ends in any way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides

    async def serve() -> None:
        async with Sandbox() as sandbox:
            while True:
                chunk = connection.recv()
                connection.send(await play_chunk(sandbox, chunk))

    try:
        asyncio.run(serve())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except UserError as error:
        with suppress(OSError):
            connection.send(error)


class _Worker:
    def __init__(self, context: Any) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.chunk: int | None = None

    def receive(self) -> list[Played]:
        try:
            result = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            raise UserError(
                f"a worker process of the build ended (exit code {self.process.exitcode}); run it again, with --workers 1"
                " if memory is short"
            ) from None
        if isinstance(result, UserError):
            raise result
        played: list[Played] = result
        return played

    def close(self) -> None:
        """Ends the process, which removes its sandbox; one that hangs is killed."""
        self.connection.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def play_chunks(chunks: Iterator[Chunk], workers: int) -> Iterator[tuple[Chunk, list[Played]]]:
    """Chunks with their results, in order. With one worker this process plays them itself."""
    return _play_here(chunks) if workers <= 1 else _play_in_processes(chunks, workers)


def _play_here(chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, list[Played]]]:
    with asyncio.Runner() as runner:
        sandbox = Sandbox()
        try:
            for chunk in chunks:
                yield chunk, runner.run(play_chunk(sandbox, chunk))
        finally:
            runner.run(sandbox.close())


def _play_in_processes(chunks: Iterator[Chunk], count: int) -> Iterator[tuple[Chunk, list[Played]]]:
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    waiting: deque[tuple[Chunk, list[list[Played]]]] = deque()  # in order; the list is empty until the result is there
    places: dict[int, list[list[Played]]] = {}
    try:
        workers += [_Worker(context) for _ in range(count)]
        for number, chunk in enumerate(chunks):
            idle = next((worker for worker in workers if worker.chunk is None), None)
            if idle is None:
                idle = _collect(workers, places)
            idle.connection.send(chunk)
            idle.chunk, places[number] = number, []
            waiting.append((chunk, places[number]))
            while waiting and waiting[0][1]:
                done, results = waiting.popleft()
                yield done, results[0]
        while waiting:
            if not waiting[0][1]:
                _collect(workers, places)
            else:
                done, results = waiting.popleft()
                yield done, results[0]
    finally:
        for worker in workers:
            worker.close()


def _collect(workers: list[_Worker], places: dict[int, list[list[Played]]]) -> _Worker:
    """Waits for a result, puts it into its place and returns the worker that is free now."""
    ready = wait([worker.connection for worker in workers if worker.chunk is not None])
    worker = next(worker for worker in workers if worker.connection in ready)
    assert worker.chunk is not None
    places.pop(worker.chunk).append(worker.receive())
    worker.chunk = None
    return worker
