"""Pushes from threads to the brokers of the queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import BlockingPush, BlockingWithin
from chancy.broker.values import PreparedJob
from chancy.clock import Clock
from chancy.errors import BrokerError, PushError
from chancy.job.definition import QueuedJob
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.results.background import Background
from chancy.routing.partitioning import PushPartitioning, check_part
from chancy.routing.placement import QueuePlacement

if TYPE_CHECKING:
    from chancy.postgres.sync import SyncPostgresBroker


class RoutedStore:
    """Pushes from threads without an event loop to the brokers of the queues.

    :param planes: made for this alone; only those that are a `BlockingPush` are used. To others
        it is pushed in the loop of ``background``.
    """

    def __init__(
        self,
        control: SyncPostgresBroker,
        planes: Mapping[str, Broker],
        background: Background[Broker],
        homes: QueuePlacement,
        clock: Clock,
    ) -> None:
        self._control = control
        self._planes = planes
        self._background = background
        self._homes = homes
        self._clock = clock

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `chancy.routing.router.RoutedBroker.push`."""
        self._find_homes([job.queue for job in jobs])
        parts: dict[str, list[PreparedJob]] = {}
        for job in jobs:
            parts.setdefault(self._homes.of(job.queue), []).append(job)
        for name, part in parts.items():
            self._check(name, part, within)
        found: dict[UUID, UUID] = {}
        for name, part in parts.items():
            found.update(self._push_to(name, [part], within))
        return found

    def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `chancy.routing.router.RoutedBroker.push_many`."""
        self._find_homes([])

        def check(name: str, part: Sequence[PreparedJob]) -> None:
            self._check(name, part, within)

        sorting = PushPartitioning(chunks, self._homes.of, check, lambda name, part: None)
        found: dict[UUID, UUID] = {}
        if (first := sorting.begin()) is not None:
            found.update(self._push_to(first, sorting.stream(first), within))
        for name, part in sorting.rest():
            found.update(self._push_to(name, part, within))
        return found

    def _find_homes(self, queues: Iterable[str]) -> None:
        now = self._clock.monotonic()
        if self._homes.fresh(now):
            return
        try:
            self._homes.learn(self._control.queues(), now)
        except BrokerError:
            if not self._homes.read and not all(map(self._homes.own, queues)):
                raise

    def _check(self, name: str, part: Sequence[PreparedJob], within: object | None) -> None:
        if name == DEFAULT_BROKER:
            return
        plane = self._planes[name]
        check_part(name, plane, part, within)
        if within is not None and not isinstance(plane, BlockingPush | BlockingWithin):
            raise PushError(
                f"queue {part[0].queue!r} has the broker {name!r}, which takes within= from code "
                "with an event loop alone: use push"
            )

    def _push_to(
        self, name: str, chunks: Iterable[Sequence[PreparedJob]], within: object | None
    ) -> Mapping[UUID, UUID]:
        if name == DEFAULT_BROKER:
            if isinstance(chunks, list) and len(chunks) == 1:
                return self._control.push(chunks[0], within=within)
            return self._control.push_many(chunks, within=within)
        plane = self._planes[name]
        jobs = [job for chunk in chunks for job in chunk]
        if isinstance(plane, BlockingPush):
            return plane.push_blocking(jobs, within=within)
        if within is not None and isinstance(plane, BlockingWithin):
            return plane.push_within(jobs, within=within)

        async def push(broker: Broker, _: object) -> Mapping[UUID, UUID]:
            return await broker.push(jobs)

        return self._background.run(push)

    def queues(self) -> Sequence[Queue]:
        return self._control.queues()

    def get(self, id: UUID) -> QueuedJob | None:
        found = self._control.get(id)
        if found is not None:
            return found

        async def get(broker: Broker, _: object) -> QueuedJob | None:
            return (await broker.get([id])).get(id)

        return self._background.run(get)

    def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        async def declare(broker: Broker, _: object) -> Queue:
            return await broker.declare(queue, upsert=upsert)

        return self._background.run(declare)

    def close(self) -> None:
        for plane in self._planes.values():
            if isinstance(plane, BlockingPush):
                plane.close_blocking()
        self._control.close()
