# ruff: noqa: E402 (imports follow importorskip)
"""`agentic train` end to end on a random two-layer Llama, with real sandboxes."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("peft")

from rl_tiny import rows, run_and_kill, tiny_config, weights, write_tasks
from test_sft_documented import checkout
from tiny import make_folder

from agentic.cli import main
from agentic.config import TrainConfig
from agentic.errors import UserError
from agentic.train.rl import run

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def config(base: Path, tasks: Path, tmp_path: Path) -> TrainConfig:
    return tiny_config(base, tasks, tmp_path / "run")


@pytest.fixture(scope="module")
def whole(base: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run to its end, into its second epoch (6 tasks, 2 a step, 5 steps), evaluated at every checkpoint."""
    output = tmp_path_factory.mktemp("whole") / "run"
    config = tiny_config(base, tasks, output, dev_data=tasks, dev_tasks=1, eval_steps=2)
    assert run(config) == 0
    return config


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


TIMES = ("seconds", "rollout_tokens_per_s", "train_tokens_per_s", "elapsed_s", "eta_s")


def without_times(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


# ------------------------------------------------------------------------------------------------ what it writes


def test_a_run_and_what_it_says(whole: TrainConfig) -> None:
    folder = whole.output_dir
    assert folder is not None
    start, *found = rows(folder)
    assert start["step"] == 0 and [row["step"] for row in found] == [1, 2, 3, 4, 5]
    assert ["dev" in row for row in found] == [False, True, False, True, True]
    last = found[-1]
    assert (
        last["epoch"] == pytest.approx(10 / 6, abs=1e-3)
        and last["gamma"] == pytest.approx(0.05)
        and found[0]["gamma"] == pytest.approx(0.9)
    )
    for name in ("reward", "success", "void", "truncated", "kept_groups", "retries", "length", "entropy", "clip_high",
                 "loss_sft", "loss_rl", "grad_norm", "learning_rate", "rollout_tokens_per_s", "eta_s"):  # fmt: skip
        assert isinstance(last[name], float), name
    assert {"task_success", "answer_score", "tool_selection_f1", "schema_valid_rate", "exec_success_rate",
            "invalid_action_rate", "format_score", "avg_turns"} <= last["parts"].keys()  # fmt: skip
    assert {"rollout", "train", "pack", "step"} <= last["seconds"].keys()
    # The sampler is the same model in the same type: the gap is numeric noise (E13), also after large steps.
    assert all(row["gap"]["max"] < 1e-3 for row in found if "gap" in row)
    samples = rows(folder, "samples.jsonl")
    assert {row["step"] for row in samples} == {1, 2, 4}
    assert all(row["policy_version"] == f"step-{row['step'] - 1}" and row["parts"] and row["turns"] for row in samples)
    about = json.loads((folder / "final" / "agentic.json").read_text())
    assert about["method"].startswith("full fine-tuning; mixed, grpo, G = 3") and about["steps"] == 5
    assert "`agentic train`" in (folder / "final" / "README.md").read_text()


def test_killed_anywhere_it_resumes_to_the_same_bits(whole: TrainConfig, tmp_path: Path) -> None:
    """E10: kill -9 in a step of the second epoch; the rows and the weights are those of a run that nobody disturbed."""
    assert whole.output_dir is not None
    config = dataclasses.replace(whole, output_dir=tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    run_and_kill(config, lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= 4)
    assert not (tmp_path / "run" / "final").exists()
    # Half a line, as a kill in the middle of a write leaves it.
    with metrics.open("a") as file:
        file.write('{"step": 4, "lo')
    assert run(dataclasses.replace(config, resume_from_checkpoint=True)) == 0
    assert same(whole.output_dir / "final", tmp_path / "run" / "final")
    assert without_times(rows(tmp_path / "run")) == without_times(rows(whole.output_dir))
    assert rows(tmp_path / "run", "samples.jsonl") == rows(whole.output_dir, "samples.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("point", range(10))
def test_killed_at_ten_random_points(whole: TrainConfig, tmp_path: Path, point: int) -> None:
    """At any moment: in a rollout, in an update, while saving; twice, the second time in the resumed run."""
    assert whole.output_dir is not None
    config = dataclasses.replace(whole, output_dir=tmp_path / "run")
    generator = random.Random(point)
    seconds = rows(whole.output_dir)[-1]["elapsed_s"]
    for _ in range(2):
        store = [path for path in (tmp_path / "run").glob("checkpoint-*") if (path / "complete.json").exists()]
        if (tmp_path / "run" / "final").exists():
            break
        until = time.monotonic() + generator.uniform(0.2, 1.6 * seconds)
        run_and_kill(
            dataclasses.replace(config, resume_from_checkpoint=bool(store)),
            lambda until=until: time.monotonic() > until,
        )
    if not (tmp_path / "run" / "final").exists():
        store = [path for path in (tmp_path / "run").glob("checkpoint-*") if (path / "complete.json").exists()]
        assert run(dataclasses.replace(config, resume_from_checkpoint=bool(store))) == 0
    assert same(whole.output_dir / "final", tmp_path / "run" / "final")
    assert without_times(rows(tmp_path / "run")) == without_times(rows(whole.output_dir))


@pytest.mark.slow
def test_a_cut_checkpoint_is_passed_over(config: TrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """E11: the newest checkpoint cut to half its bytes."""
    config = dataclasses.replace(config, max_steps=2, save_steps=1, strategy="rl", max_resamples=0)
    assert run(config) == 0 and config.output_dir is not None
    final = weights(config.output_dir / "final")
    for path in (config.output_dir / "checkpoint-2").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"holds a run already; add --resume"):
        run(config)
    with pytest.raises(UserError, match=r"learning_rate was 0\.003, now 1\.0"):
        run(dataclasses.replace(config, resume_from_checkpoint=True, learning_rate=1.0))
    assert run(dataclasses.replace(config, resume_from_checkpoint=True)) == 0
    assert "checkpoint-2: half-written" in capsys.readouterr().out
    again = weights(config.output_dir / "final")
    assert all(torch.equal(final[name], again[name]) for name in final)


@pytest.mark.slow
def test_ctrl_c_in_a_rollout_saves_and_says_how_to_go_on(
    whole: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(whole, output_dir=tmp_path / "run", save_steps=100)
    metrics = tmp_path / "run" / "metrics.jsonl"

    def interrupt() -> None:
        while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 3:
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert run(config) == 130
    assert "--resume" in capsys.readouterr().out
    assert run(dataclasses.replace(config, resume_from_checkpoint=True)) == 0
    assert whole.output_dir is not None
    assert same(whole.output_dir / "final", tmp_path / "run" / "final")


# ---------------------------------------------------------------------------------------------------- strategies


def test_a_step_without_signal_leaves_the_weights_alone(config: TrainConfig, base: Path) -> None:
    """strategy rl, wrong answers everywhere, reward paper: equal rewards; nothing is trained, not even by momentum."""
    config = dataclasses.replace(config, strategy="rl", reward="paper", max_steps=2, max_resamples=0, max_new_tokens=1)
    assert run(config) == 0 and config.output_dir is not None
    found = rows(config.output_dir)
    assert [row["kept_groups"] for row in found] == [0.0, 0.0] and [row["skipped"] for row in found] == [1.0, 1.0]
    assert same(base, config.output_dir / "final")
    # The same rollouts with the SFT term: the step trains on it alone.
    mixed = dataclasses.replace(config, strategy="mixed", max_steps=1, output_dir=config.output_dir.with_name("mixed"))
    assert run(mixed) == 0 and mixed.output_dir is not None
    (row,) = rows(mixed.output_dir)
    assert row["kept_groups"] == 0.0 and row["skipped"] == 0.0 and row["loss_rl"] == 0.0
    assert row["loss"] == pytest.approx(row["gamma"] * row["loss_sft"], rel=1e-5)


def test_sft_then_rl_with_an_adapter_and_two_passes(config: TrainConfig, tasks: Path) -> None:
    """The SFT share has no rollouts and its own learning rate; dev results choose best/; two passes use one rollout."""
    config = dataclasses.replace(
        config,
        strategy="sft-then-rl",
        sft_share=0.5,
        sft_learning_rate=6e-3,
        max_steps=4,
        num_iterations=2,
        lora_rank=4,
        loss_type="cispo",
        max_resamples=0,
        dev_data=tasks,
        dev_tasks=2,
        eval_steps=4,
        save_steps=4,
    )
    assert run(config) == 0 and config.output_dir is not None
    start, *found = rows(config.output_dir)
    assert start["step"] == 0 and "greedy" in start["dev"] and "dev" in found[3] and "dev" not in found[2]
    assert [row["gamma"] for row in found] == [1.0, 1.0, 0.0, 0.0]
    assert ["reward" in row for row in found] == [False, False, True, True]
    assert [row["learning_rate"] for row in found] == pytest.approx([6e-3, 6e-3, 3e-3, 3e-3])
    assert found[3]["reward"] == found[2]["reward"] and found[3]["ratio"] != 1.0  # the second pass over the same
    for folder in ("best", "final"):
        assert (config.output_dir / folder / "adapter_model.safetensors").exists()
    assert "success on 2 dev tasks" in (config.output_dir / "best" / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_generations": 1}, "at least 2"),
        ({"temperature": 0.0}, "--temperature must be above 0"),
        ({"gamma_start": 1.5}, "between 0 and 1"),
        ({"num_iterations": 2, "save_steps": 3}, "multiple of --num_iterations"),
        ({"data_path": (Path("absent.jsonl"),)}, "absent.jsonl: no such file"),
        ({"from_weight": "x", "model_name_or_path": "y"}, "choose one of"),
        ({"lr_scheduler_type": "wavy"}, "choose one of"),
        ({"resume_from_checkpoint": True}, "no whole checkpoint"),
        ({"report_to": "nobody"}, "choose one of none"),
    ],
)
def test_user_errors_are_sentences(config: TrainConfig, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(dataclasses.replace(config, **change))


def test_dry_run_says_the_plan_and_writes_nothing(config: TrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(dataclasses.replace(config, dry_run=True, max_steps=-1)) == 0
    assert "6 tasks (6 with an expert trajectory), 0 dev tasks; 3 steps, 2 tasks a step x 3 samples, grpo, mixed" in (
        capsys.readouterr().out
    )
    assert config.output_dir is not None and not config.output_dir.exists()


# ---------------------------------------------------------------------------------------------- documented names

DOCUMENTED = (
    "--model_profile tiny --from_weight pretrain_searchlm --save_weight agent_grpo --data_path "
    "../dataset/agentic_data/train.jsonl --num_generations 6 --batch_size 1 --accumulation_steps 4 --dtype float16 "
    "--save_interval 2 --max_new_tokens 8 --max_total_tokens 8 --max_steps 4 --max_resamples 0"
).split()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository root with SearchLM weights and tasks, the working folder its trainer/."""
    root = checkout(tmp_path / "root")
    write_tasks(root / "dataset" / "agentic_data").rename(root / "dataset" / "agentic_data" / "train.jsonl")
    monkeypatch.setenv("AGENTIC_ROOT", str(root))
    monkeypatch.chdir(root / "trainer")
    return root


def test_trainer_and_sampler_of_searchlm_are_two_models(root: Path) -> None:
    """Their configurations, too: packed rows need the attention that knows about rows."""
    from agentic.model.chat import Renderer
    from agentic.train.rl_model import load_copy, load_trainable
    from agentic.train.rl_setup import prepare

    config = TrainConfig((Path("tasks.jsonl"),), from_weight="pretrain_searchlm", model_profile="tiny")
    setup = prepare(config)
    model, _ = load_trainable(setup, Renderer(setup.base.tokenizer), bfloat16=False)
    sampler = load_copy(setup, "float32")
    assert model.config._attn_implementation == "packed" and sampler.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_the_documented_names(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stopped after two steps by --max_steps, then --from_resume 1, in the documented places."""
    options = [*DOCUMENTED[:-4], "--max_steps", "2", *DOCUMENTED[-2:]]
    assert main(["train", *options]) == 0
    assert "--dtype float16 needs a GPU" in capsys.readouterr().out
    shutil.rmtree(root / "runs" / "agent_grpo_64_mla" / "final")
    first = torch.load(root / "out" / "agent_grpo_64_mla.pth", weights_only=True)
    assert main(["train", *DOCUMENTED, "--from_resume", "1"]) == 0
    assert (root / "checkpoints" / "agent_grpo_64_mla_latest").read_text() == "agent_grpo_64_mla_epoch3_step4\n"
    names = {path.name for path in (root / "checkpoints").iterdir()}
    assert names == {f"agent_grpo_64_mla_{end}" for end in ("latest", "epoch2_step2", "epoch3_step4")}
    second = torch.load(root / "out" / "agent_grpo_64_mla.pth", weights_only=True)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    found = rows(root / "runs" / "agent_grpo_64_mla")
    assert [row["step"] for row in found] == [1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------------- slow


def launch(command: list[str], config: TrainConfig, **changes: Any) -> None:
    """The command line in processes of its own."""
    config = dataclasses.replace(config, **changes)
    options = []
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), field.default
        if value != default and field.name != "data_path":
            options.append(f"--{field.name}={value}")
    options += ["--data", *map(str, config.data_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "train", *options], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_two_processes_equal_one(config: TrainConfig, tmp_path: Path) -> None:
    """DDP over gloo: the same tasks, samples and weights as one process, up to the order of sums."""
    config = dataclasses.replace(config, max_steps=3)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    launch([*torchrun, "agentic.cli"], config, output_dir=tmp_path / "two", batch_size=2)
    assert run(dataclasses.replace(config, output_dir=tmp_path / "one", batch_size=4)) == 0
    one, two = weights(tmp_path / "one" / "final"), weights(tmp_path / "two" / "final")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=3e-5, rtol=1e-4)
    checksums = [sum(float(value.double().abs().sum()) for value in found.values()) for found in (one, two)]
    assert checksums[0] == pytest.approx(checksums[1], rel=1e-8)
    for name in ("reward", "loss", "kept_groups", "retries", "entropy", "tokens"):
        for a, b in zip(rows(tmp_path / "one"), rows(tmp_path / "two"), strict=True):
            assert a[name] == pytest.approx(b[name], rel=1e-4)


@pytest.mark.slow
def test_the_reward_rises_on_a_task_that_can_be_learnt(config: TrainConfig) -> None:
    """Pure RL with dapo from random weights: well-formed and shorter answers are within reach of chance."""
    config = dataclasses.replace(
        config,
        strategy="rl",
        loss_type="dapo",
        max_steps=40,
        batch_size=3,
        num_generations=8,
        max_new_tokens=8,
        max_total_tokens=8,
        learning_rate=2e-3,
        save_steps=100,
    )
    assert run(config) == 0 and config.output_dir is not None
    rewards = [row["reward"] for row in rows(config.output_dir)]
    first, last = sum(rewards[:8]) / 8, sum(rewards[-8:]) / 8
    assert last > first + 0.3, rewards


@pytest.mark.slow
def test_the_documented_command_under_deepspeed_interrupted_and_resumed(root: Path) -> None:
    """ZeRO-2 in two processes, Ctrl-C, --from_resume 1: the same weights as without the interruption."""
    pytest.importorskip("deepspeed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launcher = [shutil.which("deepspeed") or "deepspeed", "--num_accelerators", "2", "--master_port", "29731"]
    command = [*launcher, str(ROOT / "trainer" / "train_agent_deepspeed.py"), *DOCUMENTED]

    def start(*options: str) -> subprocess.Popen[bytes]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*command, *options], env=environment, start_new_session=True, **quiet)  # type: ignore[call-overload, no-any-return]

    whole = start()
    assert whole.wait(900) == 0
    folder = root / "runs" / "agent_grpo_64_mla"
    expected = torch.load(root / "out" / "agent_grpo_64_mla.pth", weights_only=True)
    for name in ("runs", "checkpoints", "out/agent_grpo_64_mla.pth"):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    stopped = start()
    while not (folder / "metrics.jsonl").exists() or not rows(folder):
        assert stopped.poll() is None
        time.sleep(0.05)
    os.killpg(stopped.pid, signal.SIGINT)
    assert stopped.wait(900) != 0 and not (folder / "final").exists()
    resumed = start("--from_resume", "1")
    assert resumed.wait(900) == 0
    found = torch.load(root / "out" / "agent_grpo_64_mla.pth", weights_only=True)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=0, rtol=0)
