"""Waits for a condition instead of a fixed time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    import asyncio

    from chancy import Reference, State
else:
    from tests.support.late import asyncio

Found = TypeVar("Found")

_STEP_S, _LONGEST_STEP_S = 0.01, 0.25


@overload
async def eventually(
    condition: Callable[[], Coroutine[Any, Any, Found]], *, timeout: float = ...
) -> Found: ...
@overload
async def eventually(condition: Callable[[], Found], *, timeout: float = ...) -> Found: ...
async def eventually(condition: Callable[[], object], *, timeout: float = 30.0) -> object:
    """Call a condition until its result is true, and return the result.

    :param condition: plain or async. An AssertionError that it raises means "not yet".
    :raises AssertionError: after ``timeout`` seconds, with the last result.
    """
    begin = time.monotonic()
    while True:
        asking = time.monotonic()
        last: object
        try:
            asked = condition()
            answer: object = await asked if inspect.isawaitable(asked) else asked
            if answer:
                return answer
            last = answer
        except AssertionError as error:
            last = error
        if time.monotonic() > begin + timeout:
            raise AssertionError(f"still {last!r} after {timeout} s: {condition}")
        await asyncio.sleep(_pause(begin, asking))


async def gives(asked: Awaitable[object], wanted: object) -> bool:
    """Assert that a call returns this, for `eventually`."""
    found = await asked
    assert found == wanted, f"{found!r} instead of {wanted!r}"
    return True


async def is_in(reference: Reference[Any], state: State) -> bool:
    """Whether a job is in a state, for `eventually`."""
    return await reference.status() is state


def eventually_sync(condition: Callable[[], Found], *, timeout: float = 30.0) -> Found:
    """`eventually` for tests without an event loop."""
    begin = asking = time.monotonic()
    while not (answer := condition()):
        if time.monotonic() > begin + timeout:
            raise AssertionError(f"still {answer!r} after {timeout} s: {condition}")
        time.sleep(_pause(begin, asking))
        asking = time.monotonic()
    return answer


def _pause(begin: float, asking: float) -> float:
    """Seconds until the next call of the condition.

    Calls take a fifth of the time at most, and the total wait grows by a twentieth at most. A
    condition that opens a session would otherwise keep the server busy.
    """
    now = time.monotonic()
    return min(_LONGEST_STEP_S, max(_STEP_S, 4 * (now - asking), (now - begin) / 20))
