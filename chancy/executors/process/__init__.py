"""The executor of child processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chancy.executors.process.executor import ProcessExecutor

__all__ = ["ProcessExecutor"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: a child imports this package, and needs none of it.
    if name == "ProcessExecutor":
        from chancy.executors.process.executor import ProcessExecutor

        return ProcessExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
