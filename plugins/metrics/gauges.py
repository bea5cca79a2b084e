"""Gauges of the queues and of the database, read at a cost that does not grow with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chancy.broker.contract import Broker
from chancy.broker.optional import CountsElsewhere
from chancy.broker.values import QueueCounts
from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.plugins.metrics.series import SQL
from chancy.queue.queue import DEFAULT_BROKER

#: The counts by queue and state, as `sql/queues.sql` names them.
COUNTED = ("pending", "held", "running", "scheduled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state of the queues and of the database.

    :param jobs: unfinished jobs by state, one of `COUNTED`, and queue, as far as they were counted;
        0 for declared queues without any.
    :param capped: the states and queues that may have more jobs than were counted.
    :param oldest_s: seconds for which the oldest due job of a queue in Postgres has waited.
    :param dead_rows: of the table of unfinished jobs, by the statistics of the server.
    :param horizon_transactions: transactions since the oldest snapshot was taken, of a replication
        slot or a replica too.
    :param horizon_s: seconds since the oldest snapshot was taken; rows that were deleted after it
        still take up space.
    """

    jobs: Mapping[str, Mapping[str, float]]
    capped: frozenset[tuple[str, str]]
    oldest_s: Mapping[str, float]
    workers: int
    dead_rows: int
    jobs_bytes: int
    history_bytes: int
    horizon_s: float
    horizon_transactions: int


async def look(broker: Broker) -> Gauges:
    """Read the gauges, without the queues of other brokers that are unavailable.

    :raises ConfigurationError: the broker does not offer SQL.
    :raises BrokerError: the database is unavailable.
    """
    tables = SQL.on(broker)
    jobs: dict[str, dict[str, float]] = {name: {} for name in (*COUNTED, "oldest")}
    capped: set[tuple[str, str]] = set()
    for name, queue, value, more in await tables.fetch("queues"):
        jobs[name][queue] = value
        if more:
            capped.add((name, queue))
    found, _ = await _elsewhere(broker)
    # An alert on a queue that is empty needs a sample; one whose broker is unavailable has none.
    for queue, name in await tables.fetch("declared"):
        if name == DEFAULT_BROKER or name in found:
            for counted in COUNTED:
                jobs[counted].setdefault(queue, 0)
    for queue, counts in (pair for there in found.values() for pair in there.items()):
        for name in COUNTED:
            if number := getattr(counts, name):
                jobs[name][queue] = jobs[name].get(queue, 0) + number
    ((workers, dead_rows, *sizes, horizon_s, behind),) = await tables.fetch("sizes")
    jobs_bytes, history_bytes = sizes
    return Gauges(
        oldest_s=jobs.pop("oldest"),
        jobs=jobs,
        capped=frozenset(capped),
        workers=workers,
        dead_rows=dead_rows,
        jobs_bytes=jobs_bytes,
        history_bytes=history_bytes,
        horizon_s=horizon_s,
        horizon_transactions=behind,
    )


async def backlog(broker: Broker, queue: str) -> int | None:
    """The number of pending, held and running jobs of a queue, for autoscalers; None: there is no
    such queue.

    Jobs in Postgres are counted up to 10,000 of each state.

    :raises ConfigurationError: this application does not have the queue's broker.
    :raises BrokerError: the database, or the queue's broker, is unavailable.
    """
    ((name, jobs),) = await SQL.on(broker).fetch("backlog_of", queue)
    if name is None and not jobs:
        return None
    if name in (None, DEFAULT_BROKER):
        return int(jobs)
    found, errors = await _elsewhere(broker)
    if name in errors:
        raise BrokerUnavailable(f"the broker {name} is unavailable: {errors[name]}")
    if name not in found:
        raise ConfigurationError(
            f"this worker has no broker {name}, which keeps the jobs of queue {queue}"
        )
    there = found[name].get(queue, QueueCounts())
    return int(jobs) + there.pending + there.held + there.running


async def _elsewhere(
    broker: Broker,
) -> tuple[Mapping[str, Mapping[str, QueueCounts]], Mapping[str, str]]:
    return await broker.counts_elsewhere() if isinstance(broker, CountsElsewhere) else ({}, {})
