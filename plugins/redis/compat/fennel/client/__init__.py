"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from chancy.app.app import Chancy
from chancy.plugins.redis.compat.fennel import calls
from chancy.plugins.redis.compat.fennel.calls import DEFAULT, Timeout
from chancy.plugins.redis.compat.fennel.client import aio
from chancy.plugins.redis.compat.fennel.client.aio import ReturnWhen

if TYPE_CHECKING:
    from chancy.plugins.redis.compat.fennel.application import App

__all__ = ["AsyncResult", "Task", "gather", "purge_dead", "read_dead", "replay_dead", "wait"]

T = TypeVar("T")


class Task(aio.BaseTask):
    """A function that can be pushed to the queue. Calling it runs the function directly."""

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Push a job of the function; the job is stored when this returns.

        :raises InvalidArguments: the arguments do not fit the function.
        """
        job = self._factory(*args, **kwargs)
        return AsyncResult(calls.blocking(calls.send)(self.app, job), self.app)


class AsyncResult:
    """A handle to a job.

    :param uuid: the id of the job; may be a string.
    :raises JobNotFound: the id is not a UUID.
    """

    def __init__(self, uuid: UUID | str, app: App) -> None:
        self.app = app
        self.awaited = aio.AsyncResult(uuid, app)

    @property
    def uuid(self) -> str:
        return self.awaited.uuid

    def __repr__(self) -> str:
        return f"AsyncResult(uuid={self.uuid})"

    def status(self) -> str:
        """:raises JobNotFound: it is not kept."""
        return _call(self.app, self.awaited.status)

    def get(self, timeout: Timeout = DEFAULT) -> Any:
        """The result of the function, which is fetched once.

        :param timeout: seconds; 0 and None: forever; by default ``task_timeout``.
        :raises TaskFailed, Timeout, ResultsDisabled, JobNotFound: see those.
        """
        return _call(self.app, functools.partial(self.awaited.get, timeout))


def gather(
    results: Iterable[AsyncResult], task_timeout: float = 10, return_exceptions: bool = True
) -> list[Any]:
    """The results of jobs in the order of their handles.

    :param task_timeout: seconds for all of them together.
    :param return_exceptions: return exceptions in place of results; otherwise the first is raised.
    """
    handles = list(results)
    if not handles:
        return []
    awaited = [handle.awaited for handle in handles]
    return _call(
        handles[0].app, functools.partial(aio.gather, awaited, task_timeout, return_exceptions)
    )


def wait(
    results: Iterable[AsyncResult], timeout: float, return_when: ReturnWhen = "ALL_COMPLETED"
) -> tuple[set[asyncio.Future[Any]], set[asyncio.Future[Any]]]:
    """Futures that are done, and futures still pending after `timeout` seconds, cancelled."""
    handles = list(results)
    if not handles:
        return set(), set()

    async def main() -> tuple[set[asyncio.Future[Any]], set[asyncio.Future[Any]]]:
        done, pending = await aio.wait([handle.awaited for handle in handles], timeout, return_when)
        # Callers have no event loop in which to await them.
        for future in pending:
            future.cancel()
        return done, pending

    return _call(handles[0].app, main)


read_dead = calls.blocking(calls.read_dead)
replay_dead = calls.blocking(calls.replay_dead)
purge_dead = calls.blocking(calls.purge_dead)


def _call(app: App, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a call of the async client."""

    async def on(chancy: Chancy) -> T:
        return await work()

    return app.run(on)
