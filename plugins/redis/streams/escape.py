"""Cancellations that nobody asked for: they are failures like any other, and no end."""

from __future__ import annotations

import asyncio


class Escaped(RuntimeError):
    """A function has let a CancelledError escape, although nobody has cancelled its task."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} let a CancelledError escape: something that it awaited was cancelled"
        )


def cancelled() -> bool:
    """Whether somebody has cancelled the task that runs now: then a CancelledError must pass."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
