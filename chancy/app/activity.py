"""The current activity of queues, workers and functions, for ``chancy top``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from chancy.app.backlog import SQL, Backlog, backlogs, counted_elsewhere
from chancy.broker.values import QueueCounts, WorkerRecord
from chancy.errors import ConfigurationError
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers.base import Connection, Row
from chancy.queue.queue import DEFAULT_BROKER, Queue

if TYPE_CHECKING:
    from chancy.app.app import Chancy

#: The limit of the counts of a look.
CAP = 10_000
#: Seconds for which the first look counts finished jobs; later ones count since the previous look.
_FIRST_S = 10.0
#: The maximum seconds of one statement of a look.
_STATEMENT_S = 4.0
#: The maximum number of failures of a look.
_MOST_FAILURES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueActivity:
    """One queue. Counts stop at `CAP`, and those of its backlog at `Backlog.cap`.

    :param queue: None if it is not declared.
    :param backlog: None if no job is due.
    :param per_s: jobs that finished per second since the last look; None if they are not counted.
    :param workers: the number of live workers that serve it.
    """

    name: str
    queue: Queue | None
    backlog: Backlog | None
    running: int
    scheduled: int
    per_s: float | None
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningWork:
    """The jobs of one function and queue that one worker runs.

    :param longest_s: seconds since the first of them was claimed.
    """

    worker_id: UUID | None
    queue: str
    func: str
    jobs: int
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFailure:
    """A failure of a job.

    :param retried: whether the job will run again.
    """

    func: str
    queue: str
    ago_s: float
    error: str
    message: str
    retried: bool


@dataclass(frozen=True, slots=True)
class FunctionActivity:
    """The jobs of one function among those that finished last."""

    func: str
    jobs: int
    failed: int
    mean_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The result of one look.

    :param at: seconds since 1970, by the clock of the server.
    :param since_s: the seconds for which finished jobs were counted.
    :param capped: the states with more than `CAP` jobs, whose counts by queue are lower bounds.
    :param away: the errors of brokers that are unavailable, by name.
    """

    at: float
    since_s: float
    queues: Sequence[QueueActivity]
    workers: Sequence[WorkerRecord]
    running: Sequence[RunningWork]
    failures: Sequence[RecentFailure]
    functions: Sequence[FunctionActivity]
    capped: frozenset[str] = frozenset()
    away: Mapping[str, str] = field(default_factory=dict[str, str])


class Lookout:
    """Reads the activity of an open application repeatedly.

    A look reads only the ends of indexes, so it costs the same with ten million jobs.

    :raises ConfigurationError: the application does not store its jobs in Postgres.
    """

    def __init__(self, chancy: Chancy) -> None:
        if not isinstance(chancy.control, PostgresBroker):
            raise ConfigurationError(f"looks need the Postgres broker, not {chancy.control!r}")
        self._chancy = chancy
        self._store = chancy.control
        self._last: float | None = None

    async def look(self) -> Activity:
        """Look once.

        :raises BrokerError: the server is unavailable, or takes too long.
        """
        chancy = self._chancy
        elsewhere, away = await counted_elsewhere(chancy.broker)
        declared = {queue.name: queue for queue in await chancy.get_queues()}
        workers = await chancy.get_workers()
        async with self._store.transaction() as session:
            limit = f"{_STATEMENT_S * 1000:.0f}"
            await session.fetch("select set_config('statement_timeout', $1, true)", limit)
            waiting = await backlogs(session, self._store.schema)
            first, *others = await self._rows(session, "unfinished")
            running = [_work(row) for row in await self._rows(session, "running")]
            at = float(first[1])
            since = self._last or at - _FIRST_S
            finished = {row[0]: int(row[1]) for row in await self._rows(session, "rates", since)}
            ((functions, failures),) = await self._rows(session, "recent")
            retrying = await self._rows(session, "retrying")
        self._last = at
        counts = _counts(waiting, running, others)
        return Activity(
            at=at,
            since_s=at - since,
            queues=[
                _queue(
                    name,
                    declared.get(name),
                    waiting.get(name),
                    elsewhere.get(name, counts.get(name, QueueCounts())),
                    finished.get(name, 0) / max(at - since, 0.001),
                    workers,
                )
                for name in sorted({*declared, *counts, *elsewhere})
            ],
            workers=workers,
            running=running,
            failures=_failures(json.loads(failures or "[]"), retrying),
            functions=[FunctionActivity(*row) for row in json.loads(functions or "[]")],
            capped=_capped(running, others),
            away=away,
        )

    async def _rows(self, session: Connection, name: str, *params: object) -> Sequence[Row]:
        return await session.fetch(SQL.statement(name, self._store.schema), *params)


def _counts(
    waiting: Mapping[str, Backlog], running: Sequence[RunningWork], others: Sequence[Row]
) -> Mapping[str, QueueCounts]:
    """The counts of the queues in Postgres that have unfinished jobs."""
    found = {name: QueueCounts(pending=one.pending, held=one.held) for name, one in waiting.items()}
    for work in running:
        before = found.get(work.queue, QueueCounts())
        found[work.queue] = before._replace(running=before.running + work.jobs)
    for name, scheduled in others:
        found[name] = found.get(name, QueueCounts())._replace(scheduled=int(scheduled))
    return found


def _capped(running: Sequence[RunningWork], others: Sequence[Row]) -> frozenset[str]:
    totals = {
        "running": sum(work.jobs for work in running),
        "scheduled": sum(int(scheduled) for _, scheduled in others),
    }
    return frozenset(name for name, total in totals.items() if total > CAP)


def _queue(
    name: str,
    queue: Queue | None,
    backlog: Backlog | None,
    counts: QueueCounts,
    per_s: float,
    workers: Sequence[WorkerRecord],
) -> QueueActivity:
    far = queue is not None and queue.broker != DEFAULT_BROKER
    if backlog is None and counts.pending + counts.held:
        backlog = Backlog(pending=counts.pending, held=counts.held, cap=CAP, oldest_s=None)
    return QueueActivity(
        name=name,
        queue=queue,
        backlog=backlog,
        running=counts.running,
        scheduled=counts.scheduled,
        # Jobs of other brokers reach the history later, and some queues keep none.
        per_s=None if queue is None or far or not queue.keep_finished else per_s,
        workers=sum(name in worker.queues and not worker.dead for worker in workers),
    )


def _work(row: Row) -> RunningWork:
    worker_id, queue, func, jobs, longest_s = row
    return RunningWork(
        worker_id=worker_id, queue=queue, func=func, jobs=jobs, longest_s=longest_s or 0.0
    )


def _failures(ended: Sequence[Row], retrying: Sequence[Row]) -> Sequence[RecentFailure]:
    found = [
        RecentFailure(
            func=func,
            queue=queue,
            ago_s=max(0.0, float(ago_s)),
            error=error or "",
            message=message or "",
            retried=retried,
        )
        for rows, retried in ((ended, False), (retrying, True))
        for func, queue, ago_s, error, message in rows
    ]
    return sorted(found, key=lambda one: one.ago_s)[:_MOST_FAILURES]
