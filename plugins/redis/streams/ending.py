"""The end of tasks that need time for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection


async def end(tasks: Collection[asyncio.Task[None]], *, early: bool) -> None:
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
