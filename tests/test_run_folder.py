from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentic import run_folder
from agentic.config import EvalConfig
from agentic.errors import UserError
from agentic.run_folder import only_writer


def test_record_is_whole_before_the_work_starts(tmp_path: Path) -> None:
    config = EvalConfig(data=Path("test.jsonl"), replay="oracle", seed=7)
    run = run_folder.open_run(tmp_path / "a" / "b", config, "eval")
    record = json.loads((run.path / run_folder.CONFIG).read_text())
    assert not run.resumed
    assert record["command"] == "eval" and record["seed"] == 7
    assert record["options"]["data"] == "test.jsonl"
    assert set(record["options"]) == set(vars(config))
    assert {"agentic", "python", "pandas"} <= set(record["versions"])
    assert record["machine"]["cores"] >= 1
    assert [path.name for path in run.path.iterdir()] == [run_folder.CONFIG]


def test_same_options_resume_and_others_are_refused(tmp_path: Path) -> None:
    config = EvalConfig(data=Path("test.jsonl"), replay="oracle")
    run_folder.open_run(tmp_path, config, "eval").log({"step": 1})
    again = run_folder.open_run(tmp_path, config, "eval")
    assert again.resumed
    again.log({"step": 2})
    assert [json.loads(row)["step"] for row in (tmp_path / run_folder.METRICS).read_text().splitlines()] == [1, 2]
    with pytest.raises(UserError, match=r"seed was 0, now 1.*--output_dir"):
        run_folder.open_run(tmp_path, replace(config, seed=1), "eval")
    assert run_folder.open_run(tmp_path, replace(config, limit=9), "eval", may_change={"limit"}).resumed
    with pytest.raises(UserError, match="a run of 'agentic eval'"):
        run_folder.open_run(tmp_path, config, "sft")


def test_facts_decide_and_a_restart_writes_the_record_anew(tmp_path: Path) -> None:
    config = EvalConfig(data=Path("test.jsonl"), replay="oracle")
    run_folder.open_run(tmp_path, config, "eval", facts={"data_hash": "a"})
    assert run_folder.open_run(tmp_path, config, "eval", facts={"data_hash": "a"}).resumed
    with pytest.raises(UserError, match="data_hash was 'a', now 'b'"):
        run_folder.open_run(tmp_path, config, "eval", facts={"data_hash": "b"})
    other = replace(config, seed=1)
    assert not run_folder.open_run(tmp_path, other, "eval", facts={"data_hash": "b"}, restart=True).resumed
    assert run_folder.open_run(tmp_path, other, "eval", facts={"data_hash": "b"}).resumed
    with pytest.raises(UserError, match="a run of 'agentic eval'"):
        run_folder.open_run(tmp_path, other, "sft", restart=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"options": {}}'])
def test_foreign_file_is_not_taken_for_a_run(tmp_path: Path, text: str) -> None:
    (tmp_path / run_folder.CONFIG).write_text(text)
    with pytest.raises(UserError, match="not written by agentic eval"):
        run_folder.open_run(tmp_path, EvalConfig(data=Path("x")), "eval")


def test_unwritable_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write there"):
        run_folder.open_run(tmp_path / "file" / "run", EvalConfig(data=Path("x")), "eval")


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = run_folder.write_json(tmp_path / "metrics.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        run_folder.write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with only_writer(tmp_path), pytest.raises(UserError, match="another run is writing"), only_writer(tmp_path):
        raise AssertionError("both hold the folder")
    with only_writer(tmp_path):  # free again
        pass
