# ruff: noqa: E402 (imports follow importorskip)
"""SearchLM's SFT under its documented names: files, resume after kill -9, several processes, the 300M profile."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from tiny import conversation, write_rows

from agentic.cli import main
from agentic.config import SftConfig
from agentic.errors import UserError
from agentic.model.searchlm.checkpoint import load_weights, save_weights, weight_file
from agentic.model.searchlm.configuration import fitted_config
from agentic.model.searchlm.modeling import SearchLMForCausalLM
from agentic.model.searchlm.tokenizer import train_tokenizer
from agentic.train.checkpoints import Checkpoints, read_seal, seal
from agentic.train.documented import at_root
from agentic.train.trainer import MOST_SKIPPED, Progress

ROOT = Path(__file__).resolve().parents[1]
STEM = "agent_sft_64_mla"
OPTIONS = (
    "--model_profile tiny --from_weight pretrain_searchlm --save_weight agent_sft --data_path "
    "../dataset/agentic_data/sft.jsonl --dtype float16 --save_interval 2 --epochs 2 --max_seq_len 512 --tokens_per_batch 900 "
    "--learning_rate 3e-3 --log_interval 1 --warmup_steps 2 --accumulation_steps 2"
).split()


def checkout(root: Path, profile: str = "tiny", questions: int = 12) -> Path:
    """A repository root with a tokenizer, random weights under the documented name, and SFT data."""
    rows = [
        conversation(
            f"Question {question}?", card=f"Table {name}: 9 rows\n{name} (number)", answer=f"{name} {question}."
        )
        for name in ("price", "cost", "units")
        for question in range(questions)
    ]
    for folder in ("trainer", "dataset/agentic_data"):
        (root / folder).mkdir(parents=True)
    write_rows(root / "dataset/agentic_data/sft.jsonl", rows)
    tokenizer = train_tokenizer([message.content or "" for row in rows for message in row], 320)
    tokenizer.save_pretrained(root / "model")
    torch.manual_seed(0)
    model = SearchLMForCausalLM(fitted_config(profile, len(tokenizer)))
    save_weights(model, weight_file(root / "out", "pretrain_searchlm", model.config))
    return root


def weights(root: Path, stem: str = STEM) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(root / "out" / f"{stem}.pth", weights_only=True)
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("started") / "root")


@pytest.fixture(scope="module")
def trained(started: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root after an uninterrupted run, started in trainer/."""
    root = tmp_path_factory.mktemp("trained") / "root"
    shutil.copytree(started, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTIC_ROOT", str(root))
        patch.chdir(root / "trainer")
        with (root / "said.txt").open("w") as said, contextlib.redirect_stdout(said):
            assert main(["sft", *OPTIONS]) == 0
    yield root


@pytest.fixture
def root(started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh root, the working folder its trainer/."""
    shutil.copytree(started, tmp_path / "root")
    monkeypatch.setenv("AGENTIC_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path / "root" / "trainer")
    return tmp_path / "root"


# ----------------------------------------------------------------------------------------------- files


def test_a_run_leaves_the_documented_files(trained: Path) -> None:
    said = (trained / "said.txt").read_text()
    assert torch.cuda.is_available() or said.count("--dtype float16 needs a GPU") == 1
    states = {path.name for path in (trained / "checkpoints").iterdir()}
    newest = (trained / "checkpoints" / f"{STEM}_latest").read_text().strip()
    last = json.loads((trained / "runs" / STEM / "metrics.jsonl").read_text().splitlines()[-1])
    assert newest == f"{STEM}_epoch2_step{last['step']}" and read_seal(trained / "checkpoints" / newest)
    assert len(states) == 3 and all(name.startswith(STEM) for name in states)
    tokens = json.loads((trained / "runs" / STEM / "final" / "config.json").read_text())["vocab_size"]
    model = SearchLMForCausalLM(fitted_config("tiny", tokens))
    load_weights(model, trained / "out" / f"{STEM}.pth")
    assert not same(weights(trained), weights(trained, "pretrain_searchlm_64_mla"))
    assert weights(trained)["model.norm.weight"].dtype == torch.float16


def test_what_is_finished_is_neither_repeated_nor_overwritten(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTIC_ROOT", str(trained))
    monkeypatch.chdir(trained / "trainer")
    before = weights(trained)
    assert main(["sft", *OPTIONS]) == 2
    assert re.search(
        r"holds a run already; add --from_resume 1 .* or name another --save_weight", capsys.readouterr().err
    )
    (trained / "out" / f"{STEM}.pth").unlink()
    assert main(["sft", *OPTIONS, "--from_resume", "1"]) == 0
    assert same(weights(trained), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--from_weight", "no"], r"no_64_mla.pth: no such weight file \(there are: pretrain_searchlm\)"),
        (["--model_profile", "SearchLM-300M"], r"no such weight file \(\S+ holds no \*_1024_mla.pth\)"),
        (["--tokenizer", "nowhere"], r"root/nowhere: holds no tokenizer .* agentic tokenizer FILES"),
        (["--save_weight", "pretrain_searchlm"], "would overwrite --from_weight"),
        (["--lora_rank", "4"], "trains all weights"),
        (["--from_resume", "1"], r"no whole checkpoint \(agent_sft_64_mla_epoch\*_step\*\).*without --from_resume 1"),
        (["--deepspeed", "zero9"], "choose zero2, zero3"),
        (["--report_to", "paper"], "choose one of none"),
        (["--data_path", "absent.jsonl"], "absent.jsonl: No such file"),
    ],
)
def test_problems_are_said_before_anything_is_written(
    root: Path, change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", *OPTIONS, *change]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and error.count("\n") == 1, error
    assert not (root / "checkpoints").exists() and not (root / "out" / f"{STEM}.pth").exists()


def test_folders_are_found_from_the_root(root: Path) -> None:
    assert at_root(Path("out")) == root / "out"
    assert at_root(Path("../elsewhere")) == root / "trainer" / ".." / "elsewhere"
    assert at_root(Path("/abs")) == Path("/abs")


def test_names_order_and_latest_of_checkpoints(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, "a_64_mla")
    assert [store.name(epoch, 7) for epoch in (0.1, 1.0, 1.0000000001, 1.5, 2.0)] == [
        f"a_64_mla_epoch{epoch}_step7" for epoch in (1, 1, 1, 2, 2)
    ]
    for step in (9, 10, 100):
        staged = store.staging / str(step)
        staged.mkdir(parents=True)
        (staged / "weights").write_bytes(b"x" * 10)
        store.publish(staged, 1.0, step)
        assert store.latest.read_text() == f"a_64_mla_epoch1_step{step}\n"
    # Another run's states, whose name begins alike, are not ours.
    other = tmp_path / "a_64_mla_epoch1_step100_epoch1_step5"
    other.mkdir()
    seal(other, step=5)
    assert [store.step(path) for path in store.all()] == [100, 10, 9]
    os.truncate(tmp_path / "a_64_mla_epoch1_step100" / "weights", 5)
    said: list[str] = []
    assert store.resumable("x", said.append) == tmp_path / "a_64_mla_epoch1_step10"
    assert "step100: half-written" in said[0]
    store.prune(1)
    assert [store.step(path) for path in store.all()] == [10]


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        (["--from_resume", "1"], "resume_from_checkpoint", True),
        (["--from_resume", "0"], "resume_from_checkpoint", False),
        (["--from_resume"], "resume_from_checkpoint", True),
        (["--resume_from_checkpoint", "--local_rank=3"], "resume_from_checkpoint", True),
        (["--local_rank=3"], "local_rank", 3),
        (["--save_interval", "7"], "save_steps", 7),
        (["--epochs", "2.5"], "num_train_epochs", 2.5),
        (["--batch_size", "2"], "per_device_train_batch_size", 2),
        (["--accumulation_steps", "8"], "gradient_accumulation_steps", 8),
        (["--log_interval", "5"], "logging_steps", 5),
        (["--num_workers", "4"], "dataloader_num_workers", 4),
        (["--max_seq_len", "99"], "max_length", 99),
    ],
)
def test_documented_and_familiar_names_are_one_option(given: list[str], field: str, value: Any) -> None:
    import tyro

    arguments = [*given, "--data_path", "a.jsonl"]
    assert getattr(tyro.cli(SftConfig, args=arguments, use_underscores=True), field) == value


def test_float16_that_overflows_for_good_stops_the_run() -> None:
    """E15: the schedule must not run out while no step is taken."""

    class Accelerator:
        optimizer_step_was_skipped = True

    class Trainer:
        accelerator = Accelerator()

    @dataclasses.dataclass
    class State:
        global_step: int = 3

    progress = Progress(Path("unused"), print)
    progress.trainer = Trainer()  # type: ignore[assignment]
    for _ in range(MOST_SKIPPED - 1):
        progress._watch_scale(State())
    Accelerator.optimizer_step_was_skipped = False
    progress._watch_scale(State())
    Accelerator.optimizer_step_was_skipped = True
    for _ in range(MOST_SKIPPED - 1):
        progress._watch_scale(State())
    with pytest.raises(UserError, match="step 3: float16 overflowed"):
        progress._watch_scale(State())


# ---------------------------------------------------------------------------------------- kill -9, resume


def killed(options: list[str], when: Callable[[], bool], delay_s: float) -> bool:
    """Run the command in a forked process, kill -9 it `delay_s` after `when`; whether it was still running."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = main(options)
        finally:
            os._exit(code)
    while not when() and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.005)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def newest_step(root: Path) -> int:
    latest = root / "checkpoints" / f"{STEM}_latest"
    return int(latest.read_text().strip().rpartition("step")[2]) if latest.exists() else 0


def test_killed_in_the_second_epoch_and_resumed_is_the_same(trained: Path, root: Path) -> None:
    steps = newest_step(trained)
    assert killed(["sft", *OPTIONS], lambda: newest_step(root) > steps // 2, random.random() * 0.05)
    assert steps > newest_step(root) > steps // 2
    assert main(["sft", *OPTIONS, "--from_resume", "1"]) == 0
    assert same(weights(root), weights(trained))
    assert [row["step"] for row in metrics(root)] == list(range(1, steps + 1))
    for name in ("loss", "learning_rate", "trained_tokens"):
        assert [row[name] for row in metrics(root)] == [row[name] for row in metrics(trained)]


def metrics(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "runs" / STEM / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [[], ["--stream_above_mb", "0", "--num_workers", "2"]], ids=["loaded", "streamed"])
def test_killed_again_and_again(root: Path, stream: list[str]) -> None:
    """At random moments, saving included, until the run is through."""
    options = ["sft", *OPTIONS, "--save_interval", "1", *stream]
    assert main([*options, "--save_weight", "whole"]) == 0
    kills = 0
    for attempt in range(12):
        resume = ["--from_resume", "1"] if newest_step(root) else []
        seen = newest_step(root)
        kills += killed([*options, *resume], lambda: newest_step(root) > seen, random.random() * 0.4)  # noqa: B023
        if attempt > 6 or (root / "runs" / STEM / "final").exists():
            break
    assert kills >= 2
    assert main([*options, "--from_resume", "1"]) == 0
    assert same(weights(root), weights(root, "whole_64_mla"))


# -------------------------------------------------------------------------------------- several processes


def launched(root: Path, *command: str) -> str:
    environment = os.environ | {"AGENTIC_ROOT": str(root), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root / "trainer", capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def final(root: Path, name: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(root / "runs" / f"{name}_64_mla" / "final" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["1000", "0"], ids=["loaded", "streamed"])
def test_two_processes_give_the_weights_of_one(root: Path, stream: str) -> None:
    """DDP under torchrun and ZeRO-2 under deepspeed, the same batches a step; then ZeRO-2 killed and resumed."""
    script = str(ROOT / "trainer" / "train_full_sft_deepspeed.py")
    options = [*OPTIONS, "--stream_above_mb", stream, "--dtype", "float32"]
    assert main(["sft", *options, "--save_weight", "one"]) == 0
    two = [*options, "--accumulation_steps", "1", "--save_weight"]
    launched(root, "torchrun", "--nproc_per_node", "2", "--master_port", "29611", script, *two, "ddp")
    one = final(root, "one")
    names = ["ddp"]
    if shutil.which("deepspeed"):
        launch = ["deepspeed", "--num_accelerators", "2", "--master_port", "29612", script, *two, "zero2"]
        said = launched(root, *launch)
        names.append("zero2")
        store = Checkpoints(root / "checkpoints", "zero2_64_mla")
        assert "step 1/" in said and any(store.all()[0].glob("global_step*"))
        whole = final(root, "zero2")
        shutil.rmtree(store.all()[0])
        launched(root, *launch, "--from_resume", "1")
        assert same(final(root, "zero2"), whole)
    for name in names:
        other = final(root, name)
        assert one.keys() == other.keys()
        for key, tensor in one.items():
            torch.testing.assert_close(other[key], tensor, rtol=1e-5, atol=2e-6, msg=f"{name}: {key}")
        total = [sum(tensor.double().abs().sum().item() for tensor in found.values()) for found in (one, other)]
        assert total[0] == pytest.approx(total[1], rel=1e-8)


# ------------------------------------------------------------------------------------- scripts/run_general_sft_300m.sh


def general(root: Path, **settings: str) -> subprocess.Popen[str]:
    """The script in a copy of its folder: it works in the repository it lies in."""
    for name in ("scripts", "trainer", "configs"):
        shutil.copytree(ROOT / name, root / name, dirs_exist_ok=True)
    (root / "agentic").exists() or (root / "agentic").symlink_to(ROOT / "agentic")
    shutil.copy(ROOT / "pyproject.toml", root)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "AGENTIC_ROOT")}
    return subprocess.Popen(
        ["bash", "scripts/run_general_sft_300m.sh"],
        cwd=root,
        env=environment
        | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "dataset/general_sft_14g.jsonl: no such file; name the SFT data with DATA_PATH"),
        ({"DATA_PATH": "dataset/agentic_data/sft.jsonl"}, "pretrain_searchlm_1024_mla.pth: no such weight file"),
        ({"WEIGHT_PATH": "model/tokenizer.json"}, "expected a name like pretrain_searchlm_1024_mla.pth"),
        (
            {"WEIGHT_PATH": "out/pretrain_searchlm_64_mla.pth", "FORCE_RESUME": "1"},
            "there is no checkpoints/general_sft_14g_64",
        ),
        ({"WEIGHT_PATH": "out/pretrain_searchlm_64_mla.pth", "MICRO_BATCH": "x"}, "MICRO_BATCH=x: a whole number"),
    ],
)
def test_general_script_says_what_is_missing(root: Path, settings: dict[str, str], message: str) -> None:
    if "WEIGHT_PATH" in settings:
        settings = {"DATA_PATH": "dataset/agentic_data/sft.jsonl", **settings}
    process = general(root, **settings)
    said, _ = process.communicate()
    assert process.returncode == 2 and message in said and said.startswith("error: ")
    assert not (root / "logs").exists()


