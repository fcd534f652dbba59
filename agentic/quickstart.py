"""`agentic quickstart`: the whole loop once, small, on this machine.

Every step is an ordinary command with ordinary options and is printed as such, so that a reader can go on from any of them.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from agentic import dataset, jsonl
from agentic.config import (
    AskConfig,
    BuildConfig,
    DatasetConfig,
    EvalConfig,
    ModelsFetchConfig,
    QuickstartConfig,
    SftConfig,
)
from agentic.errors import UserError
from agentic.evaluate import run as evaluation
from agentic.evaluate.report import print_table
from agentic.model import fetch
from agentic.records import Task
from agentic.serve import ask
from agentic.tasks import build
from agentic.tasks.programs import CLASSIC, CLASSIC_METRICS
from agentic.train import sft

QUESTIONS = (
    "What is the correlation between flipper_length_mm and body_mass_g?",
    "How many rows have island Dream?",
    "Which species has the highest mean flipper_length_mm?",
)
_TRAIN_OPS, _TRAIN_GENERAL, _SEED = 200, 640, 1


def _say(step: str, command: str) -> None:
    print(f"\n== {step}\n$ agentic {command}", flush=True)


def _data(config: QuickstartConfig, data: Path) -> None:
    """Build once; held-out general questions are those over the last tables, which training never sees."""
    if not (data / "manifest.json").exists():
        build.run(
            BuildConfig(
                output_dir=data,
                train_size=_TRAIN_OPS,
                dev_size=1,
                test_size=config.held_out,
                general_size=_TRAIN_GENERAL + config.held_out,
                seed=_SEED,
                metric_names=CLASSIC_METRICS,
                operations=CLASSIC,  # what the shipped adapter was trained on, so that the three can be compared
                unseen_size=0,
                language="en",  # half the tokens of Chinese in this tokenizer: more to learn from in few minutes
            )
        )
    general = list(jsonl.read(data / "general.jsonl", Task))
    tables = list(dict.fromkeys(task.tables[0].path for task in general))
    held_tables = set(tables[-max(1, config.held_out // 8) :])
    held = [task for task in general if task.tables[0].path in held_tables]
    jsonl.write(data / "held_out.jsonl", [*jsonl.read(data / "test.jsonl", Task), *held])
    jsonl.write(data / "general_train.jsonl", [task for task in general if task.tables[0].path not in held_tables])
    for name in ("train", "general_train"):
        dataset.run(DatasetConfig(input=data / f"{name}.jsonl", output=data / f"sft_{name}.jsonl"))


def run(config: QuickstartConfig) -> int:
    """0 when everything ran. The result of a step is kept, so an interrupted quickstart continues."""
    if not config.file.is_file():
        raise UserError(
            f"{config.file}: no such file; start quickstart in the repository's folder or name a csv with --file"
        )
    started = time.monotonic()
    output, data = config.output_dir, config.output_dir / "data"
    _say("1. the embedded base model", "models fetch smollm2")
    fetch.run(ModelsFetchConfig())
    _say("2. tasks with computed answers and executed expert trajectories", f"build --output_dir {data} ...")
    _data(config, data)
    model = output / "sft" / "final"
    command = f"sft --data_path {data}/sft_general_train.jsonl {data}/sft_train.jsonl --output_dir {output}/sft"
    _say("3. a few minutes of supervised fine-tuning", f"{command} --max_minutes {config.minutes:g}")
    if not model.exists():
        code = sft.run(
            SftConfig(
                data_path=(data / "sft_general_train.jsonl", data / "sft_train.jsonl"),
                output_dir=output / "sft",
                max_minutes=config.minutes,
                tokens_per_batch=1536,
                warmup_steps=5,
                save_steps=20,
                resume_from_checkpoint=any(output.glob("sft/checkpoint-*")),
            )
        )
        if code:
            return code
    else:
        print(f"{model} is already there")
    summaries = {}
    for name, chosen in (("base", "smollm2"), ("trained here", str(model)), ("shipped adapter", "default")):
        _say(f"4. held-out tasks: {name}", f"eval --data {data}/held_out.jsonl --model {chosen}")
        summaries[name], _, _ = evaluation.evaluate(
            EvalConfig(
                data=data / "held_out.jsonl",
                model=chosen,
                output_dir=output / f"eval-{name.replace(' ', '-')}",
                max_new_tokens=160,
                batch_size=24,
            )
        )
    print_table(summaries, Console(width=max(Console().width, 100)))
    print(
        f"{config.minutes:g} minutes of training here; two and a half hours, on more data and both languages, for the shipped adapter, which `agentic ask` uses when no "
        f"model is named. The agent trained here answers with --model {model}"
    )
    for number, question in enumerate(QUESTIONS):
        _say(f"5.{number + 1} a real file that nobody trained on", f'ask "{question}" {config.file}')
        ask.run(AskConfig(question=question, files=(config.file,)))
    print(f"\nDone in {(time.monotonic() - started) / 60:.0f} minutes. Your own question about your own file:")
    print('$ agentic ask "..." yours.csv')
    return 0
