"""Cancellation of tasks that need time to end."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _unregister_task
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds that a cancelled task may take to end.
LEAVE_S = 5.0


async def interrupt(task: asyncio.Task[Any]) -> bool:
    """Cancel a task; return whether it ended. A task that ignores the cancellation is left."""
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=LEAVE_S)
    if not ended:
        # asyncio.run waits without limit for every registered task.
        _unregister_task(task)
    return bool(ended)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end, also if the caller is cancelled meanwhile; raises that afterwards."""
    task, asked = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            asked = error
    if asked is not None:
        task.exception()  # the cancellation takes its place
        raise asked
    return task.result()


async def cancel_all(tasks: Collection[asyncio.Task[None]], *, early: bool) -> None:
    """Cancel tasks, and cancel them again each time that the caller is cancelled.

    A second cancellation ends the grace period of a task that is slower than the others.

    :param early: the first cancellation of the caller is expected, and not passed on.
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
    """A function let a CancelledError escape although its task was not cancelled."""

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"{subject} let a CancelledError escape: something that it awaited was cancelled"
        )
