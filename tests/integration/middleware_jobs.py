"""Middleware in executor processes, and jobs that see it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from chancy import JobContext, job
from chancy.attempt.outcome import Returned

SHOP: ContextVar[str] = ContextVar("shop", default="none")
#: How the jobs of this process have ended.
ENDED: list[str] = []


@contextmanager
def shop(context: JobContext) -> Generator[None]:
    """Set the shop of a job, and note how it ended."""
    if context.meta.get("refused"):
        raise PermissionError("not this one")
    token = SHOP.set(context.meta["shop"])
    yield
    SHOP.reset(token)
    ENDED.append(type(context.outcome).__name__)
    if context.meta.get("broken") and isinstance(context.outcome, Returned):
        raise RuntimeError("closing failed")


@job
def see() -> list[object]:
    """The shop of this job, how earlier jobs ended, and the process."""
    return [SHOP.get(), ENDED[-1:], os.getpid()]


@job
async def see_later() -> str:
    """The shop of this job."""
    return SHOP.get()
