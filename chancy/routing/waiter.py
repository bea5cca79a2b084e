"""Waits for jobs that may be in any of several brokers."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import BrokerError, BrokerUnavailable, WaitTimeout
from chancy.job.definition import QueuedJob
from chancy.queue.queue import DEFAULT_BROKER
from chancy.results.waiter import CompletionWaiter, Gone
from chancy.routing.members import BrokerSet

#: Seconds after which an unavailable broker is tried again.
_RETRY_S = 1.0
#: Seconds until a wait at one broker first checks whether another has the job now, and the maximum
#: between two such checks; the interval doubles.
_RECHECK_S, _MAX_RECHECK_S = 2.0, 64.0
#: The maximum number of jobs of one lookup, which reads all of each.
_MAX_LOOKUP = 100


class RoutedWaiter:
    """Waits for jobs with one `CompletionWaiter` for each broker, so that the outage of one broker
    does not affect waits for jobs of another.

    :param broker_of: returns the broker of a queue and its name.
    """

    def __init__(
        self,
        brokers: BrokerSet,
        clock: Clock,
        broker_of: Callable[[str], Awaitable[tuple[str, Broker]]],
    ) -> None:
        self._brokers = brokers
        self._clock = clock
        self._broker_of = broker_of
        self._waiters = {
            name: CompletionWaiter(broker, clock) for name, broker in brokers.all.items()
        }
        self._requested: dict[UUID, asyncio.Future[str | Exception | None]] = {}
        self._lookup_task: asyncio.Task[None] | None = None
        self._closings = 0

    async def wait(self, id: UUID, timeout_s: float | None, *, stored: bool = False) -> QueuedJob:
        """Wait until a job is finished; see `chancy.results.reference.Reference.wait`.

        A job that no broker has yet is waited for at every broker.

        :param stored: it is known to have been stored.
        """
        name = self._brokers.broker_of_job(id)
        if name is None and (name := await self._find(id)) is not None:
            stored = True
        if name is None and not stored:
            return await self._wait_everywhere(id, timeout_s)
        started, left_s = self._clock.monotonic(), timeout_s
        while True:
            found = await self._wait_where_known(name or DEFAULT_BROKER, id, left_s, stored)
            if not isinstance(found, str):
                return found
            name, left_s, stored = found, self._left_s(timeout_s, started), True

    async def _wait_where_known(
        self, name: str, id: UUID, timeout_s: float | None, stored: bool
    ) -> QueuedJob | str:
        """Wait at one broker, and check at times whether another has the job.

        The broker may remove the job before its completion is reported, and another have its
        history; or another broker may take over the job.

        :return: the finished job, or the name of the broker that has the job now: another one, or
            the same one, if the job was moved away and came back.
        """
        pause_s, started = _RECHECK_S, self._clock.monotonic()
        await self._brokers.ready(name)
        waiting = asyncio.create_task(self._waiters[name].wait(id, timeout_s, stored=stored))
        try:
            while True:
                # Beside the wait: another broker may be unavailable, which takes it a timeout.
                looking = asyncio.create_task(self._find_later(id, pause_s))
                try:
                    await asyncio.wait([waiting, looking], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    looking.cancel()
                if waiting.done():
                    gone = waiting.exception()
                    if not isinstance(gone, Gone):
                        return waiting.result()
                    left_s = self._left_s(timeout_s, started)
                    found = await self._find_moved(name, gone.queue, id, left_s)
                    return waiting.result() if found is None else found
                found = looking.result()
                if found is not None and found != name:
                    return found
                pause_s = min(2 * pause_s, _MAX_RECHECK_S)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _find_later(self, id: UUID, pause_s: float) -> str | None:
        await self._clock.sleep(pause_s)
        return await self._find(id)

    async def _find_moved(
        self, name: str, queue: str | None, id: UUID, timeout_s: float | None
    ) -> str | None:
        """The broker that has a job that another one has no longer; None if none has it. Waits for
        unavailable brokers, if they may have it.

        A job moves from the control broker to that of its queue, and back at its end.
        """
        until = math.inf if timeout_s is None else self._clock.monotonic() + timeout_s
        closings = self._closings
        possible = {DEFAULT_BROKER, name}
        if queue is None:
            possible.update(self._brokers.all)
        elif name == DEFAULT_BROKER:
            possible.add((await self._broker_of(queue))[0])
        while True:
            # It may have moved to a broker that was asked before the one that it left.
            found = await self._ask(id) or await self._ask(id)
            if not isinstance(found, Exception):
                return found
            try:
                return await self._find_among(possible, id)
            except BrokerError as error:
                if self._clock.monotonic() >= until:
                    raise WaitTimeout(
                        f"job {id} may be in a broker that is unavailable: {error}"
                    ) from None
            await self._clock.sleep(_RETRY_S)
            if closings != self._closings:
                raise _closed()

    async def _find_among(self, names: Collection[str], id: UUID) -> str | None:
        """The broker of these that has a job, asked one by one; None if none of them has it."""
        for name in (*names, *names):
            broker = await self._brokers.ready(name)
            if await broker.get([id]):
                return name
        return None

    async def _find(self, id: UUID) -> str | None:
        """The broker that has a job; None if no available broker has it."""
        found = await self._ask(id)
        return None if isinstance(found, Exception) else found

    async def _ask(self, id: UUID) -> str | Exception | None:
        """The broker that has a job, or the error of one that may have it; None if none has it.

        Concurrent calls share one lookup.
        """
        result = self._requested.get(id)
        if result is None:
            result = self._requested[id] = asyncio.get_running_loop().create_future()
        if self._lookup_task is None:
            self._lookup_task = asyncio.create_task(self._look_up())
        return await asyncio.shield(result)

    async def _look_up(self) -> None:
        names = {broker: name for name, broker in self._brokers.all.items()}
        found: dict[UUID, str] = {}

        async def ask(broker: Broker, ids: list[UUID]) -> Collection[UUID]:
            jobs = await broker.get(ids)
            found.update(dict.fromkeys(jobs, names[broker]))
            return jobs

        try:
            while self._requested:
                await asyncio.sleep(0)  # collects the requests of the same turn of the loop
                ids = list(itertools.islice(self._requested, _MAX_LOOKUP))
                found.clear()
                failure: Exception | None = None
                try:
                    await self._brokers.walk(ids, ask)
                except Exception as error:  # logged
                    failure = error
                for id in ids:
                    self._requested.pop(id).set_result(found.get(id, failure))
        finally:
            self._lookup_task = None

    async def _wait_everywhere(self, id: UUID, timeout_s: float | None) -> QueuedJob:
        """Wait at every broker. An unavailable broker is tried again, unless all of them are."""
        started, unavailable = self._clock.monotonic(), set[str]()
        waiting: dict[asyncio.Task[QueuedJob], str] = {}

        def start(name: str, timeout_s: float | None, pause_s: float) -> None:
            wait = self._wait_at(name, id, timeout_s, pause_s)
            waiting[asyncio.create_task(wait)] = name

        for name in self._waiters:
            start(name, timeout_s, 0.0)
        try:
            while True:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name = waiting.pop(task)
                    try:
                        return task.result()
                    except BrokerError:
                        unavailable.add(name)
                        if len(unavailable) == len(self._waiters):
                            raise
                        start(name, self._left_s(timeout_s, started), _RETRY_S)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait_at(
        self, name: str, id: UUID, timeout_s: float | None, pause_s: float
    ) -> QueuedJob:
        await self._clock.sleep(pause_s)
        await self._brokers.ready(name)
        return await self._waiters[name].wait(id, timeout_s)

    def _left_s(self, timeout_s: float | None, started: float) -> float | None:
        if timeout_s is None:
            return None
        return max(0.0, timeout_s - (self._clock.monotonic() - started))

    async def close(self) -> None:
        """End all waits with `BrokerUnavailable`."""
        self._closings += 1
        if self._lookup_task is not None:
            self._lookup_task.cancel()
            await asyncio.wait([self._lookup_task])
        while self._requested:
            _, result = self._requested.popitem()
            result.set_exception(_closed())
            result.exception()  # the caller may have given up
        for waiter in self._waiters.values():
            await waiter.close()


def _closed() -> BrokerUnavailable:
    return BrokerUnavailable("the application was closed during a wait")
