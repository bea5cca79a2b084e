"""Adoption: moving jobs of Redis queues from Postgres to Redis, exactly once.

Such jobs were pushed by SQL, by cron, by a replay, or before the queue was moved to Redis. A job
stays pending in its table until Redis has stored it, so it is in at least one store at any time.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import Broker
from chancy.broker.optional import Adopted, Adoption, SqlClaims
from chancy.broker.values import PreparedJob
from chancy.job.unique import UniqueKey
from chancy.plugins.redis import records
from chancy.plugins.redis.relay.delivery import BATCH, REFUSED_S, Delivery
from chancy.plugins.redis.transport.chunks import take_back
from chancy.plugins.redis.transport.shard_client import ShardClient
from chancy.postgres.statements import load

#: Seconds for which jobs are leased.
LEASE_S = 10.0

#: Cancels jobs in Redis.
Cancel = Callable[[Sequence[UUID]], Awaitable[object]]


class AdoptedJob(NamedTuple):
    """A leased job of the table ``jobs``.

    :param pos: the unique number of this move.
    :param job: None if it is no longer pending.
    """

    id: UUID
    pos: int
    job: PreparedJob | None
    past: records.Past

    @property
    def mark(self) -> bytes:
        """The mark that Redis keeps until the job is deleted from Postgres."""
        return self.id.bytes + b"m" + self.pos.to_bytes(8, "big")

    def encoded(self) -> tuple[bytes, bytes]:
        """The arguments of the script ``push`` for the job. Raises `StatementFailed`."""
        assert self.job is not None
        return records.pushed(self.job, self.past)


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql``."""
    return load(resources.files("chancy.plugins.redis.relay") / "sql", f"moves_{name}", schema)


class JobAdoption:
    """Moves pending jobs of Redis queues from Postgres to Redis; see `Adoption`."""

    def __init__(self, client: ShardClient, store: SqlClaims, cancel: Cancel) -> None:
        self._client = client
        self._store = store
        self._cancel = cancel
        self._delivery = Delivery[AdoptedJob](client, self._refuse)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def __call__(self, queue: str) -> Adopted:
        """Move a batch of the pending jobs of a queue; see `Adoption`."""
        # Before the jobs are leased, so that the deadline of the script is before the lease ends.
        late_at = await self._delivery.late_at(LEASE_S)
        rows = await self._fetch("take", queue, BATCH, LEASE_S)
        taken = [_adopted_job(queue, row) for row in rows if row[0] is not None]
        done = await self._delivery.push([move for move in taken if move.job is not None], late_at)
        await self._finish(done + [move for move in taken if move.job is None])
        return Adopted(len(done), more=len(taken) == BATCH, rest=len(rows) > len(taken))

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """Claim jobs that stay in Postgres, but none that is being moved."""
        text = statement("claim", self._store.schema)
        return await self._store.claim_by(text, queue, worker_id=worker_id, limit=limit)

    async def _finish(self, moves: Sequence[AdoptedJob]) -> None:
        """Delete moved jobs from Postgres.

        Jobs that changed in Postgres during the move are removed from Redis again.
        """
        if not moves:
            return
        rows = await self._fetch("end", [move.id for move in moves])
        changed = {row[0]: bool(row[1]) for row in rows}
        if gone := [id for id, is_gone in changed.items() if is_gone]:
            await self._cancel(gone)
        if stay := [id for id, is_gone in changed.items() if not is_gone]:
            await take_back(self._client, stay)
        if changed:
            await self._fetch("forget", list(changed))
        await self._delivery.remove_marks(moves)

    async def _refuse(self, move: AdoptedJob, problem: str) -> None:
        await self._fetch("refuse", move.id, problem, REFUSED_S)


def adoption(control: Broker, client: ShardClient, cancel: Cancel) -> Adoption | None:
    """The adoption of jobs of the control broker; None if that is not on Postgres."""
    return JobAdoption(client, control, cancel) if isinstance(control, SqlClaims) else None


def _adopted_job(queue: str, row: Sequence[Any]) -> AdoptedJob:
    (
        id, pos, priority, func, arguments, run_at, most, meta, limits, key, until_claim,
        attempt, crashes, errors, pushed_at,
    ) = row  # fmt: skip
    if func is None:
        return AdoptedJob(id, pos, None, records.Past())
    due = None if run_at is None else records.datetime_of(run_at)
    unique = None
    if key is not None:
        unique = UniqueKey(bytes.fromhex(key), until_claim=bool(until_claim))
    past = records.Past(attempt, crashes, _failures(errors), pushed_at)
    # SQL can write any values into the row.
    priority, arguments = max(-100, min(priority, 100)), arguments or "null"
    job = PreparedJob(id, queue, priority, func, arguments, due, None, most, meta, limits, unique)
    return AdoptedJob(id, pos, job, past)


def _failures(text: str | None) -> list[Mapping[str, Any]]:
    found = json.loads(text) if text else []
    if not isinstance(found, list):
        return []
    return [failure for failure in found if isinstance(failure, dict)]
