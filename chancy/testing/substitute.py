"""Substitutes for the database of an application in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob
from chancy.errors import ConfigurationError
from chancy.job.definition import QueuedJob
from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker
from chancy.testing.threads import run

T = TypeVar("T")

#: Runs due jobs, and returns a job that is finished then.
Finish = Callable[[UUID], Coroutine[Any, Any, QueuedJob]]


class SandboxTransaction:
    """The value of `Chancy.transaction` in a sandbox. It only serves as ``within``."""

    def __init__(self) -> None:
        #: The ids of its jobs, in push order.
        self.ids: list[UUID] = []

    async def fetch(self, sql: str, *params: object, **options: object) -> NoReturn:
        raise ConfigurationError("a sandbox has no database: test SQL with a real one")


class SandboxBroker(MemoryBroker):
    """A broker in memory. Jobs pushed ``within`` a transaction are stored at once.

    :param pushed: called after each push.
    """

    def __init__(self, clock: ManualClock, pushed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(clock=clock)
        self._pushed = pushed
        self.faults: dict[str, list[Exception]] = {}
        #: The ids of pushed jobs, in push order.
        self.order: list[UUID] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name not in vars(MemoryBroker):
            return found
        errors = self.faults.get(name)
        if not errors:
            return found
        error = errors.pop(0)

        async def fail(*args: object, **kwargs: object) -> None:
            raise error

        return fail

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        existing = await super().push(jobs)
        new = [job.id for job in jobs if job.id not in self.order]
        self.order += new
        if isinstance(within, SandboxTransaction):
            within.ids += new
        await self._pushed()
        return existing

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        return await self.push([job for chunk in chunks for job in chunk], within=within)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[SandboxTransaction]:
        """See `Chancy.transaction`. If it raises, its unfinished jobs are dropped."""
        transaction = SandboxTransaction()
        try:
            yield transaction
        except BaseException:
            for id in transaction.ids:
                self.store.drop(id)
            raise


class SandboxWaiter:
    """Waits for results in async calls."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish

    async def wait(self, id: UUID, timeout_s: float | None, *, stored: bool = False) -> QueuedJob:
        return await self._finish(id)

    async def close(self) -> None:
        """Nothing to close."""


class SandboxSyncBroker:
    """The broker of sync calls; see `chancy.app.sync.SyncBroker`."""

    def __init__(self, broker: SandboxBroker, finish: Finish) -> None:
        self._broker = broker
        self._finish = finish

    @property
    def connection(self) -> None:
        """None: there is no database."""

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        return _run_to_end(self._broker.push(jobs))

    def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        return _run_to_end(self._broker.push_many(chunks))

    def run(self, work: Callable[[Broker], Awaitable[T]], *, waits: bool = False) -> T:
        async def call() -> T:
            return await work(self._broker)

        return _run_to_end(call())

    def begin(
        self, id: UUID, timeout_s: float | None, *, stored: bool = False
    ) -> Future[QueuedJob]:
        done: Future[QueuedJob] = Future()
        try:
            done.set_result(_run_to_end(self._finish(id)))
        except Exception as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Nothing to close."""


def _run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that may run jobs. In a thread of its own if an event loop is running
    already, as in a sync call from async code."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run(work)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()
