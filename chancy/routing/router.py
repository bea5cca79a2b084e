"""`RoutedBroker`: several brokers as one, each call routed by queue, job or lease."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self, TypeVar
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import Broker, Heartbeat, never
from chancy.broker.notices import Subscription, Topic
from chancy.broker.optional import KeepsRules, LetterSource, SqlStore, for_upkeep
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import (
    MOST_COUNTED,
    Capability,
    JobFilter,
    PreparedJob,
    Promotion,
    QueueCounts,
    WorkerRecord,
)
from chancy.clock import Clock
from chancy.errors import BrokerError, BrokerUnavailable, RowsLocked
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.clock_steps import ClockSteps
from chancy.routing.lookups import JobLookups
from chancy.routing.members import BrokerSet, check_part
from chancy.routing.partitioning import PushPartitioning
from chancy.routing.placement import QueuePlacement, check_move
from chancy.states import UNFINISHED

W = TypeVar("W", Settlement, Note)

logger = logging.getLogger("chancy.routing")

#: Seconds until the rows of queues are read again, after that has failed.
_UNREAD_S = 1.0
#: Seconds without a heartbeat that no worker reaches.
_NEVER_S = 1e9


class RoutedBroker(JobLookups):
    """Routes calls to the control broker and to the brokers that store the jobs of some queues.

    A call for the jobs of a queue goes to the broker of the queue. A call about a job goes to the
    control broker first, and to the others if the job is unknown there. Queues, workers,
    heartbeats and notifications belong to the control broker alone.

    :param control: stores queues and workers, and the jobs of queues without another broker.
    :param others: the other brokers, by name.
    :param queues: the queues of the application.
    :param check: raises `ConfigurationError` if a broker does not support a queue.
    """

    def __init__(
        self,
        control: Broker,
        others: Mapping[str, Broker],
        clock: Clock,
        queues: Iterable[Queue],
        check: Callable[[Queue, Broker], None],
    ) -> None:
        super().__init__(BrokerSet(control, others, clock))
        self._check = check
        self.control = control
        self._clock = clock
        self._placement = QueuePlacement(queues, others)
        self._steps = ClockSteps(clock)
        self._reading: asyncio.Task[Sequence[Queue]] | None = None
        self._read_again_at = 0.0
        #: Returns the seconds for which the heartbeats of the worker that uses this object have
        #: reached a broker without a gap. None: no worker uses it.
        self.contact_s: Callable[[str], float] | None = None

    def __repr__(self) -> str:
        return f"{self.control!r} with {', '.join(sorted(self.brokers.others))}"

    def for_upkeep(self) -> Self:
        """See `chancy.broker.optional.Upkeeping`."""
        other = copy.copy(self)
        other.control = for_upkeep(self.control)
        other.brokers = self.brokers.with_control(other.control)
        return other

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the control broker. The others have their own."""
        return self.control.capabilities

    def check_queue(self, queue: Queue) -> None:
        self._placement.check(queue)
        broker = self.brokers.all[queue.broker]
        broker.check_queue(queue)
        self._check(queue, broker)

    async def open(self) -> None:
        await self.brokers.open()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self.brokers.close()

    # Routing

    async def refresh_placement(self, queues: Iterable[str]) -> None:
        """Read the brokers of queues, unless they are cached.

        The first call reads the rows. A call after `FRESH_S` reads them again in the background
        and uses the cached rows. While the rows cannot be read, the queues of the application are
        used.

        :param queues: the queues that the caller needs.
        """
        now = self._clock.monotonic()
        if self._placement.fresh(now) or (self._placement.read and now < self._read_again_at):
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self.queues(), name="chancy queue placement")
            self._reading.add_done_callback(self._on_read)
        if self._placement.read:
            return
        try:
            await asyncio.shield(self._reading)
        except BrokerError:
            if not all(map(self._placement.own, queues)):
                raise

    def _on_read(self, task: asyncio.Task[Sequence[Queue]]) -> None:
        self._reading = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._read_again_at = self._clock.monotonic() + _UNREAD_S
            logger.warning("queue_placement_unknown error=%s", error)

    async def broker_of(self, queue: str) -> tuple[str, Broker]:
        """The name of the broker of a queue, and the broker, as far as known."""
        await self.refresh_placement([queue])
        name = self._placement.of(queue)
        return name, await self.brokers.ready(name)

    async def next_s(self, queue: str) -> float | None:
        """See `chancy.broker.optional.KeepsRules`; None, too, if its broker keeps no rules."""
        _, broker = await self.broker_of(queue)
        return await broker.next_s(queue) if isinstance(broker, KeepsRules) else None

    def by_broker(self, settlements: Sequence[Settlement]) -> Mapping[str, list[Settlement]]:
        """Settlements by the broker of their leases, as far as known."""
        found: dict[str, list[Settlement]] = {}
        for settlement in settlements:
            name = self.brokers.broker_of_lease(settlement.lease)
            found.setdefault(name, []).append(settlement)
        return found

    # Pushing

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push`. Each broker stores all or none of its jobs.

        Within a transaction the control broker stores all jobs: a transaction is one of its own.
        The workers of a queue take its jobs from there.
        """
        if within is not None:
            [jobs] = await self.checked_within([jobs], within)
            return await self.control.push(jobs, within=within)
        await self.refresh_placement([job.queue for job in jobs])
        parts: dict[str, list[PreparedJob]] = {}
        for job in jobs:
            parts.setdefault(self._placement.of(job.queue), []).append(job)
        for name, part in parts.items():
            check_part(name, self.brokers.all[name], part, None)
        found: dict[UUID, UUID] = {}
        for name, part in parts.items():
            self._remember(name, part)
            broker = await self.brokers.ready(name)
            found.update(await broker.push(part))
        return found

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push_many`. Each broker stores all or none of its jobs; see `push`.

        Jobs of the first job's broker are stored as they are consumed. Up to
        `chancy.routing.partitioning.MAX_DEFERRED` jobs of other brokers are deferred until then.
        """
        if within is not None:
            chunks = await self.checked_within(chunks, within)
            return await self.control.push_many(chunks, within=within)
        partitions = await self.partition(chunks)
        found: dict[UUID, UUID] = {}
        if (first := partitions.start()) is not None:
            broker = await self.brokers.ready(first)
            found.update(await broker.push_many(partitions.stream(first)))
        for name, part in partitions.rest():
            broker = await self.brokers.ready(name)
            found.update(await broker.push_many(part))
        return found

    async def checked_within(
        self, chunks: Iterable[Sequence[PreparedJob]], within: object
    ) -> Iterator[Sequence[PreparedJob]]:
        """Jobs to push within a transaction; raises from the iterator as `check_part` does."""
        await self.refresh_placement([])

        def check(chunk: Sequence[PreparedJob]) -> Sequence[PreparedJob]:
            names = {queue: self._placement.of(queue) for queue in {job.queue for job in chunk}}
            for name in set(names.values()) - {DEFAULT_BROKER}:
                part = [job for job in chunk if names[job.queue] == name]
                check_part(name, self.brokers.all[name], part, within)
            return chunk

        return map(check, chunks)

    async def partition(
        self,
        chunks: Iterable[Sequence[PreparedJob]],
        *,
        blocking: bool = False,
    ) -> PushPartitioning:
        """Partition a bulk push by the brokers of the queues.

        :param blocking: for a thread without an event loop, which consumes the partitions.
        """
        await self.refresh_placement([])

        def check(name: str, part: Sequence[PreparedJob]) -> None:
            check_part(name, self.brokers.all[name], part, None)

        # What the loop remembers must not be changed by another thread.
        stored = (lambda *_: None) if blocking else self._remember
        return PushPartitioning(chunks, self._placement.of, check, stored)

    def _remember(self, name: str, part: Sequence[PreparedJob]) -> None:
        if name != DEFAULT_BROKER:
            self.brokers.pushed(name, [job.id for job in part])

    # Running

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        name, broker = await self.broker_of(queue)
        claims = await broker.claim(
            queue, worker_id=worker_id, limit=limit, thorough=thorough, knows=knows
        )
        self.brokers.leased(name, {claim.lease for claim in claims})
        return claims

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        """See `Broker.settle`.

        Settlements that are stale at the presumed broker of their lease are tried at the others,
        of which only the broker of the lease accepts them.

        :raises Exception: the error of a broker that failed, after the others have settled.
        """
        stale: set[UUID] = set()
        blocked: set[UUID] = set()
        failure: Exception | None = None
        for presumed, part in self.by_broker(settlements).items():
            try:
                names = (presumed, *(name for name in self.brokers.all if name != presumed))
                stale |= await self._offer(
                    names, part, lambda broker, left: broker.settle(left, inside=inside)
                )
            except RowsLocked as error:
                stale |= error.stale
                blocked |= error.ids
            except Exception as error:
                self.brokers.outages.failed(presumed, error)
                failure = failure or error
        if failure is not None:
            raise failure
        if blocked:
            raise RowsLocked(frozenset(blocked), frozenset(stale))
        return frozenset(stale)

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        return await self._offer(
            self.brokers.all, notes, lambda broker, stale: broker.update_meta(stale)
        )

    async def _offer(
        self,
        names: Iterable[str],
        writes: Sequence[W],
        store: Callable[[Broker, Sequence[W]], Awaitable[frozenset[UUID]]],
    ) -> frozenset[UUID]:
        """Offer writes to brokers one by one, each those that were stale at the brokers before.
        Returns the jobs whose writes are stale at all of them."""
        locked: set[UUID] = set()
        for name in names:
            if writes:
                broker = await self.brokers.ready(name)
                try:
                    ids = await store(broker, writes)
                except RowsLocked as error:
                    ids = error.stale
                    locked |= error.ids
                writes = [write for write in writes if write.id in ids]
        stale = frozenset(write.id for write in writes)
        if locked:
            raise RowsLocked(frozenset(locked), stale)
        return stale

    async def promote(self, limit: int, *, worker_id: UUID | None = None) -> Promotion:
        found = await self.brokers.sweep(
            lambda _, broker: broker.promote(limit, worker_id=worker_id)
        )
        dues = [promotion.next_due_s for promotion in found if promotion.next_due_s is not None]
        return Promotion(
            sum(promotion.promoted for promotion in found),
            min(dues, default=None),
            min((promotion.ahead for promotion in found), default=0),
        )

    async def orphans(self, *, heartbeat_age_s: float, limit: int) -> Sequence[Claim]:
        """See `Broker.orphans`. Orphans of failing brokers are left to a later call.

        The caller has observed the heartbeats at the control broker. Workers of another broker are
        presumed dead only if that one has been there long enough for their heartbeats, and its
        clock was not set meanwhile.
        """
        found: list[Claim] = []

        async def ask(name: str, broker: Broker) -> bool:
            if len(found) < limit:
                silent_s = heartbeat_age_s
                if name != DEFAULT_BROKER and self.contact_s is not None:
                    settled = await self._steps.settled(name, broker, silent_s)
                    heard = self.contact_s(name) > silent_s
                    silent_s = silent_s if settled and heard else _NEVER_S
                claims = await broker.orphans(heartbeat_age_s=silent_s, limit=limit - len(found))
                self.brokers.leased(name, {claim.lease for claim in claims})
                found.extend(claims)
            return bool(found)

        await self.brokers.sweep(ask)
        return found

    async def stop_requests(self, worker_id: UUID) -> Sequence[UUID]:
        found = await self.brokers.sweep(lambda _, broker: broker.stop_requests(worker_id))
        return [id for ids in found for id in ids]

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        found = await self.brokers.sweep(
            lambda _, broker: broker.running(worker_id, besides=besides)
        )
        return {id: lease for leases in found for id, lease in leases.items()}

    # Queues and workers

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """See `Broker.declare`.

        :raises ConfigurationError: its broker does not support such a queue, or the application
            does not supply that broker, or the queue has unfinished jobs in another broker, which
            no worker would run.
        """
        self.check_queue(queue)
        # Each process declares all queues of its application: reading all rows is quadratic.
        current = await self.queues(queue.name)
        if not current:
            await self._check_left(queue)
        elif upsert and current[0].broker != queue.broker:
            check_move(current, queue, await self._live(current[0]))
        stored = await self.control.declare(queue, upsert=upsert)
        self._placement.place(stored)
        return stored

    async def _check_left(self, queue: Queue) -> None:
        """Refuse a queue that was deleted while it had jobs in another broker."""
        for name in self.brokers.others:
            left = Queue(name=queue.name, broker=name)
            if name != queue.broker:
                # Unavailable, it must not prevent the start of a worker.
                with suppress(BrokerUnavailable):
                    check_move([left], queue, await self._live(left))

    async def _live(self, queue: Queue) -> int | None:
        """Unfinished jobs of a queue in its broker; None if the broker is not supplied here."""
        if queue.broker not in self.brokers.all:
            return None
        broker = await self.brokers.ready(queue.broker)
        counts = await broker.counts()
        live = sum(counts.get(queue.name, ()))
        by_state = zip(*counts.values(), strict=True)
        if not live and any(sum(found) >= MOST_COUNTED for found in by_state):
            # So many jobs of other queues that those of this one may not have been counted.
            wanted = JobFilter(states=UNFINISHED, queue=queue.name, limit=1)
            live = len(await broker.find(wanted))
        return live

    async def queues(self, name: str | None = None) -> Sequence[Queue]:
        if name is not None:
            return await self.control.queues(name)
        started = self._clock.monotonic()
        queues = await self.control.queues()
        self._placement.update(queues, started)
        return queues

    async def pause(self, queue: str, *, resume_at: datetime | None = None) -> bool:
        return await self.control.pause(queue, resume_at=resume_at)

    async def resume(self, queue: str) -> bool:
        return await self.control.resume(queue)

    async def delete_queue(self, queue: str) -> bool:
        return await self.control.delete_queue(queue)

    async def register(self, worker: WorkerRecord) -> None:
        await self.control.register(worker)

    async def announce(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        broken: Mapping[str, str],
        unknown: Sequence[str] = (),
    ) -> bool:
        return await self.control.announce(worker_id, queues, broken, unknown)

    async def unregister(self, worker_id: UUID) -> None:
        await self.control.unregister(worker_id)

    async def workers(self, *, heartbeat_age_s: float = 0.0) -> Sequence[WorkerRecord]:
        return await self.control.workers(heartbeat_age_s=heartbeat_age_s)

    async def beat(self, worker_id: UUID, blocked_s: float = 0.0) -> bool:
        return await self.control.beat(worker_id, blocked_s)

    def heartbeat(self, worker_id: UUID) -> Heartbeat:
        return self.control.heartbeat(worker_id)

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription:
        """Subscribe to the control broker. Other brokers have their own subscriptions."""
        return await self.control.subscribe(topic)


class RoutedSqlBroker(RoutedBroker):
    """A `RoutedBroker` whose control broker stores its jobs in Postgres."""

    @property
    def _store(self) -> SqlStore:
        assert isinstance(self.control, SqlStore)
        return self.control

    @property
    def schema(self) -> str:
        return self._store.schema

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(sql, *params)

    def sql_stores(self) -> Mapping[str, SqlStore]:
        """See `chancy.broker.optional.SqlStores`."""
        brokers = {name: for_upkeep(broker) for name, broker in self.brokers.all.items()}
        return {name: store for name, store in brokers.items() if isinstance(store, SqlStore)}

    async def counts_elsewhere(
        self,
    ) -> tuple[Mapping[str, Mapping[str, QueueCounts]], Mapping[str, str]]:
        """See `chancy.broker.optional.CountsElsewhere`."""
        found: dict[str, Mapping[str, QueueCounts]] = {}
        errors: dict[str, str] = {}
        for name in self.brokers.others:
            try:
                found[name] = await (await self.brokers.ready(name)).counts()
            except BrokerError as error:
                errors[name] = str(error)
        return found, errors

    async def archive(self, store: SqlStore) -> None:
        """See `chancy.broker.optional.LetterSource`. The outage of a broker is logged."""
        for name, broker in self.brokers.others.items():
            if isinstance(broker, LetterSource):
                with self.brokers.outages.tolerated(name):
                    await self.brokers.ready(name)
                    await broker.archive(store)

    async def replay_letters(
        self, store: SqlStore, ids: Sequence[UUID], new_ids: Sequence[UUID], *, force: bool
    ) -> Mapping[UUID, UUID]:
        """See `chancy.broker.optional.LetterSource`."""
        found: dict[UUID, UUID] = {}
        for broker in self.brokers.others.values():
            if isinstance(broker, LetterSource):
                found.update(await broker.replay_letters(store, ids, new_ids, force=force))
        return found
