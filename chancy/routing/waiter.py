"""Waiting for the end of jobs that may be in one broker or another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection
from contextlib import suppress
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import BrokerError, BrokerUnavailable
from chancy.job.definition import QueuedJob
from chancy.results.waiter import CompletionWaiter, Gone
from chancy.routing.members import BrokerSet

#: Seconds after which a broker that is away is asked again.
_AGAIN_S = 1.0
#: Seconds after which who waits for a job at one broker looks whether another has it by now, and
#: at most between two of these looks; each is twice as late as the one before.
_DOUBT_S, _LONGEST_DOUBT_S = 2.0, 64.0
#: Jobs that one look asks about.
_MOST_ASKED = 1_000


class RoutedWaiter:
    """Waits for jobs with one `CompletionWaiter` for each broker, so that the outage of one broker
    does not affect waits for jobs of another."""

    def __init__(self, planes: BrokerSet, clock: Clock) -> None:
        self._planes = planes
        self._clock = clock
        self._finishes = {name: CompletionWaiter(one, clock) for name, one in planes.all.items()}
        self._asked: dict[UUID, asyncio.Future[str | None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob:
        """Wait until a job is finished; see `chancy.results.reference.Reference.wait`.

        A job that is nowhere yet is waited for everywhere.
        """
        name = self._planes.plane_of_job(id) or await self._find(id)
        if name is not None:
            return await self._wait_where_known(name, id, timeout_s)
        return await self._wait_everywhere(id, timeout_s)

    async def _wait_where_known(self, name: str, id: UUID, timeout_s: float | None) -> QueuedJob:
        """A broker may forget a job before its end is told, and another have its history; or
        another takes the job over."""
        began, pause_s = self._clock.monotonic(), _DOUBT_S
        await self._planes.ready(name)
        waiting = asyncio.create_task(self._finishes[name].wait(id, timeout_s))
        try:
            while True:
                doubting = asyncio.create_task(self._clock.sleep(pause_s))
                try:
                    await asyncio.wait([waiting, doubting], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    doubting.cancel()
                gone = waiting.done() and isinstance(waiting.exception(), Gone)
                if waiting.done() and not gone:
                    return waiting.result()
                found = await self._find(id)
                if found is not None and found != name:
                    break
                if gone:
                    return waiting.result()
                pause_s = min(2 * pause_s, _LONGEST_DOUBT_S)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        left_s = timeout_s
        if timeout_s is not None:
            left_s = max(0.0, timeout_s - (self._clock.monotonic() - began))
        return await self._finishes[found].wait(id, left_s)

    async def _find(self, id: UUID) -> str | None:
        """The broker that has a job; None if none of those that can be asked has. Who ask at once
        are answered by the same look."""
        answer = self._asked.get(id)
        if answer is None:
            answer = self._asked[id] = asyncio.get_running_loop().create_future()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(answer)

    async def _look(self) -> None:
        names = {broker: name for name, broker in self._planes.all.items()}
        found: dict[UUID, str] = {}

        async def ask(broker: Broker, ids: list[UUID]) -> Collection[UUID]:
            there = await broker.get(ids)
            found.update(dict.fromkeys(there, names[broker]))
            return there

        try:
            while self._asked:
                await asyncio.sleep(0)  # for those who ask in the same turn of the loop
                ids = list(itertools.islice(self._asked, _MOST_ASKED))
                found.clear()
                with suppress(BrokerError):
                    await self._planes.walk(ids, ask)
                for id in ids:
                    self._asked.pop(id).set_result(found.get(id))
        finally:
            self._looking = None

    async def _wait_everywhere(self, id: UUID, timeout_s: float | None) -> QueuedJob:
        """Those that are away are asked again and again, unless none can be asked."""
        began = self._clock.monotonic()
        waiting = {self._start(name, id, timeout_s, 0.0): name for name in self._finishes}
        tasks, away = set(waiting), set[str]()
        try:
            while True:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name = waiting.pop(task)
                    tasks.discard(task)
                    try:
                        return task.result()
                    except BrokerError:
                        away.add(name)
                        if len(away) == len(self._finishes):
                            raise
                        left_s = timeout_s
                        if timeout_s is not None:
                            left_s = timeout_s - (self._clock.monotonic() - began)
                        again = self._start(name, id, left_s, _AGAIN_S)
                        waiting[again] = name
                        tasks.add(again)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(
        self, name: str, id: UUID, timeout_s: float | None, pause_s: float
    ) -> asyncio.Task[QueuedJob]:
        return asyncio.create_task(self._wait_at(name, id, timeout_s, pause_s))

    async def _wait_at(
        self, name: str, id: UUID, timeout_s: float | None, pause_s: float
    ) -> QueuedJob:
        await self._clock.sleep(pause_s)
        await self._planes.ready(name)
        return await self._finishes[name].wait(id, timeout_s)

    async def close(self) -> None:
        """Let those who still wait know that nobody looks any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        while self._asked:
            _, answer = self._asked.popitem()
            answer.set_exception(BrokerUnavailable("the application was closed during a wait"))
        for finishes in self._finishes.values():
            await finishes.close()
