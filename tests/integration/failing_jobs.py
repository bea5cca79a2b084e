"""Functions of jobs that fail in several ways."""

from __future__ import annotations

import asyncio
import weakref

from chancy import job


class OutOfStock(Exception):
    """Raised by `fail`."""


class Value:
    """A variable of a job."""


#: The variable of the last `hold`.
held: weakref.ref[Value] | None = None


@job
def fail() -> None:
    raise_it()


def raise_it() -> None:
    raise OutOfStock("none left")


async def hold(wait: bool) -> None:
    """Fails with a variable that the traceback refers to."""
    global held
    value = Value()
    held = weakref.ref(value)
    if wait:
        await asyncio.sleep(0)
    raise OutOfStock("none left")
