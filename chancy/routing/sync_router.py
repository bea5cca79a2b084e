"""`RoutedStore`: the ``sync_…`` calls of an application with several brokers."""

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
from chancy.routing.members import check_part
from chancy.routing.partitioning import PushPartitioning
from chancy.routing.placement import QueuePlacement

if TYPE_CHECKING:
    from chancy.postgres.sync import SyncPostgresBroker


class RoutedStore:
    """Routes the calls of threads without an event loop to the brokers of the queues.

    :param others: brokers of this object alone; only a `BlockingPush` or a `BlockingWithin` is
        called directly. Pushes to other brokers run in the loop of ``background``.
    """

    def __init__(
        self,
        control: SyncPostgresBroker,
        others: Mapping[str, Broker],
        background: Background[Broker],
        placement: QueuePlacement,
        clock: Clock,
    ) -> None:
        self._control = control
        self._others = others
        self._background = background
        self._placement = placement
        self._clock = clock

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `chancy.routing.router.RoutedBroker.push`."""
        self._refresh_placement([job.queue for job in jobs])
        parts: dict[str, list[PreparedJob]] = {}
        for job in jobs:
            parts.setdefault(self._placement.of(job.queue), []).append(job)
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
        self._refresh_placement([])

        def check(name: str, part: Sequence[PreparedJob]) -> None:
            self._check(name, part, within)

        partitions = PushPartitioning(chunks, self._placement.of, check, lambda name, part: None)
        found: dict[UUID, UUID] = {}
        if (first := partitions.start()) is not None:
            found.update(self._push_to(first, partitions.stream(first), within))
        for name, part in partitions.rest():
            found.update(self._push_to(name, part, within))
        return found

    def _refresh_placement(self, queues: Iterable[str]) -> None:
        now = self._clock.monotonic()
        if self._placement.fresh(now):
            return
        try:
            self._placement.update(self._control.queues(), now)
        except BrokerError:
            if not self._placement.read and not all(map(self._placement.own, queues)):
                raise

    def _check(self, name: str, part: Sequence[PreparedJob], within: object | None) -> None:
        if name == DEFAULT_BROKER:
            return
        broker = self._others[name]
        check_part(name, broker, part, within)
        if within is not None and not isinstance(broker, BlockingPush | BlockingWithin):
            raise PushError(
                f"queue {part[0].queue!r} has the broker {name!r}, which supports within= only "
                "with an event loop: use push"
            )

    def _push_to(
        self, name: str, chunks: Iterable[Sequence[PreparedJob]], within: object | None
    ) -> Mapping[UUID, UUID]:
        if name == DEFAULT_BROKER:
            if isinstance(chunks, list) and len(chunks) == 1:
                return self._control.push(chunks[0], within=within)
            return self._control.push_many(chunks, within=within)
        broker = self._others[name]
        jobs = [job for chunk in chunks for job in chunk]
        if isinstance(broker, BlockingPush):
            return broker.push_blocking(jobs, within=within)
        if within is not None and isinstance(broker, BlockingWithin):
            return broker.push_within(jobs, within=within)

        async def push(routed: Broker, _: object) -> Mapping[UUID, UUID]:
            return await routed.push(jobs)

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
        for broker in self._others.values():
            if isinstance(broker, BlockingPush):
                broker.close_blocking()
        self._control.close()