@pytest.mark.slow
def test_general_script_resumes_by_itself(root: Path) -> None:
    settings = {
        "NUM_GPUS": "0",
        "MODEL_PROFILE": "tiny",
        "WEIGHT_PATH": "out/pretrain_searchlm_64_mla.pth",
        "DATA_PATH": "dataset/agentic_data/sft.jsonl",
        "EPOCHS": "30",
        "SAVE_INTERVAL": "1",
        "ACCUMULATION_STEPS": "2",
        "LOG_INTERVAL": "1",
        "NUM_WORKERS": "1",
        "LEARNING_RATE": "1e-3",
    }
    first = general(root, **settings)
    latest = root / "checkpoints" / "general_sft_14g_64_mla_latest"
    while not latest.exists() and first.poll() is None:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL and latest.exists()
    second = general(root, **settings)
    said, _ = second.communicate()
    assert second.returncode == 0, said
    assert "resuming from general_sft_14g_64_mla_epoch" in said and "effective batch 2" in said
    assert (root / "out" / "general_sft_14g_64_mla.pth").exists()
    logs = sorted((root / "logs").iterdir())
    assert "wrote " in logs[-1].read_text()


# ----------------------------------------------------------------------------------------------------- 300M


@pytest.mark.slow
def test_one_step_of_the_300m_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights saved and loaded under the documented names; 12 GB of memory, some minutes on two cores."""
    import resource

    root = checkout(tmp_path / "root", "SearchLM-300M", questions=2)
    monkeypatch.setenv("AGENTIC_ROOT", str(root))
    monkeypatch.chdir(root / "trainer")
    command = "--model_profile SearchLM-300M --from_weight pretrain_searchlm --save_weight agent_sft --data_path"
    started = time.monotonic()
    options = [*command.split(), "../dataset/agentic_data/sft.jsonl", "--dtype", "float16", "--save_interval", "200"]
    assert main(["sft", *options, "--max_steps", "1", "--warmup_steps", "0"]) == 0
    before, after = weights(root, "pretrain_searchlm_1024_mla"), weights(root, "agent_sft_1024_mla")
    assert before.keys() == after.keys() and not same(before, after)
    assert (root / "checkpoints" / "agent_sft_1024_mla_latest").read_text() == "agent_sft_1024_mla_epoch1_step1\n"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"300M: one step, saved, in {time.monotonic() - started:.0f} s, peak {peak:.1f} GB")
    assert peak < 20
