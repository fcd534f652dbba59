"""The environment variables that code in a session sees."""

from __future__ import annotations

import os
from pathlib import Path

KEPT_VARIABLES = ("TZ", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONDONTWRITEBYTECODE")
"""The only variables of the trainer that code may see. By the last one the zygote keeps bytecode or not; sessions never do."""


def clean_environment(folder: Path) -> dict[str, str]:
    """All variables of the zygote; `folder` is its home."""
    package_root = str(Path(__file__).resolve().parents[2])
    cache = Path(os.environ.get("AGENTIC_CACHE") or Path.home() / ".cache" / "agentic")
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {
        "PATH": os.defpath,
        "HOME": str(folder),
        "PYTHONPATH": package_root,
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",  # sets print in the same order in every session
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's allocator; only one thread survives a fork
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve a GiB of address space, which RLIMIT_AS counts
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR") or str(cache / "matplotlib"),  # keeps the font list between runs
    }
