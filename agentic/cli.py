"""The command line: names of commands and what they load. Nothing heavy is imported before a command is known."""

from __future__ import annotations

import difflib
import importlib
import os
import select
import sys
from collections.abc import Sequence

from agentic import __version__
from agentic.errors import MissingExtra, UserError

# stage of the pipeline -> command name -> (config class in agentic.config, "module:function", one line of help)
STAGES: dict[str, dict[str, tuple[str, str, str]]] = {
    "start": {
        "doctor": ("DoctorConfig", "agentic.doctor:run", "versions, device, sandbox level, model cache"),
        "sandbox doctor": (
            "SandboxDoctorConfig",
            "agentic.sandbox_commands:run_doctor",
            "the isolation level of this machine, why, and how to get a higher one",
        ),
        "sandbox bench": (
            "SandboxBenchConfig",
            "agentic.sandbox_commands:run_bench",
            "how fast and how small sandbox sessions are here",
        ),
        "quickstart": (
            "QuickstartConfig",
            "agentic.quickstart:run",
            "the whole loop once: build, train, evaluate, ask",
        ),
        "models fetch": ("ModelsFetchConfig", "agentic.model.fetch:run", "put a base model into the cache folder"),
        "models create": (
            "ModelsCreateConfig",
            "agentic.model.searchlm.commands:run_create",
            "a SearchLM folder from a profile, a tokenizer and weights",
        ),
        "models export": (
            "ModelsExportConfig",
            "agentic.model.searchlm.commands:run_export",
            "a SearchLM folder's weights as one .pth file",
        ),
        "tokenizer": (
            "TokenizerConfig",
            "agentic.model.searchlm.commands:run_tokenizer",
            "train a tokenizer for SearchLM",
        ),
    },
    "data": {
        "card": ("CardConfig", "agentic.tables.card:run", "what a model is told about your files"),
        "build": ("BuildConfig", "agentic.tasks.build:run", "operations data: tables, tasks, trajectories, splits"),
        "questions": (
            "QuestionsConfig",
            "agentic.tasks.general_tasks:run",
            "questions with computed gold over your files",
        ),
        "validate": ("ValidateConfig", "agentic.tasks.validate:run", "check a task file: schema, splits, gold, grader"),
        "dataset": ("DatasetConfig", "agentic.dataset:run", "turn tasks into an SFT set"),
        "data check": ("DataCheckConfig", "agentic.data_check:run", "look at an SFT file as the trainer will"),
    },
    "train": {
        "sft": ("SftConfig", "agentic.train.sft:run", "supervised fine-tuning on agent tokens"),
        "train": ("TrainConfig", "agentic.train.rl:run", "reinforcement learning on rollouts, alone or with SFT"),
    },
    "evaluate": {
        "eval": ("EvalConfig", "agentic.evaluate.run:run", "evaluate a model, an endpoint or predictions"),
        "plot": ("PlotConfig", "agentic.train.plot:run", "draw the metrics of training runs as PNG files"),
    },
    "use": {
        "ask": ("AskConfig", "agentic.serve.ask:run", "ask a question about your files"),
    },
}
COMMANDS = {name: command for commands in STAGES.values() for name, command in commands.items()}

# Top-level modules of the optional parts, as pyproject.toml groups them.
_TRAIN = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "gguf", "safetensors", "tokenizers")
_EXTRAS = dict.fromkeys(_TRAIN, "train") | {
    "sentencepiece": "train",
    "deepspeed": "deepspeed",
    "matplotlib": "plot",
    "duckdb": "sql",
}

_BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell reports a command whose reader went away
_INTERRUPTED = 130  # 128 + SIGINT


def overview() -> str:
    """The text of `agentic --help`."""
    lines = [
        "usage: agentic COMMAND [options]",
        "",
        "Train, evaluate and use LLM agents that analyse data.",
    ]
    width = max(map(len, COMMANDS))
    for stage, commands in STAGES.items():
        lines += ["", f"{stage}:", *(f"  {name:{width}}  {command[2]}" for name, command in commands.items())]
    return "\n".join([*lines, "", "agentic COMMAND --help lists the options of a command; agentic --version."])


def split_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Cut the command name, of one or two words, from its options. Raises UserError with the nearest names."""
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in COMMANDS:
            return name, list(arguments[words:])
    first = arguments[0]
    children = [name for name in COMMANDS if name.startswith(first + " ")]
    if children:
        raise UserError(f"'{first}' is no command by itself; did you mean: {', '.join(children)}?")
    given = [" ".join(arguments[:2]), first]
    near = dict.fromkeys(match for text in given for match in difflib.get_close_matches(text, COMMANDS, cutoff=0.5))
    hint = f"did you mean: {', '.join(near)}?" if near else "agentic --help lists the commands"
    raise UserError(f"no command '{first}'; {hint}")


def execute(name: str, arguments: Sequence[str]) -> int:
    """Parse the options of a command and run it. Returns its exit code; a bad option exits with 2."""
    import tyro

    # Waiting threads sleep: on an idle machine this costs a training 7 %, beside one other job spinning costs four fifths.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    config_name, target, _ = COMMANDS[name]
    config_class = getattr(importlib.import_module("agentic.config"), config_name)
    config = tyro.cli(config_class, prog=f"agentic {name}", args=arguments, use_underscores=True)
    module_name, function_name = target.split(":")
    try:
        return int(getattr(importlib.import_module(module_name), function_name)(config))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise MissingExtra(f"agentic {name} ({package})", _EXTRAS[package]) from error


def _stdout_is_closed() -> bool:
    """True when the reader of standard output went away (`| head`), as opposed to some other broken pipe."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    # What is still buffered goes nowhere, so that the interpreter's own last flush stays quiet too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 the command's own verdict, 2 bad input or option, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(overview())
            code = 0
        elif arguments[0] == "--version":
            print(f"agentic {__version__}")
            code = 0
        else:
            code = execute(*split_command(arguments))
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: files written so far are whole; run the same command again to go on", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        return _BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
