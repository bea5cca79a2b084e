"""Several brokers as one: each job is pushed to the broker of its queue, and found where it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import Broker, Heartbeat
from chancy.broker.notices import Subscription, Topic
from chancy.broker.optional import SqlStore
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import Capability, PreparedJob, Promotion, WorkerRecord
from chancy.clock import Clock
from chancy.errors import BrokerError
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.lookups import JobLookups
from chancy.routing.members import BrokerSet, away
from chancy.routing.partitioning import PushPartitioning, check_part
from chancy.routing.placement import QueuePlacement, check_move

logger = logging.getLogger("chancy.routing")


class RoutedBroker(JobLookups):
    """A broker that keeps queues and workers, and others that keep the jobs of some queues.

    A call about a queue goes to the broker of that queue. A call about a job goes to the control
    broker first, and about what is unknown there to the others. What is of neither (queues,
    workers, beats, notices) is the control broker's alone.

    :param control: has the queues and workers, and the jobs of every queue that names no other.
    :param planes: the others, by name.
    :param queues: of the application.
    :param check: raises `ConfigurationError` if a broker does not offer what a queue there needs.
    """

    def __init__(
        self,
        control: Broker,
        planes: Mapping[str, Broker],
        clock: Clock,
        queues: Iterable[Queue],
        check: Callable[[Queue, Broker], None],
    ) -> None:
        super().__init__(BrokerSet(control, planes))
        self._check = check
        self.control = control
        self._clock = clock
        self._homes = QueuePlacement(queues, planes)
        self._looking: asyncio.Task[Sequence[Queue]] | None = None

    def __repr__(self) -> str:
        return f"{self.control!r} with {', '.join(sorted(self.planes.others))}"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the control broker. Each plane has its own."""
        return self.control.capabilities

    def check_queue(self, queue: Queue) -> None:
        self._homes.check(queue)
        broker = self.planes.all[queue.broker]
        broker.check_queue(queue)
        self._check(queue, broker)

    async def open(self) -> None:
        await self.planes.open()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self.planes.close()

    # Where what is

    async def find_homes(self, queues: Iterable[str]) -> None:
        """Have it known where these queues live.

        The rows are read by the first who asks, and again when somebody asks after
        `FRESH_S`, beside the call then, which goes by what is known. While they
        cannot be read, what the application says counts.
        """
        if self._homes.fresh(self._clock.monotonic()):
            return
        if self._looking is None:
            self._looking = asyncio.create_task(self.queues(), name="chancy homes")
            self._looking.add_done_callback(self._looked)
        if self._homes.read:
            return
        try:
            await asyncio.shield(self._looking)
        except BrokerError:
            if not all(map(self._homes.own, queues)):
                raise

    def _looked(self, task: asyncio.Task[Sequence[Queue]]) -> None:
        self._looking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("queue_placement_unknown error=%s", error)

    async def home(self, queue: str) -> tuple[str, Broker]:
        """The broker of a queue and its name, as far as is known."""
        await self.find_homes([queue])
        name = self._homes.of(queue)
        return name, await self.planes.ready(name)

    def by_giver(self, settlements: Sequence[Settlement]) -> Mapping[str, list[Settlement]]:
        """Settlements by the broker that gave their claims, as far as is known."""
        found: dict[str, list[Settlement]] = {}
        for one in settlements:
            found.setdefault(self.planes.giver(one.lease), []).append(one)
        return found

    # Pushing

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push`. The jobs of each broker are stored all or none."""
        await self.find_homes([job.queue for job in jobs])
        parts: dict[str, list[PreparedJob]] = {}
        for job in jobs:
            parts.setdefault(self._homes.of(job.queue), []).append(job)
        for name, part in parts.items():
            check_part(name, self.planes.all[name], part, within)
        found: dict[UUID, UUID] = {}
        for name, part in parts.items():
            self._remember(name, part)
            broker = await self.planes.ready(name)
            found.update(await broker.push(part, within=within))
        return found

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push_many`. The jobs of each broker are stored all or none.

        Those of the broker of the first job go out as they are taken; up to
        `chancy.routing.partitioning.MOST_APART` others are kept, and follow.
        """
        await self.find_homes([])

        def check(name: str, part: Sequence[PreparedJob]) -> None:
            check_part(name, self.planes.all[name], part, within)

        sorting = PushPartitioning(chunks, self._homes.of, check, self._remember)
        found: dict[UUID, UUID] = {}
        if (first := sorting.begin()) is not None:
            broker = await self.planes.ready(first)
            found.update(await broker.push_many(sorting.stream(first), within=within))
        for name, part in sorting.rest():
            broker = await self.planes.ready(name)
            found.update(await broker.push_many(part, within=within))
        return found

    def _remember(self, name: str, part: Sequence[PreparedJob]) -> None:
        if name != DEFAULT_BROKER:
            self.planes.pushed(name, [job.id for job in part])

    # Running

    async def claim(
        self, queue: str, *, worker_id: UUID, limit: int, thorough: bool = False
    ) -> Sequence[Claim]:
        name, broker = await self.home(queue)
        claims = await broker.claim(queue, worker_id=worker_id, limit=limit, thorough=thorough)
        self.planes.leased(name, {claim.lease for claim in claims})
        return claims

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        """See `Broker.settle`. What is stale with the broker that is believed to have given the
        claim is tried with the others: the lease tells whose it is."""
        stale: list[Settlement] = []
        for name, part in self.by_giver(settlements).items():
            for other in (name, *(one for one in self.planes.all if one != name)):
                if part:
                    broker = await self.planes.ready(other)
                    ids = await broker.settle(part, inside=inside)
                    part = [one for one in part if one.id in ids]
            stale += part
        return frozenset(one.id for one in stale)

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        stale = list(notes)
        for name in self.planes.all:
            if stale:
                broker = await self.planes.ready(name)
                ids = await broker.update_meta(stale)
                stale = [one for one in stale if one.id in ids]
        return frozenset(one.id for one in stale)

    async def promote(self, limit: int) -> Promotion:
        found: list[Promotion] = []
        for name, broker in await self.planes.there():
            with away(name):
                found.append(await broker.promote(limit))
        dues = [one.next_due_s for one in found if one.next_due_s is not None]
        return Promotion(sum(one.promoted for one in found), min(dues, default=None))

    async def orphans(self, *, silent_s: float, limit: int) -> Sequence[Claim]:
        """See `Broker.orphans`. Those of planes that are away are left to a later call."""
        found: list[Claim] = []
        for name, broker in await self.planes.there():
            with away(name):
                claims = await broker.orphans(silent_s=silent_s, limit=limit - len(found))
                self.planes.leased(name, {claim.lease for claim in claims})
                found += claims
            if len(found) >= limit:
                break
        return found

    async def stop_requests(self, worker_id: UUID) -> Sequence[UUID]:
        found: list[UUID] = []
        for name, broker in await self.planes.there():
            with away(name):
                found += await broker.stop_requests(worker_id)
        return found

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        found: dict[UUID, UUID] = {}
        for name, broker in await self.planes.there():
            with away(name):
                found |= await broker.running(worker_id, besides=besides)
        return found

    # Queues and workers

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """See `Broker.declare`.

        :raises ConfigurationError: its broker cannot keep such a queue, or is not supplied here,
            or another one has unfinished jobs of it that nobody would run.
        """
        self.check_queue(queue)
        if upsert:
            for standing in await self.queues():
                if standing.name == queue.name and standing.broker != queue.broker:
                    check_move([standing], queue, await self._live(standing))
        return await self.control.declare(queue, upsert=upsert)

    async def _live(self, queue: Queue) -> int | None:
        """Unfinished jobs in the broker of a queue; None if that is not supplied here."""
        if queue.broker not in self.planes.all:
            return None
        broker = await self.planes.ready(queue.broker)
        return sum((await broker.counts()).get(queue.name, ()))

    async def queues(self) -> Sequence[Queue]:
        asked = self._clock.monotonic()
        queues = await self.control.queues()
        self._homes.learn(queues, asked)
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
        self, worker_id: UUID, queues: Sequence[str], broken: Mapping[str, str]
    ) -> bool:
        return await self.control.announce(worker_id, queues, broken)

    async def unregister(self, worker_id: UUID) -> None:
        await self.control.unregister(worker_id)

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self.control.workers()

    def heartbeat(self, worker_id: UUID) -> Heartbeat:
        return self.control.heartbeat(worker_id)

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription:
        """The notices of the control broker; those of each plane are heard from it."""
        return await self.control.subscribe(topic)


class RoutedSqlBroker(RoutedBroker):
    """The same where the control broker keeps its jobs in Postgres."""

    @property
    def _store(self) -> SqlStore:
        assert isinstance(self.control, SqlStore)
        return self.control

    @property
    def schema(self) -> str:
        return self._store.schema

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(sql, *params)
