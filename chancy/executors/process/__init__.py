"""The process executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chancy.executors.process.executor import ProcessExecutor

__all__ = ["ProcessExecutor"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: executor processes import this package, but not this class.
    if name == "ProcessExecutor":
        from chancy.executors.process.executor import ProcessExecutor

        return ProcessExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
