"""Operations programs: enumerated and drawn without repetition, gold that other code confirms, experts that share sessions."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import jsonl
from agentic.cli import main
from agentic.errors import UserError
from agentic.records import Task
from agentic.reward.answer import compare
from agentic.sandbox import Sandbox
from agentic.tasks.certify import Certifier
from agentic.tasks.draw import Unfit
from agentic.tasks.expert import Script, Step, python_step
from agentic.tasks.metrics import rivals
from agentic.tasks.ops import OpsQuestion, realise
from agentic.tasks.ops_script import ops_script
from agentic.tasks.programs import CLASSIC, OPERATIONS, UNSEEN, Program, all_programs, count_programs, draw_programs
from agentic.tasks.runners import Chunk, play_chunk
from agentic.tasks.store import HOTEL_DESCRIPTIONS, build_hotels, hotel_world, shop_world
from agentic.tasks.tally import Retrieval
from agentic.tasks.world import World

pytest_plugins = ("built",)

ALL = {**OPERATIONS, **UNSEEN}


@pytest.fixture(scope="module")
def shop(built: Path) -> World:
    return shop_world(built / "tables", built)


@pytest.fixture(scope="module")
def hotels(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("hotels")
    for name, frame in build_hotels(0).items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return hotel_world(folder, folder.parent)


def asked(world: World, operations: dict[str, float], count: int, seed: int = 0) -> list[OpsQuestion]:
    """`count` questions, in both languages."""
    found: list[OpsQuestion] = []
    for program in draw_programs(world, operations, f"test-{seed}"):
        try:
            found.append(realise(program, world, random.Random(len(found)), ["en", "zh"][len(found) % 2]))
        except Unfit:
            continue
        if len(found) == count:
            break
    return found


@pytest.fixture(scope="module")
def questions(shop: World, hotels: World) -> list[tuple[World, OpsQuestion]]:
    """A few hundred, over both worlds and all operations."""
    return [(world, question) for world in (shop, hotels) for question in asked(world, ALL, 180)]


# ------------------------------------------------------------------------------------------ programs


def test_a_drawing_gives_every_program_once(hotels: World) -> None:
    operations = {"drill": 1.0, "top_share": 2.0, "value": 1.0}
    enumerated = [program.canonical for program in all_programs(hotels, operations)]
    drawn = [program.canonical for program in draw_programs(hotels, operations, "s")]
    assert len(drawn) == len(set(drawn)) == sum(count_programs(hotels, operations).values()) > 3000
    assert sorted(drawn) == sorted(enumerated)
    limits = [p.canonical for p in itertools.islice(all_programs(hotels, {"count_above": 1.0}), 600)]
    assert len(set(limits)) == 600  # two quantiles that are said as one number are one program


def test_more_than_a_million_programs(shop: World) -> None:
    assert sum(count_programs(shop, OPERATIONS).values()) > 4_000_000
    assert min(count_programs(shop, ALL).values()) > 2_000


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
def test_a_million_programs_take_no_memory(shop: World) -> None:
    drawing = draw_programs(shop, OPERATIONS, "million")
    # Numbers tell repetitions from programs: the canonical texts of a million would be the memory that is measured.
    first = {hash(next(drawing).canonical) for _ in range(100_000)}
    before = _resident_mb()
    for _ in itertools.islice(drawing, 800_000):
        pass
    assert _resident_mb() - before < 40
    last = {hash(program.canonical) for program in itertools.islice(drawing, 100_000)}
    assert len(first) == len(last) == 100_000 and not first & last


@given(st.integers(0, 10**6))
@settings(max_examples=4, deadline=None)
def test_one_seed_one_drawing(shop: World, seed: int) -> None:
    first, again, other = (
        [program.canonical for program in itertools.islice(draw_programs(shop, OPERATIONS, text), 8)]
        for text in (f"a{seed}", f"a{seed}", f"b{seed}")
    )
    assert first == again != other


def test_weights_are_kept(shop: World) -> None:
    drawn = Counter(program.operation for program in itertools.islice(draw_programs(shop, OPERATIONS, "w"), 2500))
    for operation, weight in OPERATIONS.items():
        assert drawn[operation] / 2500 == pytest.approx(weight / sum(OPERATIONS.values()), rel=0.35)


def test_what_means_the_same_is_one_program(shop: World) -> None:
    by_id = shop.by_id
    filters = (("channel", "live"), ("quarter", "2024Q1"))
    one = Program(by_id["net_revenue"], "value", None, filters)
    assert one.canonical == Program(by_id["gmv.net"], "value", None, filters).canonical
    drawn = list(itertools.islice(all_programs(shop, {"difference": 1, "ratio": 1}), 9_000))
    pairs = {(p.operation, p.metric.id, p.filters, frozenset(p.arguments)) for p in drawn}
    assert len(pairs) == len(drawn)  # never a - b beside b - a
    assert all(list(p.filters) == sorted(p.filters) for p in drawn)


def test_differences_are_distances_asked_in_both_orders(shop: World) -> None:
    """A negative difference would call "b is 5 lower than a" wrong."""
    differences = asked(shop, {"difference": 1}, 60)
    assert all(question.gold.value > 0 for question in differences)
    named = [
        [question.question.index(str(level)) for level in question.arguments]
        for question in differences
        if all(question.question.count(str(level)) == 1 for level in question.arguments)
    ]
    assert 10 < sum(first < second for first, second in named) < len(named) - 10
    lower = [question for question in differences if "lower" in question.question]
    assert lower
    for question in lower:
        said = f"It is lower by {question.gold.value}."
        assert compare(said, [question.check], question.question).correct, said
        assert not compare(f"It is higher by {-question.gold.value}.", [question.check], question.question).correct


def test_a_chain_says_its_filters_in_both_steps(shop: World) -> None:
    chains = asked(shop, {"chain_metric": 1, "drill": 1, "chain_change": 1}, 90)
    for question in chains:
        for _, level in question.program.filters:
            assert question.question.count(str(level)) >= 2, question.question
        assert "那里" not in question.question and " there" not in question.question


def test_no_document_contradicts_another(questions: list[tuple[World, OpsQuestion]]) -> None:
    """ "In this company GMV leaves refunds out" never stands beside a GMV that does not leave them out."""
    seen = 0
    for _, question in questions:
        texts = {document.id: document.text for document in question.documents}
        if any("GMV leaves refunds out" in text or "GMV不含退款" in text for text in texts.values()):
            seen += 1
            assert not {"gmv"} & texts.keys() and len({"gmv.net", "gmv_per_user.net"} & texts.keys()) == 1, texts
    assert seen > 5


def test_plural_metrics_have_plural_verbs(questions: list[tuple[World, OpsQuestion]]) -> None:
    bad = re.compile(
        r"\b(?:is|was) the (?:refunds|clicks|impressions|new users|active users)\b|\ba (?:clicks|refunds|impressions|active|average|AOV)\b"
        r"|\b(?:users|clicks|refunds|impressions) (?:rises|falls)\b"
    )
    assert not [question.question for _, question in questions if bad.search(question.question)]


# --------------------------------------------------------------------------------------------- tasks


def test_gold_passes_and_recorded_mistakes_fail(questions: list[tuple[World, OpsQuestion]]) -> None:
    kinds: Counter[str] = Counter()
    for _, question in questions:
        assert compare(question.answer, [question.check], question.question).correct, question
        for what, wrong in question.wrong.items():
            kinds[what] += 1
            assert not compare(wrong, [question.check], question.question).correct, (what, wrong, question)
    assert min(kinds[what] for what in ("rival", "unfiltered", "neighbour", "fraction", "swapped")) > 10, kinds
    assert {question.program.operation for _, question in questions} == ALL.keys()


@pytest.mark.parametrize("engine", ["duckdb", "sqlite"])
def test_sql_confirms_the_gold(
    questions: list[tuple[World, OpsQuestion]], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "duckdb":
        pytest.importorskip("duckdb")
    else:
        monkeypatch.setitem(sys.modules, "duckdb", None)
    certifiers: dict[int, Certifier] = {}
    for world, question in questions[:30] + questions[-15:]:
        certifier = certifiers.setdefault(id(world), Certifier(world))
        assert certifier.engine == engine
        assert certifier.problem(question) is None, question.program.canonical


def test_a_gold_that_sql_does_not_confirm_is_said(shop: World) -> None:
    question = asked(shop, {"value": 1}, 1)[0]
    certifier = Certifier(shop)
    frames = {name: frame.copy() for name, frame in shop.frames.items()}
    for frame in frames.values():
        numbers = frame.select_dtypes("number").columns
        frame[numbers] = frame[numbers] * 3 + 1
    other = World("", shop.refs, frames, list(shop.dimensions.values()), shop.metrics, shop.variables)
    assert certifier.problem(question) is None
    assert "another value" in str(Certifier(other).problem(question))


def test_ties_empty_slices_and_zero_denominators_are_no_questions(hotels: World) -> None:
    frames = {name: frame.copy() for name, frame in hotels.frames.items()}
    stays = frames["stays"]
    stays.loc[stays["brand"] == "Driftwood", "bookings"] = 0  # cancellation rate: nothing divided by
    stays.loc[stays["city"].isin(["Bergen", "Split"]), "room_revenue"] = 500.0  # the two highest, or lowest, are equal
    frames["stays"] = stays[~((stays["brand"] == "Elmstead") & (stays["period"] == "2020/03"))]
    world = World("", hotels.refs, frames, list(hotels.dimensions.values()), hotels.metrics, hotels.variables)
    by_id = world.by_id

    def realised(metric: str, *parts: Any) -> OpsQuestion:
        return realise(Program(by_id[metric], *parts), world, random.Random(0), "en")

    for metric, *parts in (
        ("cancellation_rate.bookings", "value", None, (("brand", "Driftwood"),)),
        ("cancellation_rate.bookings", "extreme", "brand", (), (True,)),
        ("room_revenue", "extreme", "city", (("brand", "Driftwood"), ("period", "2020/01")), (False,)),
        ("nights_sold", "value", None, (("brand", "Elmstead"), ("period", "2020/03"))),
        ("nights_sold", "difference", "brand", (("period", "2020/03"),), ("Alder House", "Elmstead")),
    ):
        with pytest.raises(Unfit):
            realised(metric, *parts)
    assert realised("nights_sold", "extreme", "brand", (("period", "2020/03"),), (True,)).gold.value != "Elmstead"


def test_definitions_are_found_and_matter(questions: list[tuple[World, OpsQuestion]]) -> None:
    counted = Retrieval()
    for world, question in questions:
        counted.add(question, world)
        shown = {document.id for document in question.documents}
        metrics = [world.by_id[id] for _, id in question.queries]
        assert len(question.documents) == 5 and {metric.id for metric in metrics} <= shown
        for metric in metrics:
            assert not shown & {rival.id for rival in rivals(metric, world.metrics)}
    said = counted.to_json()
    assert said["recall_at_2_by_question"] >= 0.97 and said["recall_at_2_by_expert_query"] >= 0.97
    assert said["tasks_whose_answer_a_rival_changes"] > 0.2


def test_phrasings_name_what_the_program_needs(questions: list[tuple[World, OpsQuestion]]) -> None:
    for world, question in questions:
        text = question.question
        assert "{" not in text and "的的" not in text
        assert all(str(level) in text for _, level in question.program.filters)
        if question.program.operation in {"difference", "ratio", "change", "share", "rank", "contribution"}:
            assert all(str(argument) in text for argument in question.arguments)
        assert any(
            name in text for name in (*question.program.metric.name_en, *question.program.metric.name_zh)
        ) or any(name.lower() in text.lower() for name in question.program.metric.name_en), world


# -------------------------------------------------------------------------------------------- experts


def scripts_over(world: World, base_dir: Path, operations: dict[str, float], count: int, slips: bool) -> list[Script]:
    found = asked(world, operations, count, seed=5)
    rng = random.Random(1)
    languages = ["en", "zh"]
    return [ops_script(f"t{i}", q, world, languages[i % 2], base_dir, rng, slips) for i, q in enumerate(found)]


def renamed(scripts: list[Script]) -> list[Script]:
    return [
        Script(s.task.model_copy(update={"id": f"t{i}"}), s.base_dir, s.steps, s.gold) for i, s in enumerate(scripts)
    ]


def scripted(script: Script, code: str) -> Script:
    return Script(script.task, script.base_dir, [python_step(code), Step("1")])


@pytest.fixture(scope="module")
def played(shop: World, built: Path) -> dict[str, Any]:
    """What became of several chunks, all in one sandbox: a list of results or the error that ended the chunk."""
    every = [s for name in ALL for s in scripts_over(shop, built, {name: 1.0}, 2, slips=False)]
    every += [s for s in scripts_over(shop, built, OPERATIONS, 200, slips=True) if any(t.detour for t in s.steps)][:3]
    first, second = scripts_over(shop, built, {"value": 1.0}, 2, slips=False)
    tables = dict.fromkeys(term.table for term in shop.by_id[str(second.task.metadata["metric"])].terms)
    doubles = "\n".join(f"{t}.loc[:, {t}.columns[-3:]] = {t}.iloc[:, -3:] * 2" for t in tables) + "\nprint(1)"
    binds = scripted(first, "leak = 7\nimport math as mt\ndef f(): pass\nfor i in range(2): j = i\nprint(leak)")
    looks = scripted(second, "print([n for n in ('leak', 'mt', 'f', 'i', 'j') if n in globals()])")
    chunks = {
        "every kind": Chunk(renamed(every), proved=7),
        "alone": Chunk([second], proved=0),
        "traces": Chunk([scripted(first, doubles), second], proved=1),
        "names": Chunk([binds, looks], proved=1),
    }

    async def play() -> dict[str, Any]:
        results: dict[str, Any] = {}
        async with Sandbox() as sandbox:
            for name, chunk in chunks.items():
                try:
                    results[name] = await play_chunk(sandbox, chunk)
                except UserError as error:
                    results[name] = error
        return results

    return asyncio.run(play())


def test_experts_of_every_kind_share_a_session(played: dict[str, Any]) -> None:
    results = played["every kind"]
    assert {result.reason for result in results} == {""}
    tasks = [Task.model_validate_json(result.line) for result in results]
    for task in tasks:
        called = [call.function.name for m in task.expert_trajectory for call in m.tool_calls or ()]
        if task.metadata["category"] in {"chain_change", "chain_metric", "drill"}:
            assert called.count("python_executor") >= 2
        if task.checks[0].kind == "number":  # the check holds what the executed program gave
            assert float(task.expert_trajectory[-2].content) == task.checks[0].value
    chained = next(t for t in tasks if t.metadata["category"] == "chain_metric")
    called = [call.function.name for m in chained.expert_trajectory for call in m.tool_calls or ()]
    assert called == ["retriever", "python_executor", "retriever", "python_executor"]
    for task in tasks[-3:]:  # another document first: not trained, and the second query finds the right one
        queried = [
            (said.weight, found.content)
            for said, found in itertools.pairwise(task.expert_trajectory)
            if found.name == "retriever"
        ]
        (poor,) = (found for weight, found in queried if weight == 0)
        assert poor not in {found for weight, found in queried if weight is None}


def test_a_script_that_leaves_traces_in_the_shared_session_ends_the_build(played: dict[str, Any]) -> None:
    assert [result.reason for result in played["alone"]] == [""]
    assert isinstance(played["traces"], UserError) and "a fresh one" in str(played["traces"])


def test_names_do_not_pass_from_one_script_to_the_next(played: dict[str, Any]) -> None:
    assert all("fails the task's own checks" in result.reason for result in played["names"])  # and no proof failed


# ----------------------------------------------------------------------------------------------- build


def test_the_manifest_and_the_card_say_what_there_is(built: Path) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    assert manifest["duplicates"] == {"inside_splits": 0, "shared_between_splits": 0}
    assert manifest["retrieval"]["recall_at_2_by_question"] >= 0.9  # of thirty questions
    for split in manifest["splits"].values():
        for part in ("languages", "categories", "difficulties", "expert_turns"):
            assert sum(split[part].values()) == split["tasks"]
    card = (built / "README.md").read_text()
    assert all(f"| {name}.jsonl | {one['tasks']} |" in card for name, one in manifest["splits"].items())
    assert not (built / ".build").exists()


def test_unseen_tasks_are_of_other_families_or_tables(built: Path) -> None:
    trained = {task.metadata["category"] for task in jsonl.read(built / "train.jsonl", Task)}
    assert not trained & UNSEEN.keys()
    seen: Counter[tuple[bool, bool]] = Counter()
    for task in jsonl.read(built / "test_unseen.jsonl", Task):
        seen[(task.metadata["category"] in UNSEEN, task.tables[0].name in HOTEL_DESCRIPTIONS)] += 1
    assert seen.keys() == {(True, False), (False, True), (True, True)}


def test_the_first_operations_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", f"--output_dir={tmp_path / 'd'}", "--dry_run", "--operations", *CLASSIC]) == 0
    said = capsys.readouterr().out
    assert "programs over" in said and all(f"{name}: " in said for name in CLASSIC) and "rank" not in said
    assert not (tmp_path / "d").exists()
    assert main(["build", f"--output_dir={tmp_path / 'd'}", "--operations", "valeu"]) == 2
    assert "no operation 'valeu'; the operations are value, extreme" in capsys.readouterr().err


def test_too_many_tasks_are_refused_at_once_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    assert main(["build", f"--output_dir={tmp_path}", "--train_size=30000", "--operations", "value"]) == 2
    assert "there are 12,976 distinct programs, 30,400 tasks are asked for" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_files_that_no_build_made_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert main(["build", f"--output_dir={tmp_path}"]) == 2
    assert "holds README.md, which no build has made" in capsys.readouterr().err
    mine = tmp_path / "data" / "tables"
    mine.mkdir(parents=True)
    (mine / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "m.yaml").write_text("metrics: [{name: a, expression: sum(t.a)}]")
    own = [f"--metrics={tmp_path / 'm.yaml'}", f"--tables={mine}"]
    for output in (mine, mine.parent):
        assert main(["build", f"--output_dir={output}", *own]) == 2
        assert "holds the tables that --tables names" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == "mine" and [path.name for path in mine.iterdir()] == ["t.csv"]


def test_a_changed_file_is_not_what_the_manifest_names(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", f"--data={built}"]) == 0
    assert capsys.readouterr().out.count("programs shared with") == 12
    for file in built.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "dev.jsonl").unlink()
    lines = (built / "dev.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "dev.jsonl").write_text("".join(lines[1:]))
    assert main(["validate", f"--data={tmp_path}"]) == 2
    assert "dev.jsonl: changed since the build" in capsys.readouterr().out
    assert main(["validate", f"--data={tmp_path / 'train.jsonl'}"]) == 0
    assert main(["validate", f"--data={tmp_path / 'dev.jsonl'}"]) == 2


def test_tables_that_changed_are_found_from_a_task_file(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(built, tmp_path / "copy")
    orders = folder / "tables/orders.csv"
    orders.write_text(orders.read_text() + orders.read_text().splitlines()[-1] + "\n")
    assert main(["validate", f"--data={folder / 'train.jsonl'}"]) == 2
    assert f"{orders}: changed since the build" in capsys.readouterr().out


@pytest.mark.parametrize("operation", ["change", "difference"])
def test_the_distance_of_two_rates_is_in_points(shop: World, operation: str) -> None:
    found = [q for q in asked(shop, {operation: 1}, 200) if q.program.metric.unit == "%" and q.gold.value > 0.01]
    assert len(found) > 10
    for question in found:
        value, said = question.gold.value, question.question
        for answer in (f"{value} percentage points", f"上升了{value}个百分点", f"{value}%", f"The answer is {value}."):
            assert compare(answer, [question.check], said).correct, (answer, said)
        assert not compare(f"{value / 100:.8f}", [question.check], said).correct


def test_a_recorded_wrong_answer_that_passes_is_found(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tables").symlink_to(built / "tables")
    rows = [row for _, row in jsonl.iter_rows(built / "train.jsonl")]
    rows[1]["metadata"]["wrong"] = {"rival": rows[1]["answer"]}
    jsonl.write(tmp_path / "tasks.jsonl", rows)
    assert main(["validate", f"--data={tmp_path / 'tasks.jsonl'}"]) == 2
    assert f"{tmp_path / 'tasks.jsonl'}, line 2: the wrong answer" in capsys.readouterr().out


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_number_of_workers_changes_no_byte(tmp_path: Path) -> None:
    sizes = ["--train_size=450", "--dev_size=30", "--test_size=30", "--general_size=60"]
    for workers in (1, 2, 3):
        assert main(["build", f"--output_dir={tmp_path / str(workers)}", *sizes, f"--workers={workers}"]) == 0
    assert _files(tmp_path / "1") == _files(tmp_path / "2") == _files(tmp_path / "3")


@pytest.mark.slow
def test_an_interrupted_build_leaves_what_was_there(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    sizes = ["--train_size=12", "--dev_size=4", "--test_size=8", "--general_size=16"]
    assert main(["build", f"--output_dir={folder}", *sizes]) == 0
    before = _files(folder)
    command = [sys.executable, "-m", "agentic.cli", "build", f"--output_dir={folder}", "--train_size=4000", "--seed=1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    written = folder / ".build" / "train.jsonl"
    deadline = time.monotonic() + 240
    while not (written.exists() and written.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    assert _files(folder) == before
