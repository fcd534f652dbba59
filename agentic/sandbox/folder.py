"""Folders that hostile code fills: how much is in them, and their removal."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import stat
from contextlib import suppress


def remove_tree(path: str) -> None:
    """Remove `path` and all below it, never following a link. Blocking; what the system refuses to remove stays.

    The processes that wrote there must have ended. Nested folders are first moved up to `path`, so that neither
    recursion, path length nor open descriptors limit the depth (shutil.rmtree gives up at 1,000 levels).
    """
    token = secrets.token_hex(8)
    folders = [path]
    for folder in folders:  # grows while it is read
        with suppress(OSError):
            os.chmod(folder, 0o700)
            for entry in list(os.scandir(folder)):
                with suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                    elif folder == path:
                        folders.append(entry.path)
                    else:
                        os.chmod(entry.path, 0o700)  # a folder must be writable to be moved
                        moved = os.path.join(path, f"{token}-{len(folders)}")
                        os.rename(entry.path, moved)
                        folders.append(moved)
    for folder in reversed(folders):
        with suppress(OSError):
            os.rmdir(folder)


def measure(path: str, pid: int | None, most_files: int, mapped: bool = True) -> tuple[int, int]:
    """(bytes on disk, number of entries) below `path`, files included that process `pid` holds open, or `mapped`, after
    deleting them. Reading the mappings takes milliseconds, the rest microseconds.

    Blocking. It stops counting past `most_files` entries, follows no link, and reads a tree that is being written to. Folders
    nested too deep to be named, or made unreadable, count as too many entries.
    """
    size = count = 0
    folders = [path]
    while folders and count <= most_files:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > most_files:
                        break
                    with suppress(FileNotFoundError):
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.EACCES):
                count = most_files + 1
    return size + (_held(pid, path, mapped) if pid is not None else 0), count


def virtual_mb(pid: int) -> float:
    """Address space of a process: it grows with every mapping. 0.0 when it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY)  # a file object would take four times as long
    except OSError:
        return 0.0
    try:
        return int(os.read(fd, 100).split()[0]) * mmap.PAGESIZE / (1 << 20)
    except (OSError, IndexError):
        return 0.0
    finally:
        os.close(fd)


def _held(pid: int, path: str, mapped: bool) -> int:
    """Bytes of deleted files that a process still has open, or had and keeps mapped."""
    sizes: dict[int, int] = {}
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                about = descriptor.stat()
                if about.st_nlink == 0 and stat.S_ISREG(about.st_mode):
                    sizes[about.st_ino] = about.st_blocks * 512
    if not mapped:
        return sum(sizes.values())
    with suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            if line.endswith(b" (deleted)\n") and path.encode() in line:
                place, _, offset, _, inode, *_ = line.split()
                start, end = (int(number, 16) for number in place.split(b"-"))
                sizes[int(inode)] = max(sizes.get(int(inode), 0), int(offset, 16) + end - start)
    return sum(sizes.values())
