"""Many episodes over one engine, on the event loop that runs them: by logical time, or as they come.

The engine decodes in a thread while the sandboxes run code, and neither waits for the slowest trajectory. By logical time
the batches are the same in every run: an episode whose turn ended at decoding step t asks again at step t + DELAY,
however long its code took (up to there the engine goes on with the others; beyond that it waits for it). Batches decide
the last bits of a logit, so this is what makes a training run repeatable to the last bit. As they come, nothing waits and
nothing is repeatable.

No collective operation happens in here: a rank may have no episode at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agentic.model.chat import Renderer
from agentic.policy.tokens import TokenPolicy

if TYPE_CHECKING:
    from agentic.policy.generate import Engine, Generation, Request

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE_S = 60.0
"""How long the others wait for one that is due: it may itself wait for a session that only their end sets free."""
DELAY = 3
"""Decoding steps between the end of a turn and the next one's prefill: about what a cell takes beside a small model."""


class Timetable:
    """Runs episodes; each gets a `Seat`, its own policy over the shared engine. Belongs to one event loop at a time."""

    def __init__(
        self, engine: Engine, renderer: Renderer, *, name: str, version: str = "0", deterministic: bool = True
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.name = name
        self.version = version
        """Of the weights; whoever changes them sets it."""
        self.deterministic = deterministic
        self.patience_s = PATIENCE_S
        self.generated = 0
        """Tokens sampled so far."""

    async def run(self, episodes: Sequence[Callable[[TokenPolicy], Awaitable[T]]], concurrency: int) -> list[T]:
        """Results in the order of `episodes`, whatever the order in which they end. An exception ends all of them."""
        self._waiting: dict[int, tuple[list[int], int, str, asyncio.Future[Generation]]] = {}
        self._running: dict[Request, tuple[int, asyncio.Future[Generation]]] = {}
        self._changed = asyncio.Event()
        tasks: dict[int, asyncio.Task[T]] = {}
        due: dict[int, int] = {}
        late: set[int] = set()
        time = 0

        def start(index: int) -> None:
            tasks[index] = asyncio.ensure_future(episodes[index](Seat(self, index)))
            tasks[index].add_done_callback(lambda _: self._changed.set())
            due[index] = time

        def asleep(index: int) -> bool:
            return not tasks[index].done() and index not in self._waiting

        try:
            for index in range(min(concurrency, len(episodes))):
                start(index)
            while due or self._running:
                # Who has to be here by now either asks or has ended.
                called = sorted(index for index, when in due.items() if when <= time)
                while missing := [index for index in called if asleep(index)]:
                    awaited = [index for index in missing if self.deterministic and index not in late]
                    if not awaited and not (self.engine.idle and len(missing) == len(due)):
                        break
                    self._changed.clear()
                    try:
                        await asyncio.wait_for(self._changed.wait(), self.patience_s if awaited else None)
                    except TimeoutError:
                        log.warning("%d episodes are late; this step is not repeatable to the last bit", len(awaited))
                        late.update(awaited)
                for index in called:
                    if index in self._waiting:
                        prompt, budget, key, future = self._waiting.pop(index)
                        self._running[self.engine.submit(prompt, budget, key)] = (index, future)
                        late.discard(index)
                        del due[index]
                    elif tasks[index].done():
                        tasks[index].result()
                        del due[index]
                        if len(tasks) < len(episodes):
                            start(len(tasks))
                if not self.engine.idle:
                    time += 1
                    for index in await self._step():
                        due[index] = time + (DELAY if self.deterministic else 0)
                    await asyncio.sleep(0)  # who has just got a turn goes on before the next step
                elif later := [when for when in due.values() if when > time]:
                    time = min(later)
            return [tasks[index].result() for index in range(len(episodes))]
        except BaseException:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            self.engine.reset()
            raise

    async def _step(self) -> list[int]:
        """One step of the engine in a thread; the episodes whose turn ended."""
        for request, (_, future) in self._running.items():
            request.cancelled = future.cancelled()
        try:
            ended = await _finish(asyncio.to_thread(self.engine.step))
        except Exception as error:  # whatever torch raises belongs to the episodes in flight
            failed, self._running = list(self._running.values()), {}
            self.engine.reset()
            for _, future in failed:
                if not future.done():
                    future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
            return [index for index, _ in failed]
        indices = []
        for request in ended:
            index, future = self._running.pop(request)
            self.generated += len(request.ids)
            indices.append(index)
            if not future.done():
                future.set_result(request.result())
        return indices

    async def ask(self, index: int, prompt: list[int], budget: int, key: str) -> Generation:
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting[index] = (prompt, budget, key, future)
        self._changed.set()
        try:
            return await future
        finally:
            self._waiting.pop(index, None)


async def _finish(work: Awaitable[T]) -> T:
    """The result, also when cancelled meanwhile: a thread cannot be stopped, and the engine is not to be touched beside it."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


class Seat(TokenPolicy):
    """The policy of one episode."""

    def __init__(self, table: Timetable, index: int) -> None:
        self.table, self.index = table, index
        self.renderer = table.renderer
        self.max_context = table.engine.max_context
        self.name = table.name
        self.version = table.version

    async def generate(self, prompt: list[int], budget: int, key: str) -> Any:
        return await self.table.ask(self.index, prompt, budget, key)

    async def close(self) -> None:
        """The engine belongs to the table."""
