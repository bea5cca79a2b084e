"""`BackgroundBroker`: pushes and other calls of threads without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob
from chancy.errors import BrokerUnavailable
from chancy.job.definition import QueuedJob
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers.base import Connection
from chancy.postgres.push import missing_tables
from chancy.postgres.push.bulk import gathered
from chancy.postgres.push.statement import insertion, stand_ins
from chancy.postgres.statements import Statements
from chancy.postgres.within import fetch_within_sync
from chancy.queue.queue import DEFAULT_BROKER
from chancy.results.background import BackgroundLoop, JobWaiter
from chancy.routing.partitioning import PushPartitioning
from chancy.routing.router import RoutedBroker

#: Seconds that closing waits for cancelled tasks.
_CLOSE_S = 5.0

T = TypeVar("T")


class BackgroundBroker:
    """A broker for threads without an event loop, and the waiter for its jobs; thread-safe.

    Calls run in the event loop of a background thread. Statements within a transaction of the
    caller run in the calling thread, on the caller's connection.

    :param make: creates a `PostgresBroker`, or a `RoutedBroker` with such a control, and its
        waiter; called in the loop of the thread.
    :param routed: whether it is a `RoutedBroker`.
    """

    def __init__(
        self, make: Callable[[], tuple[Broker, JobWaiter]], schema: str, *, routed: bool
    ) -> None:
        self._make = make
        self._loop = BackgroundLoop(self._close)
        # By loop: those of a parent process must stay open there.
        self._made: dict[asyncio.AbstractEventLoop, tuple[Broker, JobWaiter]] = {}
        self._opened: set[asyncio.AbstractEventLoop] = set()
        self._sql = Statements(schema)
        self._routed = routed

    def begin(
        self, id: UUID, timeout_s: float | None, *, stored: bool = False
    ) -> Future[QueuedJob]:
        """Start waiting for a job to finish; see `chancy.results.reference.Reference.wait`."""
        return self._loop.submit(
            self._run(lambda _, waiter: waiter.wait(id, timeout_s, stored=stored))
        )

    def run(self, work: Callable[[Broker], Awaitable[T]], *, waits: bool = False) -> T:
        """Run a coroutine function with the broker, and return its result. It may always wait."""
        return self._loop.run(self._run(lambda broker, _: work(broker)))

    def close(self) -> None:
        """Cancel the calls of other threads, and stop the thread. Later calls raise."""
        self._loop.close(for_good=True)

    async def _run(self, work: Callable[[Broker, JobWaiter], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        try:
            if loop not in self._made:
                self._made[loop] = self._make()
            broker, waiter = self._made[loop]
            # Once: each attempt waits for the other brokers that cannot be reached.
            if loop not in self._opened:
                await broker.open()
                self._opened.add(loop)
            return await work(broker, waiter)
        except asyncio.CancelledError:
            if not self._loop.closed:
                raise
            if (task := asyncio.current_task()) is not None:
                # If its caller has gone, too, asyncio would log the error as never retrieved.
                task.add_done_callback(_read)
            raise BrokerUnavailable("the application was closed during a call") from None

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        made = self._made.pop(loop, None)
        self._opened.discard(loop)
        try:
            if made is not None:
                broker, waiter = made
                await waiter.close()
                await broker.close()
        finally:
            # Tasks that are not waiting yet, since the broker is still being opened.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest, timeout=_CLOSE_S)

    # Pushing

    @property
    def connection(self) -> None:
        """None: it uses its own sessions."""

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push`."""
        if within is None:
            return self.run(lambda broker: broker.push(jobs))
        return self.push_many([jobs], within=within)

    def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push_many`. The chunks are consumed in the calling thread."""
        if not self._routed:
            return self._store(chunks, within)
        if within is not None:
            return self._store(self.run(partial(_checked, chunks=chunks, within=within)), within)

        async def partition(broker: Broker) -> PushPartitioning:
            assert isinstance(broker, RoutedBroker)
            return await broker.partition(chunks, blocking=True)

        partitions = self.run(partition)
        found: dict[UUID, UUID] = {}

        def store(name: str, part: Iterable[Sequence[PreparedJob]]) -> None:
            if name == DEFAULT_BROKER:
                found.update(self._store(part, None))
            else:
                # Read in this thread: an iterable of the caller may block, and must not block the
                # loop.
                read = list(part)
                found.update(self.run(lambda routed: routed.push_many(read)))

        if (first := partitions.start()) is not None:
            store(first, partitions.stream(first))
        for name, part in partitions.rest():
            store(name, part)
        return found

    def _store(
        self, chunks: Iterable[Sequence[PreparedJob]], within: object | None
    ) -> Mapping[UUID, UUID]:
        found: dict[UUID, UUID] = {}
        if within is not None:
            for chunk in gathered(chunks):
                found.update(self._insert_within(within, chunk))
            return found
        with self._transaction() as connection:
            for chunk in gathered(chunks):
                push = partial(_push, jobs=chunk, within=connection)
                found.update(self.run(push))
        return found

    def _insert_within(self, within: object, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        if not jobs:
            return {}
        try:
            statement, parameters = insertion(self._sql, jobs, new=False, guarded=False)
            rows = fetch_within_sync(within, statement, *parameters)
        except Exception as error:
            self.run(partial(_explain, error))
            raise
        return stand_ins(self._sql, statement, rows)

    @contextmanager
    def _transaction(self) -> Generator[Connection]:
        """A transaction on a session of the loop's pool."""

        async def start(broker: Broker) -> tuple[AsyncExitStack, Connection]:
            stack = AsyncExitStack()
            return stack, await stack.enter_async_context(_control(broker).transaction())

        stack, connection = self.run(start)
        try:
            yield connection
        except BaseException as error:
            cause = error
            self.run(lambda _: stack.__aexit__(type(cause), cause, cause.__traceback__))
            raise
        self.run(lambda _: stack.aclose())


def _read(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _control(broker: Broker) -> PostgresBroker:
    control = broker.control if isinstance(broker, RoutedBroker) else broker
    assert isinstance(control, PostgresBroker)
    return control


async def _checked(
    broker: Broker, chunks: Iterable[Sequence[PreparedJob]], within: object
) -> Iterator[Sequence[PreparedJob]]:
    assert isinstance(broker, RoutedBroker)
    return await broker.checked_within(chunks, within)


async def _push(broker: Broker, jobs: Sequence[PreparedJob], within: object) -> dict[UUID, UUID]:
    return dict(await broker.push(jobs, within=within))


async def _explain(error: Exception, broker: Broker) -> None:
    control = _control(broker)
    await missing_tables.check(error, control.fetch, control.schema)
