"""Queues and workers, where Redis keeps them itself."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from redis.exceptions import MovedError

from chancy.broker.values import MOST_RUNNING, WorkerRecord
from chancy.errors import BrokerUnavailable
from chancy.job.limits import encode_limits, limits_from
from chancy.plugins.redis import records
from chancy.plugins.redis.settings import RedisSettings, history_of
from chancy.plugins.redis.transport.chunks import records_of
from chancy.plugins.redis.transport.clients import Client, connect_sync, translated
from chancy.plugins.redis.transport.cluster import MOST_MOVES, ClusterMap
from chancy.plugins.redis.transport.shard_client import SCRIPTS, ShardClient
from chancy.queue.executor_options import decode_options, encode_options
from chancy.queue.queue import Queue
from chancy.states import State

_RUNNING = bytes([State.RUNNING])


class Queues:
    """The queues of a shard."""

    def __init__(self, link: ShardClient) -> None:
        self._link = link

    async def declare(self, queue: Queue, *, upsert: bool) -> Queue:
        settings, paused = await self._link.run(
            "declare",
            queue.name,
            encode_queue(queue),
            0 if queue.keep_finished else 1,
            _pausing(queue.resume_at) if queue.paused else "",
            int(upsert),
            history_of(queue, self._link.settings)[0],
        )
        return decode_queue(queue.name, settings, paused, datetime.now(UTC))

    async def all(self) -> Sequence[Queue]:
        clock, *rows = await self._link.run("queues")
        now = records.moment(float(clock))
        found = [
            decode_queue(rows[at].decode(), rows[at + 1], rows[at + 2], now)
            for at in range(0, len(rows), 3)
        ]
        return sorted(found, key=lambda queue: queue.name)

    async def pause(self, queue: str, resume_at: datetime | None) -> bool:
        return bool(await self._link.run("pause", queue, _pausing(resume_at)))

    async def resume(self, queue: str) -> bool:
        return bool(await self._link.run("pause", queue, ""))

    async def delete(self, queue: str) -> bool:
        return bool(await self._link.run("delete_queue", queue))


class Workers:
    """The workers of a shard."""

    def __init__(self, link: ShardClient) -> None:
        self._link = link

    async def register(self, worker: WorkerRecord) -> None:
        told = {
            "host": worker.host,
            "pid": worker.pid,
            "tags": sorted(worker.tags),
            "queues": list(worker.queues),
            "version": worker.version,
        }
        await self._link.run("register", worker.id.bytes, json.dumps(told))

    async def announce(
        self, worker_id: UUID, queues: Sequence[str], broken: Mapping[str, str]
    ) -> bool:
        serves = json.dumps({"queues": list(queues), "broken": dict(broken)})
        return bool(await self._link.run("announce", worker_id.bytes, serves))

    async def unregister(self, worker_id: UUID) -> None:
        await self._link.run("unregister", worker_id.bytes)

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        """See `chancy.broker.contract.Broker.running`."""
        key = f"{self._link.tag}:w:".encode() + worker_id.bytes
        members: set[bytes] = set()
        cursor: bytes | str = "0"
        while True:
            cursor, some = await self._link.command("SSCAN", key, cursor, "COUNT", 1_000)
            members.update(some)
            if cursor == b"0":
                break
        ids = sorted({UUID(bytes=id) for id in members}.difference(besides))[:MOST_RUNNING]
        texts = await records_of(self._link.run, ids, "fetch", 0, 0)
        claims = [
            records.claim(id.bytes, text)
            for id, text in zip(ids, texts, strict=True)
            if text[:1] == _RUNNING
        ]
        return {claim.id: claim.lease for claim in claims if claim.worker_id == worker_id}

    async def all(self) -> Sequence[WorkerRecord]:
        clock, *rows = await self._link.run("workers")
        now = float(clock)
        return [_worker(now, *rows[at : at + 4]) for at in range(0, len(rows), 4)]


class RedisHeartbeat:
    """The heartbeat of one worker: a connection of its own, for a thread."""

    def __init__(self, settings: RedisSettings, tag: str, worker_id: UUID) -> None:
        self._home = ClusterMap(settings)
        self._tag = tag
        self._worker_id = worker_id
        self._client: Client | None = None

    def beat(self) -> bool:
        for _ in range(MOST_MOVES):
            if self._client is None:
                self._client = connect_sync(self._home.settings)
            try:
                with translated():
                    args = (self._worker_id.bytes,)
                    return bool(SCRIPTS["beat"].run_sync(self._client, [self._tag], args))
            except BrokerUnavailable as error:
                self.close()
                if not isinstance(error.__cause__, MovedError):
                    self._home.lost()
                    raise
                self._home.moved(error.__cause__)
        raise BrokerUnavailable(f"the cluster redirected us {MOST_MOVES} times: it is moving")

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def encode_queue(queue: Queue) -> str:
    return json.dumps(
        {
            "executor": queue.executor,
            "concurrency": queue.concurrency,
            "tags": sorted(queue.tags),
            "poll_interval_s": queue.poll_interval_s,
            "keep_finished": queue.keep_finished,
            "limits": encode_limits(queue.limits),
            "options": encode_options(queue.options),
            "broker": queue.broker,
            "broker_options": dict(queue.broker_options),
        },
        sort_keys=True,
    )


def decode_queue(name: str, settings: bytes, paused: bytes, now: datetime) -> Queue:
    """A queue as it stands at a time; one that was paused goes on when its time has come."""
    found: dict[str, Any] = json.loads(settings)
    limits, options = found.pop("limits"), found.pop("options")
    resume_at = None if paused in (b"", b"inf") else records.moment(float(paused))
    queue = Queue(
        name=name,
        tags=frozenset(found.pop("tags")),
        limits=limits_from(json.loads(limits) if limits else {}),
        options=decode_options(options, found["executor"]),
        paused=paused != b"",
        resume_at=resume_at,
        **found,
    )
    over = resume_at is not None and resume_at <= now
    return replace(queue, paused=queue.paused and not over)


def _pausing(resume_at: datetime | None) -> str:
    return "inf" if resume_at is None else repr(records.seconds_of(resume_at))


def _worker(now: float, id: bytes, beat: bytes, told: bytes, serves: bytes) -> WorkerRecord:
    started, _, text = told.decode().partition(" ")
    about: dict[str, Any] = json.loads(text) | (json.loads(serves) if serves else {})
    return WorkerRecord(
        id=UUID(bytes=id),
        host=about["host"],
        pid=about["pid"],
        tags=frozenset(about["tags"]),
        queues=tuple(about["queues"]),
        version=about["version"],
        started_at=records.moment(float(started)),
        beat_at=records.moment(float(beat)),
        silent_s=max(0.0, now - float(beat)),
        broken=about.get("broken", {}),
    )
