"""The calls about existing jobs, over several brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import MOST_COUNTED, Cancellation, JobFilter, QueueCounts, QueuePosition
from chancy.job.definition import QueuedJob
from chancy.routing.members import BrokerSet

_Got = Coroutine[Any, Any, Mapping[UUID, QueuedJob]]


class JobLookups:
    """The calls of a `chancy.broker.contract.Broker` about existing jobs, over several brokers.

    :raises BrokerError: from the calls with ids, if a failing broker may have a job that the others
        do not.
    """

    def __init__(self, brokers: BrokerSet) -> None:
        self.brokers = brokers

    async def cancel(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        found = dict.fromkeys(ids, Cancellation.UNKNOWN)

        async def ask(broker: Broker, wanted: list[UUID]) -> Collection[UUID]:
            results = await broker.cancel(wanted)
            found.update(results)
            return {id for id, result in results.items() if result is not Cancellation.UNKNOWN}

        await self.brokers.walk(ids, ask)
        return found

    async def run_now(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        moved: set[UUID] = set()

        async def ask(broker: Broker, wanted: list[UUID]) -> Collection[UUID]:
            moved.update(await broker.run_now(wanted))
            return moved

        await self.brokers.walk(ids, ask)
        return frozenset(moved)

    async def get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        return await self._get(ids, lambda broker, wanted: broker.get(wanted))

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        return await self._get(ids, lambda broker, wanted: broker.watch(wanted))

    async def _get(
        self, ids: Sequence[UUID], get: Callable[[Broker, list[UUID]], _Got]
    ) -> Mapping[UUID, QueuedJob]:
        found: dict[UUID, QueuedJob] = {}

        async def ask(broker: Broker, wanted: list[UUID]) -> Collection[UUID]:
            found.update(await get(broker, wanted))
            return found

        await self.brokers.walk(ids, ask)
        return found

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        for name in self.brokers.all:
            with self.brokers.outages.tolerated(name):
                await (await self.brokers.ready(name)).unwatch(ids)

    async def position(self, id: UUID) -> QueuePosition | None:
        found: list[QueuePosition] = []

        async def ask(broker: Broker, _: list[UUID]) -> Collection[UUID]:
            place = await broker.position(id)
            found.extend([] if place is None else [place])
            return [] if place is None else [id]

        await self.brokers.walk([id], ask)
        return found[0] if found else None

    async def find(self, wanted: JobFilter) -> Sequence[QueuedJob]:
        """See `Broker.find`. Jobs of unavailable brokers are left out; their outage is logged.

        A job that is in its broker and in the history is returned once.
        """
        found: dict[UUID, QueuedJob] = {}
        for name in self.brokers.all:
            with self.brokers.outages.tolerated(name):
                for job in await (await self.brokers.ready(name)).find(wanted):
                    if job.id not in found or found[job.id].state.final:
                        found[job.id] = job
        ordered = sorted(found.values(), key=lambda job: job.id, reverse=True)
        return ordered[: wanted.limit]

    async def counts(self) -> Mapping[str, QueueCounts]:
        """See `Broker.counts`. Unavailable brokers are left out; their outage is logged."""
        return await self._counts(None)

    async def counted(self) -> tuple[Mapping[str, QueueCounts], Mapping[str, str]]:
        """The counts, and the errors of the unavailable brokers left out of them, by name."""
        errors: dict[str, str] = {}
        return await self._counts(errors), errors

    async def _counts(self, errors: dict[str, str] | None) -> Mapping[str, QueueCounts]:
        found: dict[str, QueueCounts] = {}
        for name in self.brokers.all:
            with self.brokers.outages.tolerated(name, errors):
                broker = await self.brokers.ready(name)
                for queue, here in (await broker.counts()).items():
                    pairs = zip(found.get(queue, QueueCounts()), here, strict=True)
                    found[queue] = QueueCounts(*(min(a + b, MOST_COUNTED) for a, b in pairs))
        return found
