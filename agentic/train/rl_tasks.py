"""What RL trains on: tasks, their order, and their expert trajectories as tokens."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agentic import jsonl
from agentic.data_analysis_env import task_tools
from agentic.dataset import task_example
from agentic.errors import UserError
from agentic.model.chat import Renderer
from agentic.records import Task
from agentic.train.packing import Tokens


@dataclass(frozen=True)
class Source:
    """A task and the folder its paths are relative to."""

    task: Task
    base_dir: Path


def read_sources(paths: Sequence[Path]) -> list[Source]:
    """All tasks of all files. Raises UserError for a broken line, a repeated id, an unknown tool, a missing table."""
    found: dict[str, Source] = {}
    for path in paths:
        base_dir = path.resolve().parent
        for task in jsonl.read(path, Task):
            if task.id in found:
                raise UserError(f"{path}: task id {task.id!r} occurs twice; ids must be unique over all files")
            if not task.checks:
                raise UserError(f"{path}: task {task.id} has no checks, so no answer to it can be rewarded; remove it")
            task_tools(task)
            for file in [*(table.path for table in task.tables), *(database.path for database in task.databases)]:
                if not os.path.isfile(base_dir / file):
                    raise UserError(f"{path}: task {task.id}: {base_dir / file} does not exist")
            found[task.id] = Source(task, base_dir)
    if not found:
        raise UserError(f"{', '.join(map(str, paths))}: no tasks in there")
    return list(found.values())


class Order:
    """Which task stands at which place: epoch after epoch, each in an order of its own. A function of the seed alone.

    Nothing has to be saved for a resumed run to go on with the same tasks.
    """

    def __init__(self, tasks: int, seed: int) -> None:
        self.tasks, self.seed = tasks, seed
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, place: int) -> int:
        """The task at place 0, 1, 2, ... of the run."""
        epoch, index = divmod(place, self.tasks)
        if epoch != self._epoch:
            self._order = list(range(self.tasks))
            random.Random(f"{self.seed}/order/{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._order[index]

    def other(self, step: int, slot: int, attempt: int) -> int:
        """A task to take the place of one without signal."""
        return random.Random(f"{self.seed}/other/{step}/{slot}/{attempt}").randrange(self.tasks)


class Expert:
    """Expert trajectories as tokens, made when they are first needed."""

    def __init__(self, sources: Sequence[Source], renderer: Renderer, max_length: int) -> None:
        self.sources, self.renderer, self.max_length = sources, renderer, max_length
        self._made: dict[int, Tokens | None] = {}

    @cached_property
    def known(self) -> int:
        """Tasks that have an expert trajectory."""
        return sum(bool(source.task.expert_trajectory) for source in self.sources)

    def __getitem__(self, index: int) -> Tokens | None:
        """Tokens of the task's expert trajectory, agent tokens trained; None without one, or when it is too long."""
        if index not in self._made:
            source, made = self.sources[index], None
            if source.task.expert_trajectory:
                example = task_example(source.task, source.base_dir)
                encoded = self.renderer.encode(example.messages, example.tools)
                tokens = Tokens.from_mask(encoded.ids, encoded.mask)
                made = tokens if tokens.trained and len(tokens.ids) <= self.max_length else None
            self._made[index] = made
        return self._made[index]
