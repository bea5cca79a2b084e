"""Keeps an application open while a web service runs, and collects the jobs of a request.

For Starlette, Litestar, and other ASGI frameworks; `chancy.fastapi` adds dependencies of FastAPI.
This module imports no framework.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from chancy.app.app import Chancy
from chancy.errors import ConfigurationError, PushError
from chancy.job.definition import Job

#: The maximum number of jobs of one `RequestJobs`.
MOST_JOBS = 10_000

#: The lifespan of an ASGI application, as Starlette and FastAPI take it.
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
ChancyLifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def chancy_lifespan(chancy: Chancy, *, lifespan: Lifespan | None = None) -> ChancyLifespan:
    """Return a lifespan that keeps an application open while a service runs.

    The application is ``chancy`` in the state of the lifespan: ``request.state.chancy`` in
    Starlette.

    :param lifespan: your own lifespan. It begins after the application has opened, and ends before
        it closes; its state is kept.
    """
    if not isinstance(chancy, Chancy):
        raise ConfigurationError(f"chancy_lifespan needs a Chancy, not {chancy!r}")

    @asynccontextmanager
    async def opened(app: Any) -> AsyncGenerator[Mapping[str, Any]]:
        async with chancy:
            if lifespan is None:
                yield {"chancy": chancy}
                return
            async with lifespan(app) as state:
                yield {**(state or {}), "chancy": chancy}

    return opened


def chancy_of(scope: Mapping[str, Any]) -> Chancy:
    """The application that `chancy_lifespan` keeps open, from the ASGI scope of a request.

    :raises ConfigurationError: the lifespan has not run, or the framework is Litestar, which does
        not pass the state of a lifespan to requests.
    """
    found = (scope.get("state") or {}).get("chancy")
    if not isinstance(found, Chancy):
        if "litestar_app" in scope:
            raise ConfigurationError(
                "Litestar does not pass the state of a lifespan to requests: import your "
                "application where a handler pushes, and use RequestJobs(chancy)"
            )
        raise ConfigurationError(
            "no application of chancy is open in this service: give it "
            "lifespan=chancy_lifespan(chancy); in a test, enter `with TestClient(app)`"
        )
    return found


class RequestJobs:
    """Jobs that a request adds, pushed together at its end; used as an async context manager.

    If the block raises, none of them is pushed. Otherwise all or none are stored, when the block
    ends.

    :param within: a connection with an open transaction of the caller; see `Chancy.push`.
    """

    def __init__(self, chancy: Chancy, *, within: object | None = None) -> None:
        self._chancy = chancy
        self._within = within
        self._jobs: list[Job[Any]] = []
        self._ended = False

    def add(self, job: Job[Any]) -> None:
        """Add a job. Any thread may call this.

        :raises PushError: the block has ended, or it has added 10,000 jobs.
        """
        if not isinstance(job, Job):
            raise PushError(f"add takes a job such as send.job(...), not {type(job).__name__}")
        if self._ended:
            raise PushError(f"{job.func} was added after the jobs of the request were pushed")
        if len(self._jobs) >= MOST_JOBS:
            raise PushError(
                f"a request adds at most {MOST_JOBS:,} jobs: use push_many, which takes any number"
            )
        self._jobs.append(job)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        if error is None and self._jobs:
            await self._chancy.push_many(self._jobs, within=self._within)
