"""Removal of folders that hostile code has filled."""

from __future__ import annotations

import os
import secrets
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
