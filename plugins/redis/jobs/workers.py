"""Workers in Redis: their records, heartbeats and running jobs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from chancy.broker.values import MOST_RUNNING, WorkerRecord
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.chunks import records_of
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.shard import ShardClient


async def running_jobs(
    client: ShardClient, worker_id: UUID, besides: Collection[UUID]
) -> Mapping[UUID, UUID]:
    """See `chancy.broker.contract.Broker.running`."""
    key = f"{client.tag}:w:".encode() + worker_id.bytes
    members: set[bytes] = set()
    cursor: bytes | str = "0"
    while True:
        cursor, page = await client.command("SSCAN", key, cursor, "COUNT", 1_000)
        members.update(page)
        if cursor == b"0":
            break
    ids = sorted({UUID(bytes=id) for id in members}.difference(besides))[:MOST_RUNNING]
    texts = await records_of(client.run, ids, "fetch", 0, 0)
    return {
        id: records.lease_of(text)
        for id, text in zip(ids, texts, strict=True)
        if records.is_running(text, worker_id)
    }


class RedisHeartbeat:
    """The heartbeat of one worker, for use in a thread."""

    def __init__(self, redis: RedisClient, tag: str, worker_id: UUID) -> None:
        self._redis = redis
        self._tag = tag
        self._worker_id = worker_id

    def beat(self, blocked_s: float = 0.0) -> bool:
        call = self._redis.run("jobs.beat", (self._tag,), (self._worker_id.bytes,))
        try:
            return bool(self._redis.background.run(call))
        except StatementFailed as error:
            if not error.retryable:
                raise
            # Without replicas, or with a full disk, it refuses all writes: no worker can declare
            # this one dead.
            raise BrokerUnavailable(str(error)) from error

    def close(self) -> None:
        self._redis.background.close()


def encode_worker(worker: WorkerRecord) -> str:
    return json.dumps(
        {
            "host": worker.host,
            "pid": worker.pid,
            "tags": sorted(worker.tags),
            "queues": list(worker.queues),
            "version": worker.version,
        }
    )


def decode_worker(now: float, id: bytes, beat: bytes, record: bytes, serves: bytes) -> WorkerRecord:
    started, _, text = record.decode().partition(" ")
    about: dict[str, Any] = json.loads(text) | (json.loads(serves) if serves else {})
    return WorkerRecord(
        id=UUID(bytes=id),
        host=about["host"],
        pid=about["pid"],
        tags=frozenset(about["tags"]),
        queues=tuple(about["queues"]),
        version=about["version"],
        started_at=records.datetime_of(float(started)),
        beat_at=records.datetime_of(float(beat)),
        heartbeat_age_s=max(0.0, now - float(beat)),
        broken=about.get("broken", {}),
        unknown=tuple(about.get("unknown", ())),
    )
