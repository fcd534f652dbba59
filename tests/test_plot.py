"""`agentic plot`: what is drawn is what was logged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image

from agentic import cli
from agentic.errors import UserError
from agentic.train.plot import Run, band, default_name, figure_of, flat, grouped, read_run, smoothed


def write_run(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def rl_rows(steps: int, shift: float = 0.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        row = {
            "step": step,
            "elapsed_s": 50.0 * step,
            "reward": shift + step / steps,
            "success": step / steps,
            "gamma": 0.9 - step / 10,
            "parts": {"answer": 0.5, "format": 1.0},
            "length": 80,
            "seconds/rollout": 30.5,
            "seconds/train": 12.0,
            "note": "text is no number",
            "best": True,
            "missing": None,
        }
        if step % 2 == 0:
            row |= {"dev/sampled_success": 0.4, "dev/greedy_success": 0.6}
        rows.append(row)
    return rows


def test_every_number_of_rl_and_sft_runs_has_a_figure(tmp_path: Path) -> None:
    sft = [{"step": s, "epoch": 0.1, "loss": 1 / s, "token_accuracy": 0.9, "tokens_per_s": 250.0} for s in (1, 2, 3)]
    folders = [write_run(tmp_path / "rl", rl_rows(6)), write_run(tmp_path / "sft", sft)]
    assert grouped([read_run(folder, folder.name) for folder in folders]) == {
        "reward": ["reward"],
        "success": ["success", "dev/sampled_success", "dev/greedy_success"],
        "gamma": ["gamma"],
        "parts": ["parts/answer", "parts/format"],
        "lengths": ["length"],
        "times": ["seconds/rollout", "seconds/train", "tokens_per_s"],
        "loss": ["loss", "token_accuracy"],
    }


def test_runs_over_one_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": row["step"], "reward": row["reward"], "gamma": row["gamma"]} for row in rl_rows(6)]
    runs = [write_run(tmp_path / f"mixed-seed{seed}", rows) for seed in (0, 1)]
    runs.append(write_run(tmp_path / "_rl $x_{", [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.25}]))
    output = tmp_path / "figures"
    assert cli.main(["plot", *map(str, runs), "--output_dir", str(output), "--smooth", "2"]) == 0
    said = capsys.readouterr().out
    assert "reward.png: reward\n" in said and "mixed: mean and range of 2 runs" in said
    assert sorted(path.name for path in output.iterdir()) == ["gamma.png", "reward.png"]
    pixels = image.imread(output / "reward.png")
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10  # not an empty page


def test_one_run_is_drawn_into_its_own_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [{"step": 1, "loss": 2.0}])
    assert cli.main(["plot", str(folder)]) == 0
    assert [path.name for path in (folder / "plots").iterdir()] == ["loss.png"]


def test_lines_hold_the_logged_values(tmp_path: Path) -> None:
    a = read_run(write_run(tmp_path / "a", rl_rows(4)), "a")
    b = read_run(write_run(tmp_path / "b", rl_rows(4, 1.0)), "b")
    figure = figure_of(["reward", "dev/greedy_success"], [a, b])
    reward, dev = figure.axes
    assert [line.get_xydata().tolist() for line in reward.lines] == [
        [[step, shift + step / 4] for step in (1, 2, 3, 4)] for shift in (0.0, 1.0)
    ]
    assert dev.lines[0].get_xydata().tolist() == [[2.0, 0.6], [4.0, 0.6]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    # Two seeds of one name: both, their mean, and the range as an area.
    shared = figure_of(["reward"], [a, Run("a", b.series)]).axes[0]
    assert len(shared.lines) == 3 and len(shared.collections) == 1
    assert shared.lines[2].get_ydata().tolist() == pytest.approx([0.5 + step / 4 for step in (1, 2, 3, 4)])


def test_another_x_axis(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rl_rows(3))
    assert read_run(folder, "run", "elapsed_s").series["reward"][0] == (50.0, pytest.approx(1 / 3))
    with pytest.raises(UserError, match=r"nothing is logged beside 'hours'; --x may be one of: elapsed_s, step"):
        read_run(folder, "run", "hours")


def test_a_step_that_was_run_again_counts_once(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    assert read_run(write_run(tmp_path / "run", rows), "run").series == {"loss": [(1.0, 3.0), (2.0, 1.0)]}


def test_problems_are_one_sentence_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_run(tmp_path / "good", rl_rows(2))
    output = tmp_path / "figures"

    def fails(*arguments: str) -> str:
        assert cli.main(["plot", str(good), *arguments, "--output_dir", str(output)]) == 2
        assert not output.exists()
        return capsys.readouterr().err

    assert "no such folder; name the --output_dir of a training run" in fails(str(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    assert "has no metrics.jsonl" in fails(str(tmp_path / "empty"))
    broken = write_run(tmp_path / "broken", rl_rows(2))
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    assert "metrics.jsonl, line 3: broken JSON at column" in fails(str(broken))
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "metrics.jsonl").write_text("\n")
    assert "holds no numbers yet" in fails(str(tmp_path / "blank"))
    assert "--names has 2 names for 1 runs" in fails("--names", "a", "b")
    assert "--smooth must be at least 1" in fails("--smooth", "0")
    output_file = tmp_path / "file"
    output_file.write_text("")
    assert cli.main(["plot", str(good), "--output_dir", str(output_file)]) == 2
    assert "name another --output_dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "name"),
    [("grpo-seed1", "grpo"), ("grpo_seed_12", "grpo"), ("seed0", "seed0"), ("linseed", "linseed"), ("a-seed1-b",) * 2],
)
def test_a_seed_is_no_part_of_the_name(folder: str, name: str) -> None:
    assert default_name(Path("/runs") / folder) == name


def test_numbers_that_are_none_are_left_out() -> None:
    row = {"a": 1, "b": {"c": 2.5, "d": "x", "e": {"f": 3}}, "g": math.nan, "h": math.inf, "i": False, "j": [1]}
    assert dict(flat(row)) == {"a": 1.0, "b/c": 2.5, "b/e/f": 3.0}


def test_unknown_keys_have_a_figure_too() -> None:
    run = Run("a", {key: [(1.0, 1.0)] for key in ("rl_loss", "groups/kept", "alarm")})
    assert grouped([run]) == {"loss": ["rl_loss"], "other": ["groups/kept", "alarm"]}


values = st.floats(-100, 100)
series = st.lists(st.tuples(st.integers(0, 30).map(float), values), min_size=1, max_size=12, unique_by=lambda p: p[0])


@given(st.lists(series.map(sorted), min_size=1, max_size=4))
def test_the_band_is_that_of_numpy(runs: list[list[tuple[float, float]]]) -> None:
    rows = band(runs)
    start, end = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    assert [row[0] for row in rows] == sorted({x for run in runs for x, _ in run if start <= x <= end})
    if rows:
        at = [row[0] for row in rows]
        table = np.array([np.interp(at, *zip(*run, strict=True)) for run in runs])
        expected = np.stack([table.mean(0), table.min(0), table.max(0)], axis=1)
        np.testing.assert_allclose([row[1:] for row in rows], expected, atol=1e-9)


@given(series.map(sorted), st.integers(1, 9))
def test_smoothing_is_a_centred_mean(points: list[tuple[float, float]], window: int) -> None:
    means = smoothed(points, window)
    assert [x for x, _ in means] == [x for x, _ in points]
    y = [value for _, value in points]
    for index, (_, mean) in enumerate(means):
        inside = [y[i] for i in range(len(y)) if index - (window - 1) // 2 <= i <= index + window // 2]
        assert mean == pytest.approx(np.mean(inside), abs=1e-9)
