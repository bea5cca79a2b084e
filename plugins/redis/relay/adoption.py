"""The moves: jobs that are in Postgres although their queue is in Redis are taken there.

They were pushed by SQL, by cron, by a replay, or before the queue was moved. A job stays in its
table, pending as it was, until Redis has it: so it is in one of the two at every moment.
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

#: Seconds for which jobs are taken.
LEASE_S = 10.0

#: Cancels jobs in Redis.
Cancel = Callable[[Sequence[UUID]], Awaitable[object]]


class AdoptedJob(NamedTuple):
    """A job of the table ``jobs`` that was taken.

    :param pos: of this move, and of no other.
    :param job: None: it is pending no more.
    """

    id: UUID
    pos: int
    job: PreparedJob | None
    past: records.Past

    @property
    def mark(self) -> bytes:
        """What Redis remembers of it until it is deleted."""
        return self.id.bytes + b"m" + self.pos.to_bytes(8, "big")

    def encoded(self) -> tuple[bytes, bytes]:
        """What the script ``push`` takes of it. Raises `StatementFailed`."""
        assert self.job is not None
        return records.pushed(self.job, self.past)


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql``."""
    return load(resources.files("chancy.plugins.redis.relay") / "sql", f"moves_{name}", schema)


class JobAdoption:
    """Takes them over."""

    def __init__(self, link: ShardClient, store: SqlClaims, cancel: Cancel) -> None:
        self._link = link
        self._store = store
        self._cancel = cancel
        self._delivery = Delivery[AdoptedJob](link, self._refuse)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def __call__(self, queue: str) -> Adopted:
        """Take over a batch of the pending jobs of a queue; see `Adoption`."""
        # Asked before they are taken: so the time of the script is over before theirs.
        late_at = await self._delivery.late_at(LEASE_S)
        rows = await self._fetch("take", queue, BATCH, LEASE_S)
        taken = [_move(queue, row) for row in rows if row[0] is not None]
        done = await self._delivery.push([one for one in taken if one.job is not None], late_at)
        await self._end(done + [one for one in taken if one.job is None])
        return Adopted(len(done), more=len(taken) == BATCH, rest=len(rows) > len(taken))

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """Claim what stays in Postgres, and nothing that is on its way."""
        text = statement("claim", self._store.schema)
        return await self._store.claim_by(text, queue, worker_id=worker_id, limit=limit)

    async def _end(self, moves: Sequence[AdoptedJob]) -> None:
        """Delete those that Redis has. What became another meanwhile is taken back from there."""
        if not moves:
            return
        rows = await self._fetch("end", [one.id for one in moves])
        changed = {row[0]: bool(row[1]) for row in rows}
        if gone := [id for id, is_gone in changed.items() if is_gone]:
            await self._cancel(gone)
        if stay := [id for id, is_gone in changed.items() if not is_gone]:
            await take_back(self._link, stay)
        if changed:
            await self._fetch("forget", list(changed))
        await self._delivery.forget(moves)

    async def _refuse(self, one: AdoptedJob, problem: str) -> None:
        await self._fetch("refuse", one.id, problem, REFUSED_S)


def adoption(control: Broker, link: ShardClient, cancel: Cancel) -> Adoption | None:
    """What takes over jobs that the control broker has; None: it is not on Postgres."""
    return JobAdoption(link, control, cancel) if isinstance(control, SqlClaims) else None


def _move(queue: str, row: Sequence[Any]) -> AdoptedJob:
    (
        id, pos, priority, func, arguments, run_at, most, meta, limits, key, until_claim,
        attempt, crashes, errors, pushed_at,
    ) = row  # fmt: skip
    if func is None:
        return AdoptedJob(id, pos, None, records.Past())
    due = None if run_at is None else records.moment(run_at)
    unique = None
    if key is not None:
        unique = UniqueKey(bytes.fromhex(key), until_claim=bool(until_claim))
    past = records.Past(attempt, crashes, _failures(errors), pushed_at)
    # Whatever somebody wrote into the row.
    priority, arguments = max(-100, min(priority, 100)), arguments or "null"
    job = PreparedJob(id, queue, priority, func, arguments, due, None, most, meta, limits, unique)
    return AdoptedJob(id, pos, job, past)


def _failures(text: str | None) -> list[Mapping[str, Any]]:
    found = json.loads(text) if text else []
    if not isinstance(found, list):
        return []
    return [one for one in found if isinstance(one, dict)]
