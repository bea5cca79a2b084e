"""The thread in which the jobs of a sandbox run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop; with Django, as its ``async_to_sync`` does."""
    if not _in_django():
        return asyncio.run(work)
    from asgiref.sync import async_to_sync

    async def call() -> T:
        return await work

    return async_to_sync(call)()


def placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a job, to call in any thread while the event loop of this one runs.

    With Django, a plain function runs in the thread that its ``sync_to_async`` uses: that of the
    test, because connections, with their transactions, belong to threads.
    """
    if not _in_django() or iscoroutinefunction(function):
        return function
    from asgiref.sync import sync_to_async

    loop = asyncio.get_running_loop()

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        work = sync_to_async(function, thread_sensitive=True)(*args, **kwargs)
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    return call


def _in_django() -> bool:
    return "django.db" in sys.modules
