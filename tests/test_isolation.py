"""Levels, the system call filter, quotas, freezing, admission: what the sandbox promises beyond a cell's result."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.errors import UserError
from agentic.records import ExecResult
from agentic.sandbox import Limits, Sandbox, levels, seccomp
from agentic.sandbox.folder import measure
from agentic.sandbox.guard import is_refusal
from agentic.sandbox.limits import LEVELS
from agentic.sandbox.memory import Admission, available_mb, proportional_mb
from agentic.sandbox.syscalls import ALLOWED, DENIED, FILTERED, IGNORED, numbers
from agentic.sandbox.zygote import chinese_fonts

Run = Callable[[Coroutine[Any, Any, Any]], Any]
HIGHEST = levels.detect().level
confined = pytest.mark.skipif(HIGHEST < "L2", reason=f"this machine gives {HIGHEST}: {levels.detect().lacking()}")


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield runner.run


Boxes = Callable[..., Sandbox]
Cells = Callable[..., list[ExecResult]]


@pytest.fixture(scope="module")
def boxes(run: Run) -> Iterator[Boxes]:
    """boxes(level, limits=None): one sandbox serves all tests of a level and its limits; no session lives in it."""
    sandboxes: dict[tuple[str, Limits], Sandbox] = {}

    def of(level: str, limits: Limits | None = None) -> Sandbox:
        sandbox = Sandbox(level, limits)
        return sandboxes.setdefault((sandbox.level, sandbox.limits), sandbox)

    yield of
    for sandbox in sandboxes.values():
        run(sandbox.close())


@pytest.fixture(scope="module")
def cells(run: Run, boxes: Boxes) -> Cells:
    """cells(level, *codes, limits=None): the results of a session."""

    async def play(sandbox: Sandbox, codes: tuple[str, ...]) -> list[ExecResult]:
        async with await sandbox.session() as session:
            return [await session.run(code) for code in codes]

    return lambda level, *codes, limits=None: run(play(boxes(level, limits), codes))


# ------------------------------------------------------------------------------------------------ levels


@pytest.mark.parametrize("level", [level for level in LEVELS if level <= HIGHEST])
def test_every_level_up_to_the_highest_runs_pandas_and_says_its_name(cells: Cells, level: str) -> None:
    codes = (
        "x = pd.DataFrame({'a': [1, 2]})",
        "x['a'].sum()",
        "open('f.csv', 'w').write('a\\n1')",
        "pd.read_csv('f.csv')",
    )
    results = cells(level, *codes)
    assert [(result.status, result.isolation) for result in results] == [("ok", level)] * 4
    assert results[1].value == "3"


@confined
def test_what_each_level_adds(cells: Cells) -> None:
    """L1 has no network and no programs; L2 no files of others; from L1 on root gives up its id."""
    # A user's own file, and one that any user may read: permissions alone do not protect it.
    host = Path(__file__)
    codes = (
        "import socket; socket.socket()",
        f"open({str(host)!r}).read(9)",
        "open('/proc/net/dev').read().count(':')",
        "import os; os.getuid()",
    )
    found = {level: cells(level, *codes) for level in LEVELS if level <= HIGHEST}
    assert [found[level][0].status for level in sorted(found)] == ["ok", "blocked", "blocked", "blocked"][: len(found)]
    assert found["L0"][1].status == "ok" and found["L2"][1].status == "blocked"
    assert found["L2"][2].status == "blocked"  # who the machine talks to
    if os.geteuid() == 0:
        uids = {level: int(results[3].value or -1) for level, results in found.items()}
        assert uids["L0"] == 0 and all(uids[level] > 1000 for level in found if level != "L0")


@confined
def test_sessions_of_one_sandbox_have_different_users(run: Run, boxes: Boxes) -> None:
    async def play() -> set[str | None]:
        sessions = [await boxes("auto").session() for _ in range(3)]
        users = {(await session.run("import os; os.getuid()")).value for session in sessions}
        await asyncio.gather(*(session.close() for session in sessions))
        return users

    assert len(run(play())) == (3 if levels.may_change_user() else 1)


def test_choosing_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(levels.VARIABLE, raising=False)
    assert Sandbox("L0").level == "L0"
    with pytest.raises(UserError, match="unknown isolation level 'L9'; choose auto or one of L0, L1, L2, L3"):
        Sandbox("L9")
    monkeypatch.setenv(levels.VARIABLE, "L0")
    assert Sandbox().level == "L0"
    monkeypatch.setenv(levels.VARIABLE, "highest")
    with pytest.raises(UserError, match="unknown isolation level 'highest'"):
        Sandbox()


def test_a_weak_machine_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(levels.VARIABLE, raising=False)
    features = (levels.Feature("Landlock", False, "ABI 0, not offered by this kernel", "use Linux 6.2"),)
    monkeypatch.setattr(levels, "detect", lambda: levels.Detection("L1", features))
    with pytest.raises(UserError, match=r"L1 only \(Landlock: ABI 0.*AGENTIC_ISOLATION=L1"):
        Sandbox()
    with pytest.raises(UserError, match=r"L2 is not available here \(Landlock: ABI 0.*use L1 or auto"):
        Sandbox("L2")
    assert Sandbox("L1").level == "L1"


def test_detection_explains_itself() -> None:
    found = levels.detect()
    assert found.level in LEVELS and [f.name for f in found.features][:2] == ["system call filter", "Landlock"]
    assert all(feature.why and (feature.present or feature.remedy) for feature in found.features)


# ------------------------------------------------------------------------------------- system call filter

MEANING = {0x7FFF0000: "allow", 0x80000000: "kill"}


def decide(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> str:
    """A second reading of the program: the classic BPF machine of the kernel's documentation."""
    words = [number, architecture, 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        words += [argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF]
    data = struct.pack("<16I", *words)
    accumulator, at = 0, 0
    while True:
        code, yes, no, constant = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            accumulator = int.from_bytes(data[constant : constant + 4], "little")
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x15:
            at += yes if accumulator == constant else no
        elif code == 0x35:
            at += yes if accumulator >= constant else no
        else:
            assert code == 0x06
            return MEANING.get(constant) or errno.errorcode.get(constant & 0xFFFF, "success")


@pytest.mark.parametrize(("name", "arch"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_every_call_gets_its_answer(name: str, arch: int) -> None:
    program = seccomp.assemble(seccomp.build(77, name))
    tables = {table: numbers(table, name) for table in (ALLOWED, IGNORED, DENIED, FILTERED)}
    known = [number for table in tables.values() for number in table.values()]
    assert len(known) == len(set(known)) > 250
    for table, answer in ((ALLOWED, "allow"), (IGNORED, "success"), (DENIED, "EPERM")):
        wrong = {call for call, number in tables[table].items() if decide(program, arch, number) != answer}
        assert wrong == set()
    for number in {*range(600), 1 << 30, (1 << 30) + 41, 0xFFFFFFFF} - set(known):  # x32 is from 2**30 on
        assert decide(program, arch, number) == "ENOSYS"
    other = 0xC00000B7 if name == "x86_64" else 0xC000003E
    assert {decide(program, other, number) for number in known} == {"kill"}
    assert len(program) // 8 < 4096


FILTER_CASES = [
    ("clone", (0x3D0F00,), "allow"),  # what pthread_create asks for
    ("clone", (0x11,), "EPERM"),  # fork
    ("clone", (0x4111,), "EPERM"),  # vfork
    ("clone", (0x10000 | 0x10000000,), "EPERM"),
    ("clone", (0x10000 | 0x40000000,), "EPERM"),
    ("clone", (0x10000 | 0x80,), "EPERM"),
    ("clone3", (), "ENOSYS"),
    ("kill", (77, 9), "allow"),
    ("kill", (0, 9), "EPERM"),
    ("kill", (0xFFFFFFFF, 9), "EPERM"),
    ("kill", (1 << 32 | 77, 9), "allow"),  # the kernel reads the low word only
    ("tgkill", (77, 78, 2), "allow"),
    ("tgkill", (76, 76, 2), "EPERM"),
    ("prlimit64", (0,), "allow"),
    ("prlimit64", (1,), "EPERM"),
    ("sched_setaffinity", (1,), "EPERM"),
    ("prctl", (1,), "EPERM"),
    ("prctl", (4,), "EPERM"),
    ("prctl", (15,), "allow"),
    ("prctl", (22,), "EPERM"),
    ("ioctl", (1, 0x5401), "allow"),
    ("ioctl", (1, 0x5412), "ENOTTY"),
    ("fcntl", (1, 8), "EPERM"),
    ("fcntl", (1, 3), "allow"),
    ("socketpair", (1, 1), "allow"),
    ("socketpair", (1, 0x80801), "allow"),  # with SOCK_NONBLOCK and SOCK_CLOEXEC
    ("socketpair", (1, 2), "EPERM"),
    ("socketpair", (1, 5), "EPERM"),
    ("socketpair", (2, 1), "EPERM"),
    ("fallocate", (3, 0), "allow"),
    ("fallocate", (3, 1), "ENOTSUP"),
    ("clone", (0x50B00,), "EPERM"),  # a thread with descriptors of its own
]


@pytest.mark.parametrize(("call", "arguments", "answer"), FILTER_CASES)
def test_arguments_decide(call: str, arguments: tuple[int, ...], answer: str) -> None:
    for name, arch in (("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)):
        program = seccomp.assemble(seccomp.build(77, name))
        assert decide(program, arch, numbers(FILTERED, name)[call], arguments) == answer


@given(st.integers(0, 1 << 32), st.lists(st.integers(0, (1 << 64) - 1), min_size=6, max_size=6))
def test_nothing_outside_the_tables_is_ever_allowed(number: int, arguments: list[int]) -> None:
    allowed = {*numbers(ALLOWED, "x86_64").values(), *numbers(FILTERED, "x86_64").values()}
    answer = decide(PROGRAM, 0xC000003E, number & 0xFFFFFFFF, tuple(arguments))
    assert answer != "allow" or number & 0xFFFFFFFF in allowed


PROGRAM = seccomp.assemble(seccomp.build(77, "x86_64"))


def test_numbers_are_those_of_this_machine() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers on this machine")
    lines = (line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    official = {line[1].removeprefix("__NR_"): int(line[2]) for line in lines}
    ours = {
        call: number
        for table in (ALLOWED, IGNORED, DENIED, FILTERED)
        for call, number in numbers(table, "x86_64").items()
    }
    assert {call: number for call, number in ours.items() if official.get(call, number) != number} == {}
    assert len(set(official) & set(ours)) > 300


# ------------------------------------------------------------------------------------------------ refusals


@confined
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import urllib.request; urllib.request.urlopen('http://example.com')", "network is disabled"),
        ("import socket; socket.getaddrinfo('example.com', 80)", "network is disabled"),
        ("import os; os.system('ls')", "starting programs is disabled"),
        ("import subprocess; subprocess.run(['ls'])", "starting programs is disabled"),
        ("import os; os.fork()", "starting programs is disabled"),
        ("open('/etc/passwd')", "Permission denied: '/etc/passwd'"),
        ("open('/tmp/x', 'w')", "Permission denied: '/tmp/x'"),
    ],
)
def test_a_refusal_says_what_is_disabled(cells: Cells, code: str, said: str) -> None:
    (result,) = cells("auto", code)
    assert result.status == "blocked" and result.error is not None and said in result.error.message


@confined
def test_ordinary_work_is_not_refused(cells: Cells) -> None:
    codes = (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nasyncio.run(f())",
        "import threading\nt = threading.Thread(target=print, args=('in a thread',)); t.start(); t.join()",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as p: n = sum(p.map(len, ['a', 'bc']))\nn",
        "import shutil, zipfile\nopen('a', 'w').write('1'); shutil.copy('a', 'b'); shutil.make_archive('z', 'zip', '.', 'a'); shutil.unpack_archive('z.zip', 'd'); open('d/a').read()",
        "import tempfile\nwith tempfile.NamedTemporaryFile() as f: n = f.write(b'ab')\nn",
        "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t(a)'); c.execute('insert into t values (1)'); c.commit(); c.execute('select a from t').fetchall()",
        "import os; os.makedirs('p/q'); os.rename('p/q', 'r'); sorted(os.listdir('.'))[-1]",
        "pd.Timestamp('2024-01-01', tz='Asia/Shanghai').tz_convert('Europe/Berlin').hour",
        "np.linalg.inv(np.eye(200)).sum()",
        "len(open('/proc/self/status').read()) > 100",
    )
    results = cells("auto", *codes)
    assert [(result.status, result.error) for result in results] == [("ok", None)] * len(codes)
    assert [result.value for result in results] == [
        "3",
        None,
        "3",
        "'1'",
        "2",
        "[(1,)]",
        "'z.zip'",
        "17",
        "200.0",
        "True",
    ]


def test_a_refusal_is_found_under_what_libraries_make_of_it() -> None:
    def raised(*errors: BaseException) -> BaseException:
        for inner, outer in pairwise(errors):
            outer.__cause__ = inner
        return errors[-1]

    refused = PermissionError(errno.EPERM, "no")
    assert is_refusal(refused) and is_refusal(raised(refused, OSError("x"), RuntimeError("y")))
    assert is_refusal(RuntimeError("wrapped", refused))
    assert not is_refusal(FileNotFoundError(errno.ENOENT, "x")) and not is_refusal(None)
    loop = ValueError()
    loop.__cause__ = loop
    assert not is_refusal(loop)


# --------------------------------------------------------------------------------------- folder and memory


@confined
@pytest.mark.parametrize(
    "code",
    [
        "for i in range(9):\n    open(f'f{i}', 'wb').write(bytes(1 << 20))\nwhile True: pass",
        "for i in range(9): open(f'f{i}', 'wb').write(bytes(1 << 20))",  # over before it is looked at
        "import os\nkept = []\nfor i in range(9):\n    f = open('f', 'wb'); f.write(bytes(1 << 20)); f.flush(); os.remove('f'); kept.append(f)",
        "for i in range(300): open(f'f{i}', 'w').close()",
        "import os\nfor i in range(300): os.mkdir(f'd{i}')",
    ],
)
def test_a_full_work_folder_ends_the_session_and_is_emptied(cells: Cells, code: str) -> None:
    limits = Limits(folder_mb=4, folder_files=200)
    before, result, after, state = cells("auto", "x = 1", code, "import os; len(os.listdir('.'))", "x", limits=limits)
    assert before.status == "ok"
    assert (result.status, result.state) == ("killed", "restored")
    assert result.error is not None and result.error.type == "DiskQuota"
    assert result.error.message == "the work folder grew past 4 MB or 200 files" and result.wall_ms < 5000
    assert (after.value, state.value) == ("0", "1")


def test_measure_counts_blocks_and_never_follows_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(bytes(100_000))
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "root").symlink_to("/")
    size, count = measure(str(tmp_path), None, 1000)
    assert count == 4 and 100_000 <= size < 1 << 20
    assert measure(str(tmp_path), None, 2)[1] == 3
    assert measure(str(tmp_path / "absent"), None, 9) == (0, 0)


def test_admission_waits_for_room() -> None:
    async def play() -> None:
        pids = [os.getpid()] * 20
        admission = Admission(1.0, lambda: pids)
        waiting = asyncio.create_task(admission.enter())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        del pids[10:]  # as when sessions end: so few are always let in
        await asyncio.wait_for(waiting, 2)
        pids += [os.getpid()] * 10
        await asyncio.wait_for(Admission(1e6, lambda: pids).enter(), 2)

    asyncio.run(play())
    assert proportional_mb(os.getpid()) > 5 and proportional_mb(1 << 22) == 0.0 and available_mb() > 10


@pytest.mark.slow
def test_sessions_wait_while_the_budget_is_taken(run: Run) -> None:
    async def play() -> None:
        async with Sandbox(limits=Limits(sessions_mb=1)) as sandbox:
            sessions = [await sandbox.session() for _ in range(15)]
            late = asyncio.create_task(sandbox.session())
            await asyncio.sleep(0.6)
            assert not late.done() and len(sandbox.pids()) == 16
            await sessions[0].close()
            session = await asyncio.wait_for(late, 5)
            assert (await session.run("1")).value == "1"

    run(play())


def test_hundreds_of_sessions_at_once(run: Run) -> None:
    """More messages than the control socket holds: every one arrives."""

    async def play() -> None:
        async with Sandbox() as sandbox:
            sessions = [await sandbox.session() for _ in range(8)]
            zygote = sandbox._zygote
            assert zygote is not None
            for _ in range(500):
                for number in range(8):
                    zygote.signal(f"s{number + 1}.1", "SIGSTOP")
                    zygote.signal(f"s{number + 1}.1", "SIGCONT")
            results = await asyncio.gather(*(session.run("1 + 1", 20) for session in sessions))
            assert [result.value for result in results] == ["2"] * 8
            folder = sessions[0].folder.parent
        assert not folder.exists()

    run(play())


def test_pids_are_those_of_live_processes(run: Run, boxes: Boxes) -> None:
    async def play() -> None:
        sandbox = boxes("auto")
        session = await sandbox.session()
        own = int((await session.run("import os; os.getpid()")).value or "")
        assert sandbox.pids()[1:] == [own]
        started = time.monotonic()
        await session.close()
        assert len(sandbox.pids()) == 1 and time.monotonic() - started < 5

    run(play())


def test_the_best_chinese_font_is_chosen() -> None:
    assert chinese_fonts({"SimHei", "Noto Sans CJK JP", "Noto Sans CJK SC", "STIXGeneral"}) == ["Noto Sans CJK SC"]
    assert chinese_fonts({"DejaVu Sans"}) == []
