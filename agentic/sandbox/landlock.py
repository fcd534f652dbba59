"""Landlock: what of the file system a session may reach (kernel documentation, userspace-api/landlock)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass

from agentic.sandbox.kernel import syscall

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION_FLAG = 1
_PATH_BENEATH = 1

# Rights on files, in the order of their bits.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_V1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1, 2
# What may be granted on a file that is no folder.
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


class _Attributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """Version of Landlock that the kernel offers; 0 where there is none or a container's filter hides it."""
    try:
        return syscall(_CREATE, 0, 0, _VERSION_FLAG)
    except OSError:
        return 0


def _handled(version: int) -> int:
    rights = _ALL_V1
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEV
    return rights


@dataclass(frozen=True)
class OpenPath:
    """A path opened once, before forking: a rule for it then costs a microsecond and no lookup."""

    fd: int
    folder: bool


def open_paths(paths: Iterable[str]) -> list[OpenPath]:
    """Those of `paths` that exist."""
    opened = []
    for path in dict.fromkeys(paths):
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        opened.append(OpenPath(fd, os.path.isdir(path)))
    return opened


def restrict(
    version: int, readable: Iterable[OpenPath], writable: Iterable[OpenPath], devices: Iterable[OpenPath]
) -> None:
    """Confine this process for good: read below `readable`, everything but device ioctls below `writable` folders, read and
    write of `devices`; no TCP, no signals or abstract sockets to the outside where the ABI has that. Nothing may be
    executed. Raises OSError. no_new_privs has to be set."""
    handled = _handled(version)
    attributes = _Attributes(handled)
    size = 8
    if version >= 4:
        attributes.net, size = _BIND_TCP | _CONNECT_TCP, 16
    if version >= 6:
        attributes.scoped, size = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL, 24
    ruleset = syscall(_CREATE, ctypes.byref(attributes), size, 0)
    read = _READ_FILE | _READ_DIR
    for path in readable:
        _allow(ruleset, path, read & handled)
    for path in writable:
        _allow(ruleset, path, handled & ~_EXECUTE & ~_IOCTL_DEV)
    for path in devices:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
    syscall(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: OpenPath, rights: int) -> None:
    rule = _Rule(rights if path.folder else rights & _FILE_RIGHTS, path.fd)
    syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
