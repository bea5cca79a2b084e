"""Waiting for an effect instead of for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

Found = TypeVar("Found")

_STEP_SECONDS = 0.01


@overload
async def eventually(
    condition: Callable[[], Coroutine[Any, Any, Found]], *, timeout: float = ...
) -> Found: ...
@overload
async def eventually(condition: Callable[[], Found], *, timeout: float = ...) -> Found: ...
async def eventually(condition: Callable[[], object], *, timeout: float = 30.0) -> object:
    """Ask until the answer is true, and give it.

    :param condition: plain or async. An AssertionError it raises means "not yet".
    :raises AssertionError: after the timeout in seconds, with the last answer.
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        try:
            asked = condition()
            answer: object = await asked if inspect.isawaitable(asked) else asked
            if answer:
                return answer
            last = answer
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"still {last!r} after {timeout} s: {condition}")
        await asyncio.sleep(_STEP_SECONDS)


def eventually_sync(condition: Callable[[], Found], *, timeout: float = 30.0) -> Found:
    """`eventually` for tests without a loop."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {answer!r} after {timeout} s: {condition}")
        time.sleep(_STEP_SECONDS)
    return answer
