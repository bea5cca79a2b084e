"""A look at the queues and the database that costs the same at ten million rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chancy.broker.contract import Broker
from chancy.plugins.metrics.series import SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state of the queues and of the database.

    :param pending: due jobs by queue that no worker has claimed; counts stop at 10,000.
    :param oldest_s: seconds for which the oldest of them has waited: of the first of each priority.
    :param running: by queue.
    :param scheduled: by queue, of the 10,000 jobs that are due next.
    :param dead_rows: of the table of unfinished jobs, by the statistics of the server.
    :param horizon_s: seconds since the oldest snapshot was taken, behind which no row is removed.
    """

    pending: Mapping[str, float]
    oldest_s: Mapping[str, float]
    running: Mapping[str, float]
    scheduled: Mapping[str, float]
    workers: int
    dead_rows: int
    jobs_bytes: int
    history_bytes: int
    horizon_s: float


async def look(broker: Broker) -> Gauges:
    """Take a look.

    :raises ConfigurationError: the broker does not offer SQL.
    :raises BrokerError: the database is unavailable.
    """
    tables = SQL.on(broker)
    by_queue: dict[str, dict[str, float]] = {
        name: {} for name in ("pending", "oldest", "running", "scheduled")
    }
    for name, queue, value in await tables.fetch("queues"):
        by_queue[name][queue] = value
    ((workers, dead_rows, jobs_bytes, history_bytes, horizon_s),) = await tables.fetch("sizes")
    return Gauges(
        pending=by_queue["pending"],
        oldest_s=by_queue["oldest"],
        running=by_queue["running"],
        scheduled=by_queue["scheduled"],
        workers=workers,
        dead_rows=dead_rows,
        jobs_bytes=jobs_bytes,
        history_bytes=history_bytes,
        horizon_s=horizon_s,
    )


async def backlog(broker: Broker, queue: str) -> int:
    """The due and running jobs of a queue, each up to 10,000: what a scaler goes by."""
    ((jobs,),) = await SQL.on(broker).fetch("backlog_of", queue)
    return int(jobs)
