"""Runs model-written Python in forked, persistent sessions.

    async with Sandbox() as sandbox:
        session = await sandbox.session({"sales.csv": Path("data/sales.csv")}, prelude="sales = pd.read_csv('sales.csv')")
        result = await session.run("sales['amount'].sum()")
        await session.close()

The names below are loaded on first use: the zygote imports this package too and must stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentic.sandbox.limits import Limits
    from agentic.sandbox.session import SandboxError, Session
    from agentic.sandbox.supervisor import Sandbox

__all__ = ["Limits", "Sandbox", "SandboxError", "Session"]

_HOME = {"Limits": "limits", "Sandbox": "supervisor", "SandboxError": "session", "Session": "session"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
