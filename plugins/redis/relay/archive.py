"""The archive: the leader writes finished jobs from Redis to the history in Postgres.

Dashboards, the pruner and dead letters read the jobs there. Redis lists a job until it is written,
so the next leader continues where a dead one stopped; writing a job twice has no effect.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Sequence
from importlib import resources
from typing import NamedTuple
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable, InvalidArguments, StatementFailed
from chancy.plugin.leader import elected
from chancy.plugin.runtime import Runtime
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.postgres.statements import load
from chancy.states import State

logger = logging.getLogger("chancy.redis")

#: Jobs written by one statement.
BATCH = 250
#: Seconds between two polls of the leader, and of the other workers.
_EVERY_S, _RARELY_S = 1.0, 30.0


class EndedJob(NamedTuple):
    """A finished job to write: its id, the time at which it ended in Redis's format, its record."""

    id: bytes
    at: bytes
    record: bytes


class Archive:
    """The loop that archives jobs; it runs in each worker.

    The leader polls often, the others rarely, so that jobs are archived without a leader, too.
    """

    def __init__(self, client: ShardClient, store: SqlStore) -> None:
        self._client = client
        self._store = store
        self._sql = load(
            resources.files("chancy.plugins.redis.relay") / "sql", "archive", store.schema
        )

    async def serve(self, runtime: Runtime) -> None:
        """Run until cancelled."""
        backoff = Backoff(base_s=0.5, cap_s=10.0)
        clock, leader = runtime.clock, runtime.leader
        while True:
            await elected(leader, clock, _RARELY_S * random.uniform(0.8, 1.2))
            try:
                await self._client.open()
                while await self.turn():
                    backoff.reset()
            except BrokerError as error:
                pause_s = backoff.next_s()
                logger.warning("redis_archive_postponed next_try_s=%.1f error=%s", pause_s, error)
            else:
                backoff.reset()
                pause_s = _EVERY_S * random.uniform(0.8, 1.2)
            await clock.sleep(pause_s)

    async def turn(self) -> int:
        """Write a batch; returns its size.

        :raises BrokerError: Postgres or Redis is unavailable; the jobs stay listed.
        """
        over, *parts = await self._client.run("unarchived", BATCH)
        found = [EndedJob(*parts[at : at + 3]) for at in range(0, len(parts), 3)]
        lost = int(over) + sum(1 for job in found if not job.record)
        if lost:
            logger.warning("redis_archive_dropped jobs=%d", lost)
        await self._write([job for job in found if job.record])
        if found:
            await self._client.run("archived", *(part for job in found for part in job[:2]))
        return len(found)

    async def _write(self, ended: Sequence[EndedJob], *, checked: bool = False) -> None:
        """Write jobs; halve the batch when it is refused, to isolate invalid jobs.

        :param checked: whether to leave out JSON that Postgres cannot store. A job that was refused
            is written again like this.
        """
        try:
            rows = [_history_row(job.id, job.record, checked) for job in ended]
            text = f"[{','.join(row for row in rows if row)}]"
            if len(text) > 2:
                await self._store.fetch(self._sql, text)
        except BrokerUnavailable:
            raise
        except Exception as error:
            if isinstance(error, StatementFailed) and not _is_of_data(error):
                raise
            if len(ended) > 1:
                middle = len(ended) // 2
                await self._write(ended[:middle])
                await self._write(ended[middle:])
            elif not checked:
                await self._write(ended, checked=True)
            else:
                logger.error(
                    "redis_archive_refused job=%s error=%s", UUID(bytes=ended[0].id), error
                )


def _history_row(id: bytes, record: bytes, checked: bool) -> str | None:
    """The row of the history for a record, as a JSON object.

    None if the job was pushed again and is not finished. JSON of the record is copied verbatim.

    :param checked: see `Archive._write`.
    """
    numbers, texts = records.parts(record)
    (
        state, _, attempt, crashes, claimed, stop, worker, lease, priority, most, position, due,
        since, finished,
    ) = numbers  # fmt: skip
    if not State(state).final:
        return None
    queue, func, arguments, limits, key, meta, errors, result = texts
    plain = {
        "id": str(UUID(bytes=id)),
        "pos": int(position),
        "state": state,
        "queue": records.text_of(queue),
        "priority": priority,
        "func": records.text_of(func),
        "run_at": None if due != due else _time(due),
        "attempt": attempt,
        "max_attempts": most,
        "crashes": crashes,
        "lease": _id(lease),
        "worker_id": _id(worker),
        "claimed_at": _time(claimed),
        "stop_asked_at": _time(stop),
        "unique_key": f"\\x{key.hex()}" if key else None,
        "pushed_at": _time(since),
        "finished_at": _time(finished),
        "errors": list(records.failures(records.text_of(errors))) or None,
    }
    read = _checked if checked else bytes.decode
    exact = {
        "arguments": read(arguments),
        "limits": read(limits),
        "meta": _checked(meta, records.merged) if checked else records.merged(meta.decode()),
        "result": read(result),
    }
    written = (f'"{name}":{text}' for name, text in exact.items() if text)
    return f"{{{','.join((json.dumps(plain)[1:-1], *written))}}}"


def _is_of_data(error: StatementFailed) -> bool:
    """Whether a job may be the cause, and not the tables or the role: classes of invalid data,
    constraints and limits, and errors of triggers."""
    return not error.retryable and error.sqlstate[:2] in ("22", "23", "54", "P0")


def _checked(raw: bytes, of: Callable[[str], str] = str) -> str:
    """JSON as a string; '' if Postgres could not store it."""
    try:
        text = of(raw.decode())
        if text:
            records.check_json(text, "a value")
    except (ValueError, InvalidArguments):
        return ""
    return text


def _time(seconds: float) -> str | None:
    return records.datetime_of(seconds).isoformat() if seconds else None


def _id(raw: bytes) -> str | None:
    return str(UUID(bytes=raw)) if any(raw) else None
