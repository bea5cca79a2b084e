"""The worker: claims jobs, runs them, and settles what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chancy.worker.worker import Worker

__all__ = ["Worker"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: the supervisor imports this package, and runs no jobs.
    if name == "Worker":
        from chancy.worker.worker import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
