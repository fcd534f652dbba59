"""`agentic ask` against a scripted server: what it shows, and one sentence with exit code 2 for what it cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from http_server import Scripted, ScriptedServer, chat_reply, error_reply

from agentic.cli import main
from agentic.config import AskConfig
from agentic.serve.ask import ask_task, question_language
from agentic.tools.parse import render_call

ROOT = Path(__file__).resolve().parents[1]
pytest_plugins = ("shared_zygote",)
pytestmark = [pytest.mark.endpoint, pytest.mark.usefixtures("bare_environment", "shared_zygote")]


@pytest.fixture()
def sales(tmp_path: Path) -> Path:
    (tmp_path / "sales.csv").write_text("city,amount\nYork,3\nBath,4.5\nYork,\n")
    return tmp_path / "sales.csv"


def cell(code: str) -> dict[str, Any]:
    return chat_reply(render_call("python_executor", {"code": code}))


def ask(replies: list[Any], question: str, *arguments: str) -> tuple[int, ScriptedServer]:
    with ScriptedServer(replies) as server:
        code = main(["ask", question, *arguments, f"--endpoint={server.url}"])
    return code, server


# ------------------------------------------------------------------------------------------ what it shows


def test_card_turns_code_observations_and_answer(sales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies = [cell("print(df['amount'].sum())"), chat_reply("The total is 7.5.")]
    code, server = ask(replies, "What is the total amount?", str(sales))
    said = capsys.readouterr().out
    assert code == 0
    assert said.startswith(
        "Table df: 3 rows, sales.csv\ncity (text): York, Bath\namount (number): 3 to 4.5; 1 missing\n"
    )
    assert "[1] python_executor\n    print(df['amount'].sum())\n  > 7.5\n" in said
    assert "\nAnswer: The total is 7.5.\n" in said
    sent = server.requests[0].body["messages"]
    assert sent[1]["content"].startswith("Table df: 3 rows") and sent[1]["content"].endswith("total amount?")
    assert server.requests[1].body["messages"][-1]["content"] == "<tool_response>\n7.5\n</tool_response>"


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([cell("1 + 1"), chat_reply("It is 2.")], "(unchecked: computed by the code above"),
        ([cell("df['x'].sum()"), cell("1 + 1"), chat_reply("It is 2.")], "(unchecked: computed by the code above"),
        ([cell("df['x'].sum()"), chat_reply("It is 6.")], "(unsupported: no code ran without an error"),
        ([chat_reply("It is 6.")], "(unsupported: no code ran without an error"),
    ],
)
def test_an_answer_that_no_code_computed_is_not_said_to_be_computed(
    sales: Path, replies: list[Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(replies, "How many?", str(sales))[0] == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(said)


def test_json_is_one_strict_object(sales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F10: NaN, infinities and numpy types in what the code shows."""
    code = "import numpy as np\n(df['amount'].tolist(), np.float32('inf'), np.int64(2**62))"
    status, _ = ask([cell(code), chat_reply("NaN")], "What is there?", str(sales), "--json")
    out = capsys.readouterr().out
    assert status == 0 and out.count("\n") == 1

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    row = json.loads(out, parse_constant=refuse)
    assert (row["question"], row["answer"], row["stop_reason"]) == ("What is there?", "NaN", "answered")
    assert row["tables"] == [str(sales)] and row["notes"] == []
    assert (
        "nan" in row["turns"][0]["observations"][0]["text"] and str(2**62) in row["turns"][0]["observations"][0]["text"]
    )


