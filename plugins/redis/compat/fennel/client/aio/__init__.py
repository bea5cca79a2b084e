"""The client for programs with an event loop: every call is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from chancy.job.definition import JobFactory
from chancy.plugins.redis.compat.fennel import calls
from chancy.plugins.redis.compat.fennel.calls import DEFAULT, Timeout

if TYPE_CHECKING:
    from chancy.plugins.redis.compat.fennel.application import App

__all__ = ["AsyncResult", "Task", "gather", "purge_dead", "read_dead", "replay_dead", "wait"]

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]


class BaseTask:
    """A function of an application, without `delay`."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        retries: int,
        app: App,
        factory: JobFactory[..., Any],
    ) -> None:
        self.name = name
        self.func = func
        self.max_retries = retries
        self.app = app
        self._factory = factory

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)


class Task(BaseTask):
    """A function that can be pushed to the queue. Calling it runs the function directly."""

    async def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Push a job of the function; the job is stored when this returns.

        :raises InvalidArguments: the arguments do not fit the function.
        """
        job = self._factory(*args, **kwargs)
        return AsyncResult(await calls.awaited(calls.send)(self.app, job), self.app)


class AsyncResult:
    """A handle to a job.

    :param uuid: the id of the job; may be a string.
    :raises JobNotFound: the id is not a UUID.
    """

    def __init__(self, uuid: UUID | str, app: App) -> None:
        self._id = calls.id_of(uuid)
        self._app = app
        self._known: list[Any] = []

    @property
    def uuid(self) -> str:
        return str(self._id)

    def __repr__(self) -> str:
        return f"AsyncResult(uuid={self.uuid})"

    async def status(self) -> str:
        """:raises JobNotFound: it is not kept."""
        return await calls.awaited(calls.status)(self._app, self._id)

    async def get(self, timeout: Timeout = DEFAULT) -> Any:
        """The result of the function, which is fetched once.

        :param timeout: seconds; 0 and None: forever; by default ``task_timeout``.
        :raises TaskFailed, Timeout, ResultsDisabled, JobNotFound: see those.
        """
        if not self._known:
            found = await calls.awaited(calls.result)(self._app, self._id, timeout)
            self._known.append(found)
        return self._known[0]


async def gather(
    results: Iterable[AsyncResult], task_timeout: float = 10, return_exceptions: bool = True
) -> list[Any]:
    """The results of jobs in the order of their handles.

    :param task_timeout: seconds for all of them together.
    :param return_exceptions: return exceptions in place of results; otherwise the first is raised.
    """
    return await asyncio.gather(
        *(result.get(task_timeout) for result in results), return_exceptions=return_exceptions
    )


async def wait(
    results: Iterable[AsyncResult], timeout: float, return_when: ReturnWhen = "ALL_COMPLETED"
) -> tuple[set[asyncio.Future[Any]], set[asyncio.Future[Any]]]:
    """Futures that are done, and futures still pending after `timeout` seconds."""
    waiting = [asyncio.ensure_future(result.get(None)) for result in results]
    if not waiting:
        return set(), set()
    return await asyncio.wait(waiting, timeout=timeout, return_when=return_when)


read_dead = calls.awaited(calls.read_dead)
replay_dead = calls.awaited(calls.replay_dead)
purge_dead = calls.awaited(calls.purge_dead)
