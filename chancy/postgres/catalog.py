"""Statements about queues, workers and stored jobs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from chancy.broker.values import JobFilter, QueueCounts, WorkerRecord
from chancy.checks import check_queue_name
from chancy.errors import LOCK_NOT_AVAILABLE, ConfigurationError, StatementFailed
from chancy.job.definition import QueuedJob
from chancy.job.limits import encode_limits
from chancy.postgres import rows
from chancy.postgres.connections.lane import Fetch
from chancy.postgres.statements import Statements
from chancy.queue.executor_options import encode_options
from chancy.queue.queue import Queue, check_resume_at
from chancy.queue.rules import encode_rules

logger = logging.getLogger("chancy.postgres")

#: Seconds after which a statement of a search is aborted.
FIND_DEADLINE_S = 10.0
#: Jobs that one statement returns: each may have megabytes of arguments, meta and results.
_PAGE = 100


class Catalog:
    """The calls of a broker that read jobs and counts, and read and change queues and workers. Not
    on the hot path.

    :param fetch: runs their statements.
    """

    def __init__(self, fetch: Fetch, statements: Statements) -> None:
        self._fetch = fetch
        self.sql = statements
        # The problems last logged for each queue, so that each is logged once.
        self._logged: dict[str, list[str]] = {}

    async def get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        found: dict[UUID, QueuedJob] = {}
        for at in range(0, len(ids), _PAGE):
            page = await self._fetch(self.sql.get, list(ids[at : at + _PAGE]))
            found.update((job.id, job) for job in map(rows.queued_job, page))
        return found

    async def find(self, wanted: JobFilter) -> Sequence[QueuedJob]:
        if not 1 <= wanted.limit <= 1_000:
            raise ConfigurationError(f"limit={wanted.limit} must be from 1 to 1,000 jobs")
        states = sorted(int(state) for state in wanted.states) or None
        found: list[QueuedJob] = []
        before, left = wanted.before, wanted.limit
        while left > 0:
            most = min(left, _PAGE)
            page = await self._fetch(
                self.sql.find,
                states,
                wanted.queue,
                wanted.func,
                before,
                most,
                deadline_s=FIND_DEADLINE_S,
            )
            found += map(rows.queued_job, page)
            before, left = found[-1].id if page else None, left - most if len(page) == most else 0
        return found

    async def counts(self) -> Mapping[str, QueueCounts]:
        return rows.counts(await self._fetch(self.sql.counts))

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        await self._fetch(self.sql.declare, *declaration(queue), upsert)
        (row,) = await self._fetch(self.sql.queues, queue.name)
        return rows.queue(row)[0]

    async def queues(self, name: str | None = None) -> Sequence[Queue]:
        found = []
        for row in await self._fetch(self.sql.queues, name):
            queue, problems = rows.queue(row)
            if self._logged.get(queue.name, []) != problems:
                self._logged[queue.name] = problems
                for problem in problems:
                    logger.error("queue_row_invalid %s", problem)
            found.append(queue)
        return found

    async def pause(self, queue: str, *, resume_at: datetime | None = None) -> bool:
        check_resume_at(resume_at, check_queue_name(queue))
        return bool(await self._fetch(self.sql.pause, queue, resume_at))

    async def resume(self, queue: str) -> bool:
        return bool(await self._fetch(self.sql.resume, check_queue_name(queue)))

    async def delete_queue(self, queue: str) -> bool:
        return bool(await self._fetch(self.sql.delete_queue, check_queue_name(queue)))

    async def register(self, worker: WorkerRecord) -> None:
        await self._fetch(
            self.sql.register,
            worker.id,
            worker.host,
            worker.pid,
            sorted(worker.tags),
            list(worker.queues),
            worker.version,
            worker.heartbeat_timeout_s,
        )

    async def announce(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        broken: Mapping[str, str],
        unknown: Sequence[str] = (),
    ) -> bool:
        found = await self._fetch(
            self.sql.announce, worker_id, list(queues), json.dumps(dict(broken)), list(unknown)
        )
        return bool(found)

    async def stop_worker(self, worker_id: UUID) -> bool:
        try:
            return bool(await self._fetch(self.sql.stop_worker, worker_id))
        except StatementFailed as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            why = f"another transaction has locked the row of the worker {worker_id}"
            raise StatementFailed(
                f"{why}: end it, or try again", sqlstate=LOCK_NOT_AVAILABLE
            ) from error

    async def workers(self, *, heartbeat_age_s: float = 0.0) -> Sequence[WorkerRecord]:
        return [rows.worker(row) for row in await self._fetch(self.sql.workers, heartbeat_age_s)]


def declaration(queue: Queue) -> list[object]:
    """The parameters of the declare statement, without the last one (upsert)."""
    return [
        queue.name,
        queue.executor,
        queue.concurrency,
        sorted(queue.tags),
        queue.poll_interval_s,
        queue.keep_finished,
        queue.paused,
        queue.resume_at,
        encode_limits(queue.limits),
        encode_options(queue.options),
        queue.broker,
        json.dumps(queue.broker_options) if queue.broker_options else None,
        encode_rules(queue.rules),
    ]