def test_several_files_and_odd_paths(tmp_path: Path, cases_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F09: spaces, quotes and Chinese in paths; every file is a table of its own name."""
    odd = cases_dir / "files" / "F09 目录 (final)" / "销售 2024's Q1.csv"
    (tmp_path / "class.csv").write_text("a\n5\n")
    code = "print(int(销售_2024_s_q1.select_dtypes('number').sum().sum()), t_class['a'].sum())"
    status, _ = ask([cell(code), chat_reply("3")], "a+b?", str(odd), str(tmp_path / "class.csv"))
    said = capsys.readouterr().out
    assert status == 0 and "  > 3 5\n" in said
    assert "Table 销售_2024_s_q1: 1 rows, 销售 2024's Q1.csv" in said and "Table t_class: 1 rows, class.csv" in said


def test_a_wide_file_fits(cases_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A22: the card keeps to its budget and says that there is more."""
    file = cases_dir / "files" / "A22_wide_601.csv"
    status, server = ask([chat_reply("600")], "What is the total of total_kwh?", str(file))
    assert status == 0 and " more columns; see df.columns\n" in capsys.readouterr().out
    assert len(server.requests[0].body["messages"][1]["content"]) < 1700


def test_notes_of_the_reader_are_shown(cases_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = cases_dir / "files" / "A02_gb18030.csv"
    status, _ = ask([chat_reply("250")], "总额是多少？", str(file))
    assert status == 0 and "\nnote: A02_gb18030.csv: " in capsys.readouterr().out


def test_what_a_file_or_model_wrote_cannot_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("x\n\x1b[2Jgone\nb\n")
    replies = [cell("print('\\x1b[31mred')\nprint('[bold]')"), chat_reply("\x1b]0;title\x07 [red]3")]
    status, _ = ask(replies, "How many?", str(tmp_path / "a.csv"))
    said = capsys.readouterr().out
    assert status == 0 and "\x1b" not in said and "\x07" not in said
    assert "[bold]" in said and "[red]3" in said


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([cell("1"), cell("2")], "no answer: the agent used all its turns"),
        ([chat_reply("")], "no answer: the model wrote nothing"),
        ([chat_reply("<tool_call>{}</tool_call>")] * 2, "no answer: the model made no valid call"),
        (
            [chat_reply("The total of the", finish_reason="length")],
            "[1] cut: The total of the\n\nno answer: a turn was cut",
        ),
    ],
)
def test_no_answer_is_exit_code_1_and_says_why(
    sales: Path, replies: list[Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = ask(replies, "How many?", str(sales), "--max_turns=2")
    assert status == 1 and said in capsys.readouterr().out


def test_a_lost_session_is_said(
    sales: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AGENTIC_ISOLATION", "L0"
    )  # at any other level code does not reach the process it is forked from
    status, _ = ask([cell("import os\nos.kill(os.getppid(), 9)\nwhile True: pass")], "How many?", str(sales))
    assert status == 1 and "no answer: the Python session was lost (the " in capsys.readouterr().out


def test_the_other_order_is_understood(sales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = ask([chat_reply("3")], str(sales), "How many rows are there?")
    assert status == 0 and "Question: How many rows are there?" in capsys.readouterr().out


def test_a_long_question_is_no_file_name(sales: Path) -> None:
    question = "How many rows are there? " * 200
    assert ask_task(AskConfig(question, (sales,)))[0].question == question
    assert ask_task(AskConfig(str(sales), (Path(question),)))[0].question == question


@pytest.mark.parametrize(
    ("question", "language"),
    [
        ("How many rows?", "en"),
        ("有多少行？", "zh"),
        ("GMV最高的channel是哪个？", "zh"),
        ("What is the total of 北京 in 2024?", "en"),
        ("𠮷田店多少", "zh"),
        ("2024?", "en"),
    ],
)
def test_question_language(question: str, language: str) -> None:
    assert question_language(question) == language


# ------------------------------------------------------------------------------------------ what it cannot do


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence on standard error; nothing of a model or server was needed to say it."""
    for options in ([], ["--json"]):
        assert main(["ask", *arguments, *options]) == 2
        output = capsys.readouterr()
        said = output.err.removeprefix("(loading the model ...)\n")
        assert said.startswith("error: ") and said.count("\n") == 1
        assert options == [] or output.out == ""
    return said


@pytest.mark.parametrize("name", ["absent.csv", "empty.csv", "blank.csv", "folder", "book.csv", "x" * 300 + ".csv"])
def test_files_that_cannot_be_read(
    tmp_path: Path, cases_dir: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "blank.csv").write_text("\n\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "book.csv").write_bytes((cases_dir / "files" / "A25_really_xlsx.csv").read_bytes())
    file = str(tmp_path / name)
    assert file in refused(capsys, "How many rows?", file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission(sales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sales.chmod(0)
    assert "permission denied" in refused(capsys, "How many rows?", str(sales))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([" "], "the question is empty"),
        (["How many?", "--max_turns=0"], "--max_turns must be at least 1"),
        (["How many?", "--endpoint=localhost:80"], "the base URL must start with http"),
        (["How many?", "--endpoint=http://127.0.0.1:9/v1"], "cannot connect to http://127.0.0.1:9/v1"),
        (["How many?", "--endpoint=http://127.0.0.1:9/v1", "--model=m"], "choose one of --model and --endpoint"),
    ],
)
def test_options_that_cannot_be_used(
    sales: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, arguments[0], str(sales), *arguments[1:])


def test_a_missing_model(sales: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert "/absent/model" in refused(capsys, "How many?", str(sales), "--model=/absent/model")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (error_reply(401, "bad key"), "HTTP 401 Unauthorized: bad key; set AGENTIC_API_KEY"),
        (error_reply(404, "no such model"), "HTTP 404 Not Found: no such model; check the base URL"),
        (Scripted(200, {"Content-Type": "text/html"}, "<html>hello</html>"), "the server's answer is not JSON"),
    ],
)
def test_a_server_that_refuses(sales: Path, reply: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = ask([reply], "How many?", str(sales), "--json")
    output = capsys.readouterr()
    assert (status, output.out) == (2, "") and said in output.err and output.err.count("\n") == 1


def test_a_missing_extra(sales: Path) -> None:
    """In an interpreter without torch and transformers."""
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('transformers', 'torch'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from agentic.cli import main\n"
        "sys.exit(main(['ask', 'How many rows?', sys.argv[1], '--json']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(sales)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'agentic-data-analysis[train]'" in done.stderr and done.stderr.count("\n") == 1
