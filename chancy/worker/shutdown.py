"""Ends of several steps, all of which are taken whatever one of them raises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger("chancy.worker")

Step = Callable[[], Awaitable[None]]


async def tear_down(*steps: Step) -> None:
    """Take the steps in order, each also after one that failed or was cancelled.

    :raises BaseException: what the first one raised that raised, once all are taken; a
        cancellation goes before it. What is not raised is logged.
    """
    errors: list[Exception] = []
    cancelled: asyncio.CancelledError | None = None
    for step in steps:
        try:
            await step()
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception as error:
            errors.append(error)
    for other in errors if cancelled else errors[1:]:
        logger.error("stopping_failed error=%s: %s", type(other).__name__, other, exc_info=other)
    if cancelled is not None:
        raise cancelled
    if errors:
        raise errors[0]
