"""A broker in memory that keeps the contract of `Broker`, for tests of applications."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import Heartbeat, never
from chancy.broker.notices import Notice, NoticeKind, Subscription, Topic
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import (
    MOST_COUNTED,
    MOST_RUNNING,
    Cancellation,
    Capability,
    JobFilter,
    PreparedJob,
    Promotion,
    QueueCounts,
    QueuePosition,
    WorkerRecord,
)
from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.job.definition import HOLD, QueuedJob
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.clock import RealTime, StoreClock
from chancy.testing.store import MemoryStore, Row, admitted, check_storable, position_of

#: Notices that a subscription buffers for a slow reader; older ones are dropped.
MAX_NOTICES = 10_000


class MemoryBroker:
    """A `Broker` whose jobs live in the memory of this process.

    Call it from one event loop, except `Heartbeat.beat`.

    :param clock: the clock of the store; with a `ManualClock`, jobs become due without waiting.
    :param store: the store of another `MemoryBroker` to share its jobs, as two connections share a
        database.
    """

    def __init__(
        self, *, clock: StoreClock | None = None, store: MemoryStore | None = None
    ) -> None:
        self.store = store or MemoryStore(clock or RealTime())
        self._subscriptions: list[MemorySubscription] = []

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(
            {Capability.NOTICES, Capability.UNIQUE, Capability.EXPIRY, Capability.HOLD}
        )

    def check_queue(self, queue: Queue) -> None:
        """Accepts any queue."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        for subscription in tuple(self._subscriptions):
            await subscription.close()

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        if within is not None:
            raise TypeError(f"within={within!r}: a MemoryBroker has no transactions")
        for job in jobs:
            check_storable(job)
        rows, existing = self.store.insert_all(jobs)
        self._wake([row for row in rows if row.state is State.PENDING])
        return existing

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        return await self.push([job for chunk in chunks for job in chunk], within=within)

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        if worker_id not in self.store.workers or not self.store.claimable(queue):
            return []
        rows = [row for row in self.store.live.values() if row.pushed.queue == queue]
        known = set(filter(knows, {row.pushed.func for row in rows if row.is_set_aside}))
        lease, now = uuid.uuid4(), self.store.clock.now()
        pending = [
            row
            for row in rows
            if (row.state is State.PENDING or (row.is_set_aside and row.pushed.func in known))
            and not row.expired(now)
        ]
        pending.sort(key=lambda row: (-row.pushed.priority, row.position))
        claimed = pending[: max(0, limit)]
        for row in claimed:
            row.move(State.RUNNING)
            row.attempt += 1
            row.lease, row.worker_id, row.claimed_at = lease, worker_id, now
            if row.pushed.unique is not None and row.pushed.unique.until_claim:
                self.store.free_key(row)
        return [row.claim() for row in claimed]

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        return frozenset(
            settlement.id for settlement in settlements if not self.store.settle(settlement)
        )

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        return frozenset(note.id for note in notes if not self.store.update_meta(note))

    async def promote(self, limit: int, *, worker_id: UUID | None = None) -> Promotion:
        now = self.store.clock.now()
        waiting = [
            (row.run_at, row.pushed.id, row)
            for row in self.store.live.values()
            if row.state is State.SCHEDULED and row.run_at is not None
        ]
        waiting.sort(key=lambda entry: entry[:2])
        due = [row for run_at, _, row in waiting if run_at <= now][: max(0, limit)]
        for row in due:
            row.move(State.PENDING)
            row.position = self.store.next_position()
        self._wake(due)
        self.store.expire()
        rest = waiting[len(due) :]
        next_due_s = max(0.0, (rest[0][0] - now).total_seconds()) if rest else None
        return Promotion(promoted=len(due), next_due_s=next_due_s)

    async def cancel(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        return {job_id: self._cancel(job_id) for job_id in ids}

    def _cancel(self, job_id: UUID) -> Cancellation:
        row = self.store.live.get(job_id)
        if row is None:
            finished = job_id in self.store.finished
            return Cancellation.FINISHED if finished else Cancellation.UNKNOWN
        if row.state is not State.RUNNING:
            self.store.cancel(row)
            return Cancellation.CANCELLED
        row.stop_asked_at = row.stop_asked_at or self.store.clock.now()
        self.store.notify(NoticeKind.STOP, str(job_id))
        return Cancellation.ASKED

    async def stop_requests(self, worker_id: UUID) -> Sequence[UUID]:
        return [row.pushed.id for row in self.store.running(worker_id) if row.stop_asked_at]

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        rows = [row for row in self.store.running(worker_id) if row.pushed.id not in besides]
        return {claim.id: claim.lease for claim in (row.claim() for row in rows[:MOST_RUNNING])}

    async def get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        rows = self.store.finished | self.store.live
        return {job_id: rows[job_id].as_job() for job_id in ids if job_id in rows}

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        self.store.watched.update(ids)
        return await self.get(ids)

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        self.store.watched.difference_update(ids)

    async def position(self, id: UUID) -> QueuePosition | None:
        live = self.store.live
        return position_of(live[id], live.values(), self.store.clock.now()) if id in live else None

    async def run_now(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        live = self.store.live
        wanted = (live[id] for id in sorted(set(ids)) if id in live)
        rows = [row for row in wanted if row.state is State.SCHEDULED]
        for row in rows:
            row.move(State.PENDING)
            row.position, row.run_at = self.store.next_position(), self.store.clock.now()
        self._wake(rows)
        return frozenset(row.pushed.id for row in rows)

    async def release(
        self, ids: Sequence[UUID] | None, key: str | None, *, limit: int, within: object | None
    ) -> Sequence[UUID]:
        live = self.store.live
        found = live.values() if ids is None else [live[id] for id in ids if id in live]
        held = [row for row in found if row.state is State.HELD and HOLD in row.meta]
        if ids is None:
            held = [row for row in held if row.meta[HOLD] == key][:limit]
        for row in sorted(held, key=lambda row: row.position):
            del row.meta[HOLD]
            row.move(admitted(row.run_at, row.meta, self.store.clock.now()))
            row.position = self.store.next_position()
        self._wake([row for row in held if row.state is State.PENDING])
        return [row.pushed.id for row in held]

    async def find(self, wanted: JobFilter) -> Sequence[QueuedJob]:
        if not 1 <= wanted.limit <= 1_000:
            raise ConfigurationError(f"limit={wanted.limit} must be from 1 to 1,000 jobs")
        rows = self.store.finished | self.store.live
        newest_first = (rows[job_id] for job_id in sorted(rows, reverse=True))
        found = [row for row in newest_first if _matches(row, wanted)]
        return [row.as_job() for row in found[: wanted.limit]]

    async def counts(self) -> Mapping[str, QueueCounts]:
        by_queue: dict[str, Counter[State]] = {}
        for row in self.store.live.values():
            by_queue.setdefault(row.pushed.queue, Counter())[row.state] += 1
        return {
            queue: QueueCounts(
                pending=min(counter[State.PENDING], MOST_COUNTED),
                running=min(counter[State.RUNNING], MOST_COUNTED),
                scheduled=min(counter[State.SCHEDULED], MOST_COUNTED),
                held=min(counter[State.HELD], MOST_COUNTED),
            )
            for queue, counter in by_queue.items()
        }

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        stored = self.store.queues.get(queue.name)
        if stored is not None and not upsert:
            return self.store.effective_queue(stored)
        if stored is not None:
            queue = replace(queue, paused=stored.paused, resume_at=stored.resume_at)
        self._store_queue(queue)
        return self.store.effective_queue(queue)

    async def queues(self, name: str | None = None) -> Sequence[Queue]:
        by_name = sorted(self.store.queues.items())
        return [self.store.effective_queue(queue) for key, queue in by_name if name in (None, key)]

    async def pause(self, queue: str, *, resume_at: datetime | None = None) -> bool:
        return self._set_paused(queue, True, resume_at)

    async def resume(self, queue: str) -> bool:
        return self._set_paused(queue, False, None)

    def _set_paused(self, name: str, paused: bool, resume_at: datetime | None) -> bool:
        queue = self.store.queues.get(name)
        if queue is not None:
            self._store_queue(replace(queue, paused=paused, resume_at=resume_at))
        return queue is not None

    def _store_queue(self, queue: Queue) -> None:
        self.store.queues[queue.name] = queue
        self.store.notify(NoticeKind.QUEUES)

    async def delete_queue(self, queue: str) -> bool:
        found = self.store.queues.pop(queue, None) is not None
        if found:
            self.store.notify(NoticeKind.QUEUES)
        return found

    async def register(self, worker: WorkerRecord) -> None:
        now = self.store.clock.now()
        self.store.workers.setdefault(worker.id, replace(worker, started_at=now))
        self.store.beats[worker.id] = now

    async def announce(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        broken: Mapping[str, str],
        unknown: Sequence[str] = (),
    ) -> bool:
        worker = self.store.workers.get(worker_id)
        if worker is not None:
            self.store.workers[worker_id] = replace(
                worker, queues=tuple(queues), broken=dict(broken), unknown=tuple(unknown)
            )
        return worker is not None

    async def unregister(self, worker_id: UUID) -> None:
        self.store.workers.pop(worker_id, None)

    async def workers(self, *, heartbeat_age_s: float = 0.0) -> Sequence[WorkerRecord]:
        return [
            replace(
                worker,
                beat_at=self.store.beats[worker.id],
                heartbeat_age_s=self._silent_s(worker.id),
            )
            for worker in self.store.workers.values()
            if heartbeat_age_s == 0 or self._silent_s(worker.id) > heartbeat_age_s
        ]

    async def orphans(self, *, heartbeat_age_s: float, limit: int) -> Sequence[Claim]:
        for worker_id in tuple(self.store.workers):
            if self._silent_s(worker_id) >= heartbeat_age_s:
                del self.store.workers[worker_id]
        orphaned = [
            row
            for row in self.store.live.values()
            if row.state is State.RUNNING and row.worker_id not in self.store.workers
        ]
        return [row.claim()._replace(waited_s=None) for row in orphaned[: max(0, limit)]]

    def _silent_s(self, worker_id: UUID) -> float:
        return (self.store.clock.now() - self.store.beats[worker_id]).total_seconds()

    async def now_s(self) -> float:
        """See `chancy.broker.optional.HasClock`."""
        return self.store.clock.now().timestamp()

    async def beat(self, worker_id: UUID, blocked_s: float = 0.0) -> bool:
        return MemoryHeartbeat(self.store, worker_id).beat(blocked_s)

    def heartbeat(self, worker_id: UUID) -> Heartbeat:
        return MemoryHeartbeat(self.store, worker_id)

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription:
        subscription = MemorySubscription(self.store, topic)
        self._subscriptions.append(subscription)
        return subscription

    def _wake(self, rows: Sequence[Row]) -> None:
        for queue in dict.fromkeys(row.pushed.queue for row in rows):
            self.store.notify(NoticeKind.WAKE, queue)


def _matches(row: Row, wanted: JobFilter) -> bool:
    job = row.pushed
    return (
        (not wanted.states or row.state in wanted.states)
        and wanted.queue in (None, job.queue)
        and wanted.func in (None, job.func)
        and (wanted.before is None or job.id < wanted.before)
    )


class MemoryHeartbeat:
    """The heartbeat of one worker."""

    def __init__(self, store: MemoryStore, worker_id: UUID) -> None:
        self._store = store
        self._worker_id = worker_id

    def beat(self, blocked_s: float = 0.0) -> bool:
        worker = self._store.workers.get(self._worker_id)
        if worker is None:
            return False
        self._store.workers[self._worker_id] = replace(worker, blocked_s=blocked_s)
        self._store.beats[self._worker_id] = self._store.clock.now()
        return True

    def close(self) -> None: ...


class MemorySubscription:
    """A subscription to the notices of all brokers of a store, on one topic."""

    def __init__(self, store: MemoryStore, topic: Topic = Topic.WORK) -> None:
        self._store = store
        self._finished = topic is Topic.FINISHED
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._event = asyncio.Event()
        self._open = True
        store.listeners.append(self._on_notice)

    def _on_notice(self, notice: Notice) -> None:
        if (notice.kind is NoticeKind.FINISHED) == self._finished:
            self._notices.append(notice)
            self._event.set()

    async def receive(
        self, timeout_s: float, handle: Callable[[Notice], bool] | None = None
    ) -> list[Notice]:
        if not self._notices and self._open:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._event.wait()
            except TimeoutError:
                return []
        return await self.probe(timeout_s)

    async def probe(self, timeout_s: float) -> list[Notice]:
        if not self._open:
            raise BrokerUnavailable("the subscription is closed")
        notices = list(self._notices)
        self._notices.clear()
        self._event.clear()
        return notices

    async def close(self) -> None:
        if self._open:
            self._open = False
            self._event.set()
            self._store.listeners.remove(self._on_notice)
