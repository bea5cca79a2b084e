"""The Redis broker: operations are atomic scripts that use the clock of the server."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import Broker, Heartbeat, never
from chancy.broker.notices import Subscription, Topic
from chancy.broker.optional import Adoption, LetterSource, SqlClaims, SqlStore
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import (
    MOST_COUNTED,
    Cancellation,
    Capability,
    JobFilter,
    PreparedJob,
    Promotion,
    QueueCounts,
    QueuePosition,
    WorkerRecord,
)
from chancy.errors import ConfigurationError, InvalidArguments, StatementFailed
from chancy.job.definition import QueuedJob
from chancy.plugins.redis import records
from chancy.plugins.redis.jobs import meta as folding
from chancy.plugins.redis.jobs.claim import RedisClaims
from chancy.plugins.redis.jobs.decoding import decode_claims, decode_jobs
from chancy.plugins.redis.jobs.notifications import Notifications
from chancy.plugins.redis.jobs.push import RedisPushes
from chancy.plugins.redis.jobs.queues import (
    check_rules,
    decode_queue,
    encode_pause,
    encode_queue,
    encode_rules_for_scripts,
)
from chancy.plugins.redis.jobs.workers import (
    RedisHeartbeat,
    decode_worker,
    encode_worker,
    running_jobs,
)
from chancy.plugins.redis.relay.adoption import JobAdoption
from chancy.plugins.redis.relay.archive import Archive
from chancy.plugins.redis.settings import RedisSettings, history_of
from chancy.plugins.redis.transport.chunks import ADDED, BATCH, MOVED, fit, records_of
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.text import shown

logger = logging.getLogger("chancy.redis")

#: Seconds for which a watched job's completion is published, and the most jobs watched.
_WATCHED_S, _MOST_WATCHED = 86_400, 1_000_000
_CANCELLATIONS = {
    b"c": Cancellation.CANCELLED,
    b"a": Cancellation.ASKED,
    b"f": Cancellation.FINISHED,
    b"u": Cancellation.UNKNOWN,
}


class RedisBroker:
    """A `chancy.broker.contract.Broker` on a Redis or Valkey server, or on one slot of a cluster.

    Heartbeats use the clock of the server. They renew the leases of all jobs that a worker has
    claimed: when they stop, all of its leases expire together.

    :param redis: a client to share; by default the broker has its own.
    :param events: the dead letters of events on the server.
    """

    capabilities = frozenset({Capability.NOTICES, Capability.UNIQUE, Capability.RULES})

    def __init__(
        self,
        settings: RedisSettings,
        *,
        redis: RedisClient | None = None,
        events: LetterSource | None = None,
    ) -> None:
        self.settings = settings
        self._events = events
        self.client = ShardClient(redis or RedisClient(settings))
        self.tag = self.client.tag
        self._pushes = RedisPushes(self.client)
        self._keep = (settings.keep_finished, settings.keep_failed)
        self._ages = (settings.keep_finished_s, settings.keep_failed_s)
        address = uuid4().bytes
        self._claims = RedisClaims(self.client, self.settle, address)
        self._notifications = {topic: Notifications(self.client, topic, address) for topic in Topic}

    def __repr__(self) -> str:
        return f"RedisBroker({self.settings.shown_url})"

    async def open(self) -> None:
        await self.client.open()

    async def close(self) -> None:
        for notifications in self._notifications.values():
            await notifications.close()
        await self.client.close()

    def check_queue(self, queue: Queue) -> None:
        for name in queue.broker_options.keys() - {"history"}:
            raise ConfigurationError(
                f"queue {queue.name!r}: the redis broker has no option {shown(name)}; "
                f"its only option is 'history'"
            )
        history_of(queue, self.settings)
        check_rules(queue)

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push`. Jobs of a transaction are pushed to Postgres, and adopted."""
        if within is not None:
            raise TypeError(f"within={shown(within)}: Redis takes no part in transactions")
        return await self._pushes.push(jobs)

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push_many`. All chunks are read before the first job is stored."""
        return await self.push([job for chunk in chunks for job in chunk], within=within)

    def adoption(self, control: Broker) -> Adoption | None:
        """See `chancy.broker.optional.Adopting`."""
        if not isinstance(control, SqlClaims):
            return None
        return JobAdoption(self.client, control, self.cancel)

    async def archive(self, store: SqlStore) -> None:
        """See `chancy.broker.optional.LetterSource`."""
        archive = Archive(self.client, store)
        while await archive.turn():
            pass
        if self._events is not None:
            await self._events.archive(store)

    async def replay_letters(
        self, store: SqlStore, ids: Sequence[UUID], new_ids: Sequence[UUID], *, force: bool
    ) -> Mapping[UUID, UUID]:
        """See `chancy.broker.optional.LetterSource`."""
        if self._events is None:
            return {}
        return await self._events.replay_letters(store, ids, new_ids, force=force)

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        return await self._claims.claim(queue, worker_id=worker_id, limit=limit, knows=knows)

    async def next_s(self, queue: str) -> float | None:
        """See `chancy.broker.optional.KeepsRules`."""
        answer: bytes = await self.client.run("next_s", queue)
        return float(answer) if answer else None

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        stale: set[UUID] = set()
        texts = list(map(records.settled, settlements))
        most = MOVED if all(map(_is_plain, settlements)) else BATCH
        at = 0
        while at < len(texts):
            batch = texts[at : at + most]
            batch = batch[: fit(batch, most, ADDED)]
            processed, *places = await self.client.run("settle", *self._keep, *batch)
            stale.update(settlements[at + place].id for place in places)
            at += processed
        return frozenset(stale)

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        stale: set[UUID] = set()
        metas = list(map(_meta, notes))
        at = 0
        while at < len(notes):
            count = fit(metas[at : at + BATCH], BATCH, ADDED)
            parts: list[bytes] = []
            for note, meta in zip(notes[at : at + count], metas[at : at + count], strict=True):
                parts += [note.id.bytes + note.lease.bytes, meta]
            lines = await self.client.run("update_meta", *parts)
            for note, meta, objects in zip(notes[at:], metas[at:], lines, strict=False):
                # Usually an upper bound: checkpoints grow.
                if folding.is_due(objects, (objects - 1) * len(meta)):
                    await self._fold(note)
                if objects == 0:
                    stale.add(note.id)
            at += len(lines)
        return frozenset(stale)

    async def _fold(self, note: Note) -> None:
        [record] = await self.client.run("fetch", *self._ages, note.id.bytes)
        if record:
            await folding.fold(self.client, note.id, note.lease, record)

    async def promote(self, limit: int, *, worker_id: UUID | None = None) -> Promotion:
        promoted, worker = 0, b"" if worker_id is None else worker_id.bytes
        while True:
            most = max(0, min(MOVED, limit - promoted))
            done, due, ahead = await self.client.run("promote", most, worker)
            promoted += done
            next_due_s = float(due) if due else None
            # Fewer than the limit: either no more jobs are due, or their records are large.
            exhausted = done < most and (not done or next_due_s != 0.0)
            if exhausted or promoted >= limit:
                return Promotion(promoted, next_due_s, ahead)

    async def cancel(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        found: dict[UUID, Cancellation] = {}
        left, at = list(dict.fromkeys(ids)), 0
        while at < len(left):
            batch = left[at : at + BATCH]
            answer = await self.client.run("cancel", *self._keep, *(id.bytes for id in batch))
            found |= zip(batch, map(_CANCELLATIONS.__getitem__, answer), strict=False)
            at += len(answer)
        return found

    async def run_now(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        moved: set[UUID] = set()
        left = sorted(set(ids))
        while left:
            processed, *found = await self.client.run("run_now", *(id.bytes for id in left[:BATCH]))
            moved.update(UUID(bytes=id) for id in found)
            left = left[processed:]
        return frozenset(moved)

    async def stop_requests(self, worker_id: UUID) -> Sequence[UUID]:
        answer = await self.client.run("stop_requests", worker_id.bytes)
        return [UUID(bytes=id) for id in answer]

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        unsure = self._claims.unsure(worker_id)
        found = await running_jobs(self.client, worker_id, besides)
        return {id: lease for id, lease in found.items() if lease not in unsure}

    async def get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        return await self._read(ids, "fetch", *self._ages)

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        return await self._read(ids, "watch", _WATCHED_S, _MOST_WATCHED, *self._ages)

    async def _read(
        self, ids: Sequence[UUID], script: str, *args: float
    ) -> Mapping[UUID, QueuedJob]:
        texts = await records_of(self.client.run, ids, script, *args)
        pairs = [
            part for id, text in zip(ids, texts, strict=True) if text for part in (id.bytes, text)
        ]
        return {job.id: job for job in decode_jobs(pairs)}

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        for at in range(0, len(ids), MOVED):
            await self.client.run("unwatch", *(id.bytes for id in ids[at : at + MOVED]))

    async def position(self, id: UUID) -> QueuePosition | None:
        answer = await self.client.run("position", id.bytes)
        if not answer:
            return None
        record, now, ahead, running = answer
        return records.position(record, float(now), ahead, running)

    async def find(self, wanted: JobFilter) -> Sequence[QueuedJob]:
        if not 1 <= wanted.limit <= 1_000:
            raise ConfigurationError(f"limit={wanted.limit} must be from 1 to 1,000")
        states = "".join(str(int(state)) for state in wanted.states)
        before = b"" if wanted.before is None else wanted.before.bytes
        found: list[QueuedJob] = []
        while True:
            left = wanted.limit - len(found)
            before, *rows = await self.client.run(
                "find", before, left, states, wanted.queue or "", wanted.func or "", *self._ages
            )
            found += decode_jobs(rows)
            if not before or len(found) >= wanted.limit:
                return found

    async def counts(self) -> Mapping[str, QueueCounts]:
        answer: list[bytes] = await self.client.run("counts")
        found: dict[str, dict[str, int]] = {}
        for field, number in zip(answer[::2], answer[1::2], strict=True):
            letter, _, queue = records.text_of(field).partition(":")
            state = {"p": "pending", "r": "running", "s": "scheduled", "h": "held"}[letter]
            # Negative after counters were deleted by hand, until the upkeep recounts them.
            found.setdefault(queue, {})[state] = max(0, min(int(number), MOST_COUNTED))
        return {queue: QueueCounts(**by_state) for queue, by_state in found.items()}

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        settings, paused = await self.client.run(
            "declare",
            queue.name,
            encode_queue(queue),
            0 if queue.keep_finished else 1,
            encode_pause(queue.resume_at) if queue.paused else "",
            int(upsert),
            history_of(queue, self.settings)[0],
            encode_rules_for_scripts(queue.rules),
        )
        return decode_queue(queue.name, settings, paused, datetime.now(UTC))

    async def queues(self, name: str | None = None) -> Sequence[Queue]:
        clock, *rows = await self.client.run("queues")
        now = records.datetime_of(float(clock))
        found = [
            decode_queue(rows[at].decode(), rows[at + 1], rows[at + 2], now)
            for at in range(0, len(rows), 3)
        ]
        wanted = (queue for queue in found if name in (None, queue.name))
        return sorted(wanted, key=lambda queue: queue.name)

    async def pause(self, queue: str, *, resume_at: datetime | None = None) -> bool:
        return bool(await self.client.run("pause", queue, encode_pause(resume_at)))

    async def resume(self, queue: str) -> bool:
        return bool(await self.client.run("pause", queue, ""))

    async def delete_queue(self, queue: str) -> bool:
        return bool(await self.client.run("delete_queue", queue))

    async def register(self, worker: WorkerRecord) -> None:
        await self.client.run("register", worker.id.bytes, encode_worker(worker))

    async def announce(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        broken: Mapping[str, str],
        unknown: Sequence[str] = (),
    ) -> bool:
        serves = json.dumps(
            {"queues": list(queues), "broken": dict(broken), "unknown": list(unknown)}
        )
        return bool(await self.client.run("announce", worker_id.bytes, serves))

    async def unregister(self, worker_id: UUID) -> None:
        self._claims.leave(worker_id)
        await self.client.run("unregister", worker_id.bytes)

    async def workers(self, *, heartbeat_age_s: float = 0.0) -> Sequence[WorkerRecord]:
        clock, *rows = await self.client.run("workers")
        now = float(clock)
        found = [decode_worker(now, *rows[at : at + 4]) for at in range(0, len(rows), 4)]
        return [
            worker
            for worker in found
            if heartbeat_age_s == 0 or worker.heartbeat_age_s > heartbeat_age_s
        ]

    async def orphans(self, *, heartbeat_age_s: float, limit: int) -> Sequence[Claim]:
        answer = await self.client.run("orphans", heartbeat_age_s, max(0, min(limit, MOVED)))
        return await decode_claims(answer, self.settle)

    async def now_s(self) -> float:
        """See `chancy.broker.optional.HasClock`."""
        seconds, micros = await self.client.command("TIME")
        return int(seconds) + int(micros) / 1_000_000

    async def beat(self, worker_id: UUID, blocked_s: float = 0.0) -> bool:
        return bool(await self.client.run("beat", worker_id.bytes))

    def heartbeat(self, worker_id: UUID) -> Heartbeat:
        return RedisHeartbeat(self.client.redis, self.tag, worker_id)

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription:
        return await self._notifications[topic].subscribe()


def _meta(note: Note) -> bytes:
    try:
        return records.check_object(note.meta, "meta").encode()
    except (InvalidArguments, ValueError) as error:
        logger.error("meta_update_refused job=%s error=%s", note.id, error)
        note.on_refused(StatementFailed(str(error)))
        return b"{}"


def _is_plain(settlement: Settlement) -> bool:
    return settlement.state is State.SUCCEEDED and settlement.meta is None
