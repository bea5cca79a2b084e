"""Adoption: moving jobs of Redis queues from Postgres to Redis, exactly once.

Such jobs were pushed inside a transaction, by SQL, by cron, by a replay, or before the queue was
moved to Redis. A job stays pending in its table until Redis has stored it, so it is in at least one
store at any time.

A job is leased, pushed, and deleted from Postgres; then it becomes pending in Redis. Until then a
worker that has not read the queue's new broker may claim it in Postgres: it is not deleted, and is
taken back from Redis. If the process dies in between, another one pushes it again: Redis keeps a
mark of the job until it is deleted from Postgres. If the process is frozen in between, Redis
refuses its push after the end of the lease, and Postgres its deletion once another process has
taken the move over.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.optional import Adopted, SqlClaims, SqlStore
from chancy.broker.values import PreparedJob
from chancy.errors import StatementFailed
from chancy.job.unique import OnConflict, UniqueKey
from chancy.plugin.finding import Finding
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.chunks import BATCH as PIECE
from chancy.plugins.redis.transport.chunks import fit, take_back
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.plugins.redis.transport.translation import access_refused
from chancy.postgres.claim.claims import MOST_BYTES, STORED_PER_JSON
from chancy.postgres.statements import load
from chancy.text import written

logger = logging.getLogger("chancy.redis")

#: Jobs leased at a time; several scripts store them.
BATCH = 250
#: Seconds for which jobs are leased.
LEASE_S = 10.0
#: The fraction of the lease after which Redis refuses the jobs: the clock rates of the two servers
#: may differ by a tenth.
_TRUSTED = 0.9
#: The first and the longest pause, in seconds, before a job that Redis has refused is tried again.
#: It doubles with each refusal.
_FIRST_S, _LONGEST_S = 10.0, 3_600.0
#: Most marks that Redis keeps, the newest ones, 25 bytes each: a process that dies before it
#: removes its marks leaves them behind.
_MOST_MARKS = 100_000
#: Refused jobs that are counted.
_MOST_COUNTED = 1_000
#: The places of some columns in the rows of the function ``redis_move``.
_ARGUMENTS, _META, _LEASE = 4, 7, 17

#: Cancels jobs in Redis.
Cancel = Callable[[Sequence[UUID]], Awaitable[object]]


class AdoptedJob(NamedTuple):
    """A leased job of the table ``jobs``.

    :param pos: the unique number of this move.
    :param lease: the lease of this worker; another one that takes the move over has its own.
    :param parts: the arguments of the script ``relay`` for it; None if it is no longer pending.
    """

    id: UUID
    pos: int
    lease: UUID
    parts: tuple[bytes, bytes] | None

    @property
    def mark(self) -> bytes:
        """The mark that Redis keeps until the job is deleted from Postgres."""
        return self.id.bytes + b"m" + self.pos.to_bytes(8, "big")


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
        # Moves of locked rows, each with the time from which another worker may take it over.
        self._locked: list[tuple[float, AdoptedJob]] = []

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def __call__(self, queue: str) -> Adopted:
        """Move a batch of the pending jobs of a queue; see `Adoption`."""
        until = time.monotonic() + LEASE_S * _TRUSTED
        # Before the jobs are leased, so that the deadline of the script is before the lease ends.
        seconds, micros = await self._client.command("TIME")
        late_at = int(seconds) + int(micros) / 1e6 + LEASE_S * _TRUSTED
        rows = await self._fetch("take", queue, BATCH, MOST_BYTES, LEASE_S)
        found, taken = [row for row in rows if row[0] is not None], list[AdoptedJob]()
        for row in found:
            try:
                taken.append(_adopted_job(queue, row))
            except Exception as error:
                # SQL can write any values into the row.
                await self._refuse(row[0], row[_LEASE], error)
        done = await self._push([move for move in taken if move.parts is not None], late_at)
        gone = [move for move in taken if move.parts is None]
        ours = [one for one in self._locked if time.monotonic() < one[0]]
        ours += [(until, move) for move in done + gone]
        locked = await self._finish([move for _, move in ours])
        self._locked = [one for one in ours if one[1].id in locked]
        size = sum(len(row[_ARGUMENTS] or "") + len(row[_META] or "") for row in found)
        more = len(found) >= BATCH or size * STORED_PER_JSON >= MOST_BYTES
        return Adopted(len(done), more=more, rest=len(rows) > len(found))

    async def claim(
        self, queue: str, *, worker_id: UUID, limit: int, knows: Callable[[str], bool]
    ) -> Sequence[Claim]:
        """Claim jobs that stay in Postgres, but none that is being moved."""
        text = statement("claim", self._store.schema)
        return await self._store.claim_by(
            text, queue, worker_id=worker_id, limit=limit, knows=knows
        )

    async def _push(self, taken: Sequence[AdoptedJob], late_at: float) -> list[AdoptedJob]:
        """Push jobs; halve the batch when Redis refuses it, to isolate invalid jobs.

        :param late_at: the server time after which Redis refuses them.
        :returns: the jobs that are in Redis now, or whose unique key another job holds there.
        """
        if not taken:
            return []
        parts = [part for move in taken for part in (move.mark, *(move.parts or ()))]
        if fit(parts[2::3], PIECE) < len(taken):
            return await self._push_halves(taken, late_at)
        try:
            answer = await self._client.run_lasting("relay", late_at, _MOST_MARKS, LEASE_S, *parts)
        except StatementFailed as error:
            if error.retryable or access_refused(error):
                raise
            if len(taken) == 1:
                await self._refuse(taken[0].id, taken[0].lease, error)
                return []
            return await self._push_halves(taken, late_at)
        if answer == b"large":
            return await self._push_halves(taken, late_at)
        if answer == b"late":
            logger.warning("redis_relay_late jobs=%d", len(taken))
            return []
        for id, holder in zip(answer[::2], answer[1::2], strict=True):
            logger.info("redis_relay_skipped job=%s holder=%s", UUID(bytes=id), UUID(bytes=holder))
        return list(taken)

    async def _refuse(self, id: UUID, lease: UUID, error: Exception) -> None:
        """Leave a job in Postgres, with the reason, until the next attempt."""
        logger.error("redis_relay_refused job=%s error=%s", id, error)
        await self._fetch("refuse", id, lease, str(error), _FIRST_S, _LONGEST_S)

    async def _push_halves(self, taken: Sequence[AdoptedJob], late_at: float) -> list[AdoptedJob]:
        middle = len(taken) // 2
        first = await self._push(taken[:middle], late_at)
        return first + await self._push(taken[middle:], late_at)

    async def _finish(self, moves: Sequence[AdoptedJob]) -> Collection[UUID]:
        """Delete moved jobs from Postgres.

        Jobs that changed in Postgres during the move are removed from Redis again. One that runs
        there is left for a later attempt. So are locked rows, as their transaction may have changed
        them, and moves that another worker has taken over.

        :returns: the jobs of locked rows and of such moves.
        """
        if not moves:
            return ()
        leases = list({move.lease for move in moves})
        rows = await self._fetch("end", [move.id for move in moves], leases)
        locked = {row[0] for row in rows if row[1] is None}
        changed = {row[0]: bool(row[1]) for row in rows if row[1] is not None}
        # By their marks, which are gone once another worker has ended the move.
        returned = [move.mark for move in moves if move.id in changed]
        running = await take_back(self._client, returned)
        # What remains was claimed in Redis, after a worker had died during the move.
        if gone := [id for id, is_gone in changed.items() if is_gone]:
            await self._cancel(gone)
        # Redis cannot store the later version of a job while it runs an earlier one. The mark and
        # the move stay, so that it is tried again after the lease.
        stay = locked | (running - set(gone))
        marks = [move.mark for move in moves if move.id not in stay]
        while marks:
            handled: int = await self._client.run("relayed", *marks[:PIECE])
            marks = marks[handled:]
        # Last: after it, another worker may move these jobs again.
        if over := [id for id in changed if id not in stay]:
            await self._fetch("forget", over, leases)
        return locked


async def refusal(store: SqlStore, id: UUID) -> str | None:
    """A sentence on why a job has not been moved; None if Redis has not refused it."""
    rows = await store.fetch(statement("refusal", store.schema), id)
    if not rows:
        return None
    ((count, again_at, problem),) = rows
    often = "once" if count == 1 else f"{count:,} times"
    again = f"it is tried again at {written(again_at)}"
    return f"Redis has refused the job {often}, and {again}: {problem}"


async def refused_jobs(store: SqlStore) -> Finding:
    """How many jobs Redis refuses, and the reason of the first one."""
    rows = await store.fetch(statement("refused", store.schema), _MOST_COUNTED)
    if not rows:
        return Finding("refused jobs", "none waits in Postgres")
    ((count, id, problem),) = rows
    more = f"{_MOST_COUNTED:,} or more" if count >= _MOST_COUNTED else f"{count:,}"
    return Finding(
        "refused jobs",
        f"{more} in Postgres, first {id}: {problem}",
        "correct the cause, or cancel them; to try them all at once, set taken_until = now() in "
        f"{store.schema}.redis_moves",
    )


def _adopted_job(queue: str, row: Sequence[Any]) -> AdoptedJob:
    """The job of a row. Raises any error for values that no job has."""
    (
        id, pos, priority, func, arguments, run_at, most, meta, limits, key, until_claim, replaces,
        period_s, attempt, crashes, errors, pushed_at, lease,
    ) = row  # fmt: skip
    if func is None:
        return AdoptedJob(id, pos, lease, None)
    due = None if run_at is None else records.datetime_of(run_at)
    unique = None
    if key is not None:
        on_conflict: OnConflict = "replace" if replaces else "skip"
        unique = UniqueKey(bytes.fromhex(key), on_conflict, bool(until_claim), period_s)
    past = records.Past(attempt, crashes, _failures(errors), pushed_at)
    priority, arguments = max(-100, min(priority, 100)), arguments or "null"
    job = PreparedJob(id, queue, priority, func, arguments, due, None, most, meta, limits, unique)
    return AdoptedJob(id, pos, lease, records.pushed(job, past))


def _failures(text: str | None) -> list[Mapping[str, Any]]:
    found = json.loads(text) if text else []
    if not isinstance(found, list):
        return []
    return [failure for failure in found if isinstance(failure, dict)]
