"""What a session gives up before it runs any code, by level."""

from __future__ import annotations

import os
import pwd
import resource
import signal
import stat
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentic.sandbox import kernel, landlock, seccomp
from agentic.sandbox.limits import LEVELS, Limits

_SYSTEM = (
    *(
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/lib",
        "/lib64",
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/etc/timezone",
    ),
    *("/usr/share/zoneinfo", "/usr/share/locale", "/usr/share/fonts", "/usr/local/share/fonts", "/etc/fonts"),
    *("/etc/mime.types", "/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/proc/loadavg", "/proc/sys/vm"),
    "/sys/devices/system/cpu",
)
_OWN_FACTS = (
    "cgroup",
    "cmdline",
    "comm",
    "environ",
    "fd",
    "limits",
    "maps",
    "mountinfo",
    "oom_score_adj",
    "smaps_rollup",
    "stat",
    "statm",
    "status",
)
"""Of /proc/self; not net, which names the machine's connections."""

SHARED_USER_TASKS = 8192
"""Threads and processes of the whole user, past which a session without its own user id gets no new thread."""

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def _interpreter() -> list[str]:
    """Folders that hold the interpreter, its packages and this one. Of an editable checkout only the package is read."""
    paths = sysconfig.get_paths()
    folders = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    library = os.path.join(sys.base_prefix, "lib")  # shared libraries beside the standard library
    return [library, *folders, str(Path(__file__).parents[1])]


_GROUP_FACTS = (
    *("memory.max", "memory.high", "memory.swap.max", "cpu.max"),
    *("memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
)


def _group_facts() -> list[str]:
    """Limits of this process's control groups, version 1 and 2, and of those above them: DuckDB fails where they are there and
    closed to it. File by file, because the folders also name the machine's processes."""
    folders = ["/sys/fs/cgroup"]
    with suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file.read().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                root = Path("/sys/fs/cgroup", controller)
                place = root / path.lstrip("/")
                folders += [str(folder) for folder in (place, *place.parents) if folder.is_relative_to(root)]
    return [os.path.join(folder, name) for folder in folders for name in _GROUP_FACTS]


def _fonts() -> list[str]:
    with suppress(KeyError):  # a uid without an entry has no home
        home = pwd.getpwuid(os.getuid()).pw_dir
        return [os.path.join(home, ".fonts"), os.path.join(home, ".local/share/fonts")]
    return []


@dataclass(frozen=True)
class Preparation:
    """What the zygote opens once, so that confining a child costs microseconds."""

    level: str
    abi: int
    readable: list[landlock.OpenPath]
    devices: list[landlock.OpenPath]
    filter: seccomp.Template | None
    kept: int
    """Capabilities that sessions keep: none, or reading past file modes where the interpreter lies in a closed folder."""


def prepare(level: str, folder: str) -> Preparation:
    """`folder`: parent of the work folders. At L3 this process moves into an empty network and IPC namespace: OSError
    where that is refused."""
    if level == "L0":
        return Preparation(level, 0, [], [], None, 0)
    if level == "L3":
        kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC)
    interpreter = _interpreter()
    kept = 0
    if any(_closed_to_others(path) for path in [*interpreter, folder]):
        kept = 1 << kernel.CAP_DAC_READ_SEARCH & kernel.capabilities()
    settings = os.environ.get("MPLCONFIGDIR")
    paths = [*interpreter, *_SYSTEM, *_group_facts(), *_fonts(), *([settings] if settings else [])]
    readable = landlock.open_paths(paths)
    return Preparation(level, landlock.abi(), readable, landlock.open_paths(_DEVICES), seccomp.Template(), kept)


def _closed_to_others(path: str) -> bool:
    """Whether another user cannot get to `path`: a folder on the way without the search bit for others."""
    place = Path(path)
    return any(
        not stat.S_IMODE(parent.stat().st_mode) & stat.S_IXOTH for parent in (place, *place.parents) if parent.exists()
    )


def confine(preparation: Preparation, folder: str, uid: int | None, limits: Limits, channel: int) -> None:
    """In the forked child: from here on it is what the code may do. `uid` None keeps the user; `channel` stays open."""
    os.setsid()
    os.chdir(folder)
    own = preparation.level != "L0" and uid is not None
    _lower_limits(limits, own)
    with suppress(OSError):  # /proc may be mounted read-only
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"1000")  # file objects would write to many pages that are shared until then
        os.close(fd)
    if own:
        assert uid is not None
        kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # lost with the old uid; without it /proc/self is closed to its owner
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if preparation.level != "L0":
        with suppress(OSError):  # kernels before 4.3
            kernel.clear_ambient()
        kernel.keep_capabilities(preparation.kept)
    if LEVELS.index(preparation.level) >= 2:
        inside = landlock.open_paths([folder])
        own_facts = landlock.open_paths(f"/proc/self/{name}" for name in _OWN_FACTS)
        landlock.restrict(preparation.abi, [*preparation.readable, *own_facts], inside, preparation.devices)
    null = os.open(os.devnull, os.O_RDWR)  # last: until here a failure is reported in the zygote's log
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, channel)
    os.closerange(channel + 1, 1 << 20)
    if preparation.filter is not None:
        seccomp.install(preparation.filter.for_process(os.getpid()))


def _lower_limits(limits: Limits, own_uid: bool) -> None:
    mib = 1 << 20
    fd = os.open("/proc/self/statm", os.O_RDONLY)
    size = int(os.read(fd, 100).split()[0]) * resource.getpagesize()
    os.close(fd)
    _lower(resource.RLIMIT_AS, size + limits.memory_mb * mib)
    _lower(resource.RLIMIT_FSIZE, limits.file_mb * mib)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    _lower(resource.RLIMIT_CPU, limits.cpu_s)
    _lower(resource.RLIMIT_CORE, 0)
    # The kernel counts by user. A shared one has other programs, so the limit only keeps a thread bomb from taking all.
    _lower(resource.RLIMIT_NPROC, limits.threads if own_uid else SHARED_USER_TASKS)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))
