"""The end of tasks that need time for it."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _unregister_task
from collections.abc import Collection
from typing import Any

#: Seconds that a task may take to end once it was cancelled.
LEAVE_S = 5.0


async def interrupt(task: asyncio.Task[Any]) -> bool:
    """Cancel a task; whether it has ended. One that swallows that goes on, and nobody waits."""
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=LEAVE_S)
    if not ended:
        # asyncio.run waits without limit for every task that it knows.
        _unregister_task(task)
    return bool(ended)


async def cancel_all(tasks: Collection[asyncio.Task[None]], *, early: bool) -> None:
    """Cancel tasks, each of them once more for each time that this one is.

    Once more takes the rest of its grace period from one that is slower than the others.

    :param early: the first cancellation of this one comes as a matter of course.
    """
    for task in tasks:
        task.cancel()
    asked: asyncio.CancelledError | None = None
    while True:
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            asked = error
            if not early:
                for task in tasks:
                    task.cancel()
            early = False
        else:
            break
    if asked is not None:
        raise asked


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
