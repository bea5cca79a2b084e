"""Shutdown in several steps, none of which is skipped when another raises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger("chancy.worker")

Step = Callable[[], Awaitable[None]]


async def tear_down(*steps: Step) -> None:
    """Run the steps in order. A step that fails or is cancelled does not skip the later ones.

    :raises BaseException: the first error, after all steps have run; a cancellation takes
        precedence. Errors that are not raised are logged.
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
