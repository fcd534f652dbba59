"""`agentic build`: tables, tasks with executed gold, expert trajectories, disjoint splits, manifest, data card.

Everything is written below OUTPUT/.build and moved into place at the end, the manifest last: an interrupted build leaves
what was there before, and the next one begins anew.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from agentic import __version__
from agentic.config import BuildConfig
from agentic.errors import UserError
from agentic.records import Task
from agentic.run_folder import only_writer, write_json
from agentic.tasks.certify import Certifier
from agentic.tasks.draw import Unfit
from agentic.tasks.expert import Script
from agentic.tasks.general_tasks import generated_scripts
from agentic.tasks.ops import OpsQuestion, realise
from agentic.tasks.ops_script import ops_script
from agentic.tasks.own import own_world
from agentic.tasks.programs import OPERATIONS, UNSEEN, count_programs, draw_programs
from agentic.tasks.progress import progress
from agentic.tasks.runners import CHUNK, Chunk, play_chunks
from agentic.tasks.store import build_hotels, build_store, hotel_world, shop_world
from agentic.tasks.tally import Retrieval, SplitCount, data_card
from agentic.tasks.world import World

SPLITS = ("train", "dev", "test", "test_unseen")
STAGING = ".build"
_OURS = (
    *(f"{split}.jsonl" for split in SPLITS),
    "general.jsonl",
    "general_tables",
    "tables",
    "tables_unseen",
    "README.md",
)
_PATIENCE = 2000
"""Programs in a row that give no task, after which there are no more."""


class Builder:
    """One build: draws programs, makes scripts, counts."""

    def __init__(self, config: BuildConfig, staging: Path) -> None:
        self.config, self.staging = config, staging
        self.weights = chosen_operations(config.operations)
        self.sizes = sizes_of(config)
        self.counts: dict[str, SplitCount] = {split: SplitCount() for split in self.sizes}
        self.retrieval = Retrieval()
        self.reasons: Counter[str] = Counter()
        self.dropped: dict[str, str] = {}
        self.numbered: Counter[str] = Counter()
        self.worlds: list[World] = []
        self.certifier: Certifier | None = None

    def make_worlds(self) -> None:
        """Write the tables and read them back."""
        if self.config.metrics is not None and self.config.tables is not None:
            self.worlds = [own_world(self.config.metrics, self.config.tables, self.staging)]
            self._choose_metrics()
            self.certifier = Certifier(self.worlds[0])
            return
        seed = self.config.seed
        _write_tables(build_store(seed), self.staging / "tables")
        self.worlds = [shop_world(self.staging / "tables", self.staging)]
        self._choose_metrics()
        if self.sizes.get("test_unseen"):
            _write_tables(build_hotels(seed), self.staging / "tables_unseen")
            self.worlds.append(hotel_world(self.staging / "tables_unseen", self.staging))

    def _choose_metrics(self) -> None:
        world, names = self.worlds[0], self.config.metric_names
        unknown = [name for name in names if name not in world.by_id]
        if unknown:
            raise UserError(f"--metric_names: no metric {unknown[0]!r}; the metrics are {', '.join(world.by_id)}")
        if names:
            world.set_metrics([metric for metric in world.metrics if metric.id in names])

    def check_capacity(self) -> None:
        """Say at once, and not after an hour, that there cannot be so many tasks."""
        wanted = sum(self.sizes[split] for split in ("train", "dev", "test"))
        there_are = sum(count_programs(self.worlds[0], self.weights).values())
        if there_are < wanted:
            raise UserError(
                f"there are {there_are:,} distinct programs, {wanted:,} tasks are asked for; ask for fewer (--train_size,"
                " --dev_size, --test_size) or more --operations"
            )

    def planned(self) -> Iterator[tuple[str, Script]]:
        """(split, script) of every task, in the order in which they are executed."""
        seed = self.config.seed
        labels = [split for split in ("train", "dev", "test") for _ in range(self.sizes[split])]
        random.Random(f"split-{seed}").shuffle(labels)
        yield from self._scripts(self.worlds[0], self.weights, labels, f"ops-{seed}")
        unseen = self.sizes.get("test_unseen", 0)
        parts = [(self.worlds[0], UNSEEN)]
        if len(self.worlds) > 1:  # unseen families, unseen tables, both
            parts += [(self.worlds[1], self.weights), (self.worlds[1], UNSEEN)]
        for number, (world, weights) in enumerate(parts):
            size = unseen * (number + 1) // len(parts) - unseen * number // len(parts)
            yield from self._scripts(world, weights, ["test_unseen"] * size, f"unseen-{seed}-{number}")
        if self.config.general_size:
            for script in generated_scripts(self.staging, self.config.general_size, seed, self.config.language):
                yield "general", script

    def _scripts(
        self, world: World, weights: dict[str, float], labels: list[str], seed: str
    ) -> Iterator[tuple[str, Script]]:
        drawing = draw_programs(world, weights, seed)
        made = missed = 0
        while made < len(labels):
            split = labels[made]
            program = next(drawing, None)
            if program is None or missed >= _PATIENCE:
                raise UserError(
                    f"only {made} distinct programs give a task, {len(labels)} are asked for; ask for fewer"
                    " (--train_size, --dev_size, --test_size, --unseen_size) or more --operations"
                )
            rng = random.Random(f"{seed}/{program.canonical}")
            spoken = rng.choice(["en", "zh"]) if self.config.language == "both" else self.config.language
            task_id = f"ops-{split}-{self.numbered[split]:06d}"
            try:
                asked = realise(program, world, rng, spoken)
                script = ops_script(task_id, asked, world, spoken, self.staging, rng, slips=split == "train")
            except Unfit:
                missed += 1
                self.reasons["programs drawn that are ties, empty or undefined"] += 1
                continue
            why = self.certifier.problem(asked) if self.certifier is not None else None
            if why is not None:
                missed += 1
                self.reasons[why] += 1
                continue
            missed = 0
            made += 1
            self.numbered[split] += 1
            self.retrieval.add(asked, world)
            yield split, script

    def execute(self, report: Callable[[int, int], None]) -> Task | None:
        """Plays all scripts and writes the files into the staging folder. Returns the first finished task."""
        total = sum(self.sizes.values())
        first: Task | None = None
        pending: deque[list[str]] = deque()
        done = 0
        workers = min(self.config.workers, max(1, -(-total // CHUNK)))
        with ExitStack() as files:
            written: dict[str, TextIO] = {
                split: files.enter_context((self.staging / f"{split}.jsonl").open("w", encoding="utf-8"))
                for split in self.sizes
            }
            for chunk, played in play_chunks(self._chunks(pending), workers):
                for split, script, result in zip(pending.popleft(), chunk.scripts, played, strict=True):
                    if result.line is None:
                        self.dropped[script.task.id] = result.reason
                        self.reasons[f"scripts refused: {result.reason.split(':')[0][:60]}"] += 1
                        continue
                    written[split].write(result.line + "\n")
                    self.counts[split].add(script.task, len(script.steps))
                    first = first or script.task
                done += len(chunk.scripts)
                report(done, total)
            for file in written.values():
                file.flush()
                os.fsync(file.fileno())
        return first

    def _chunks(self, pending: deque[list[str]]) -> Iterator[Chunk]:
        scripts: list[Script] = []
        splits: list[str] = []
        proofs = random.Random(f"proof-{self.config.seed}")
        for split, script in self.planned():
            splits.append(split)
            scripts.append(script)
            if len(scripts) == CHUNK:
                pending.append(splits)
                yield Chunk(scripts, proofs.randrange(CHUNK))
                scripts, splits = [], []
        if scripts:
            pending.append(splits)
            yield Chunk(scripts, proofs.randrange(len(scripts)))

    def manifest(self) -> dict[str, Any]:
        tables = sorted(
            path for folder in ("tables", "tables_unseen") for path in (self.staging / folder).glob("*.csv")
        )
        programs = {split: _programs(self.staging / f"{split}.jsonl") for split in self.sizes}
        distinct = {split: set(found) for split, found in programs.items()}
        every = set().union(*distinct.values())
        splits = {}
        for split, count in self.counts.items():
            file = self.staging / f"{split}.jsonl"
            splits[split] = count.to_json() | {"sha256": sha256(file), "programs": len(distinct[split])}
        return {
            "format_version": 2,
            "version": __version__,
            "seed": self.config.seed,
            "language": self.config.language,
            "operations": sorted(self.weights),
            "own_tables": self.config.tables is not None,
            "metrics": {metric.id: metric.formula() for world in self.worlds for metric in world.metrics},
            "splits": splits,
            "duplicates": {
                "inside_splits": sum(len(found) - len(distinct[split]) for split, found in programs.items()),
                "shared_between_splits": sum(map(len, distinct.values())) - len(every),
            },
            "retrieval": self.retrieval.to_json(),
            "drop_reasons": dict(sorted(self.reasons.items())),
            "dropped": self.dropped,
            "tables": {str(path.relative_to(self.staging)): sha256(path) for path in tables},
        }


def chosen_operations(names: tuple[str, ...]) -> dict[str, float]:
    unknown = [name for name in names if name not in OPERATIONS]
    if unknown:
        raise UserError(f"--operations: no operation {unknown[0]!r}; the operations are {', '.join(OPERATIONS)}")
    return {name: weight for name, weight in OPERATIONS.items() if not names or name in names}


def sizes_of(config: BuildConfig) -> dict[str, int]:
    """Split -> number of tasks. Raises UserError for what cannot be built."""
    own = config.metrics is not None or config.tables is not None
    if own and (config.metrics is None or config.tables is None):
        raise UserError("--metrics and --tables go together: the definitions, and the folder of tables they are about")
    unseen = (0 if own else config.test_size) if config.unseen_size is None else config.unseen_size
    sizes = {"train": config.train_size, "dev": config.dev_size, "test": config.test_size}
    if min(*sizes.values(), config.general_size, unseen) < 0 or not any(sizes.values()):
        raise UserError("the sizes must not be negative, and train_size, dev_size and test_size not all zero")
    if config.workers < 1:
        raise UserError(f"--workers must be at least 1, found {config.workers}")
    sizes |= {"test_unseen": unseen} if unseen else {}
    return sizes | ({"general": config.general_size} if config.general_size else {})


def ops_questions(world: World, count: int, seed: int, language: str) -> list[tuple[OpsQuestion, str]]:
    """`count` questions with distinct canonical programs, and their languages, without executing their experts."""
    found: list[tuple[OpsQuestion, str]] = []
    for program in draw_programs(world, OPERATIONS, f"ops-{seed}"):
        if len(found) == count:
            break
        rng = random.Random(f"ops-{seed}/{program.canonical}")
        spoken = rng.choice(["en", "zh"]) if language == "both" else language
        try:
            found.append((realise(program, world, rng, spoken), spoken))
        except Unfit:
            continue
    return found


def run(config: BuildConfig) -> int:
    started = time.monotonic()
    sizes_of(config)
    chosen_operations(config.operations)
    output = config.output_dir
    staging = output / STAGING
    _refuse_others(config)
    try:
        staging.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output}: cannot write there ({error.strerror}); choose another --output_dir") from None
    with only_writer(staging):
        try:
            return _build(config, staging, started)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if not any(output.iterdir()):
                output.rmdir()


def _build(config: BuildConfig, staging: Path, started: float) -> int:
    for leftover in staging.iterdir():  # of a build that was killed
        if leftover.name != ".lock":
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    builder = Builder(config, staging)
    builder.make_worlds()
    if config.dry_run:
        return _count(builder)
    builder.check_capacity()
    with progress("executing") as report:
        example = builder.execute(report)
    manifest = builder.manifest()
    (staging / "README.md").write_text(data_card(manifest, example), encoding="utf-8")
    output = config.output_dir
    _move(staging, output, manifest)
    total = sum(count.tasks for count in builder.counts.values())
    print(f"{output}: {total} certified, {len(builder.dropped)} dropped, {time.monotonic() - started:.0f} s")
    for name, count in builder.counts.items():
        print(f"  {name}: {count.tasks} tasks")
    found = manifest["retrieval"]
    print(f"  definition in the first two documents: {found['recall_at_2_by_question']:.1%} by the question")
    print(f"  answer differs under a rival definition: {found['tasks_whose_answer_a_rival_changes']:.1%} of the tasks")
    for task_id, reason in list(builder.dropped.items())[:5]:
        print(f"  dropped {task_id}: {reason}")
    return 0 if all(count.tasks for name, count in builder.counts.items() if builder.sizes[name]) else 1


def _refuse_others(config: BuildConfig) -> None:
    """What stands under the names that a build replaces must be an earlier build's: never remove a user's own files."""
    output = config.output_dir
    if config.tables is not None and output.resolve() in [config.tables.resolve(), *config.tables.resolve().parents]:
        raise UserError(f"{output}: holds the tables that --tables names; choose another --output_dir")
    ours = (output / "manifest.json").exists() or (output / STAGING).exists()  # ended, or killed
    others = [] if ours or config.dry_run else [name for name in _OURS if (output / name).exists()]
    if others:
        raise UserError(f"{output}: holds {others[0]}, which no build has made; choose another --output_dir")


def _count(builder: Builder) -> int:
    """Print how many programs there are; those that turn out to be ties or empty are among them."""
    total = 0
    for world in builder.worlds[:1]:
        for operation, count in count_programs(world, builder.weights).items():
            print(f"  {operation}: {count:,} programs")
            total += count
    print(f"{total:,} distinct programs over {len(builder.worlds[0].metrics)} metrics; nothing was written")
    return 0


def _move(staging: Path, output: Path, manifest: dict[str, Any]) -> None:
    """Put everything in its place. Without a manifest meanwhile: a folder that has none is half built. Ctrl-C waits."""
    waiting = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        (output / "manifest.json").unlink(missing_ok=True)
        for name in _OURS:
            old, new = output / name, staging / name
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            elif old.exists():
                old.unlink()
            if new.exists():
                os.replace(new, old)
        write_json(output / "manifest.json", manifest)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, waiting)


def _write_tables(frames: dict[str, pd.DataFrame], folder: Path) -> None:
    folder.mkdir()
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)


def _programs(file: Path) -> list[bytes]:
    """Digests of the programs in a file: eight bytes each, also for very many tasks."""
    import json

    found = []
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            program = json.loads(line)["metadata"]["program"]
            found.append(hashlib.blake2b(program.encode(), digest_size=8).digest())
    return found


def sha256(path: Path) -> str:
    """Of a file, read in parts."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
