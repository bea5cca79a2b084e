"""The worker: claims jobs, runs them and settles their outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chancy.worker.worker import Worker

__all__ = ["Worker"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the supervisor imports this package but runs no jobs.
    if name == "Worker":
        from chancy.worker.worker import Worker

        return Worker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
