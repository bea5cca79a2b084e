"""Reads the tables directly, without the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg

from chancy.states import State

#: A DSN, or an open session: a new one costs the server some milliseconds.
Where = str | psycopg.Connection[Any]


def ask(
    where: Where, sql: str, params: Sequence[object] | Mapping[str, object] = ()
) -> list[tuple[Any, ...]]:
    """Run one statement."""
    if isinstance(where, str):
        with psycopg.connect(where, autocommit=True) as connection:
            return ask(connection, sql, params)
    cursor = where.execute(sql.encode(), params)
    return cursor.fetchall() if cursor.description else []


def live(dsn: Where) -> int:
    """The number of unfinished jobs."""
    ((count,),) = ask(dsn, "select count(*) from chancy.jobs")
    return int(count)


def finished(dsn: Where) -> int:
    ((count,),) = ask(dsn, "select count(*) from chancy.finished_jobs")
    return int(count)


def states(dsn: Where) -> Counter[State]:
    """The number of jobs by state, finished or not."""
    rows = ask(
        dsn,
        "select state, count(*) from ("
        " select state from chancy.jobs union all select state from chancy.finished_jobs) as jobs"
        " group by state",
    )
    return Counter({State(state): count for state, count in rows})


def running(dsn: Where, worker_id: UUID) -> int:
    """The number of running jobs of a worker."""
    ((count,),) = ask(
        dsn, "select count(*) from chancy.jobs where state = 1 and worker_id = %s", [worker_id]
    )
    return int(count)


def running_again(dsn: Where, worker_id: UUID) -> int:
    """The number of running jobs of a worker that have crashed before."""
    ((count,),) = ask(
        dsn,
        "select count(*) from chancy.jobs where state = 1 and worker_id = %s and crashes > 0",
        [worker_id],
    )
    return int(count)


def running_elsewhere(dsn: Where, worker_id: UUID) -> int:
    """The number of running jobs of other workers."""
    ((count,),) = ask(
        dsn, "select count(*) from chancy.jobs where state = 1 and worker_id <> %s", [worker_id]
    )
    return int(count)


def settled_numbers(dsn: Where) -> set[int]:
    """The numbers of the finished jobs."""
    rows = ask(dsn, "select (arguments ->> 'number')::int from chancy.finished_jobs")
    return {number for (number,) in rows}


def counters(dsn: Where) -> tuple[int, int, int]:
    """The sums of attempts, crashes and recorded errors of the finished jobs."""
    ((attempts, crashes, errors),) = ask(
        dsn,
        "select coalesce(sum(attempt), 0), coalesce(sum(crashes), 0),"
        " coalesce(sum(jsonb_array_length(errors)), 0) from chancy.finished_jobs",
    )
    return int(attempts), int(crashes), int(errors)


def workers(dsn: Where) -> int:
    ((count,),) = ask(dsn, "select count(*) from chancy.workers")
    return int(count)


def sessions(dsn: Where, name: str) -> int:
    """The number of sessions with this application name."""
    ((count,),) = ask(
        dsn, "select count(*) from pg_stat_activity where application_name = %s", [name]
    )
    return int(count)


def busy_sessions(dsn: Where, name: str) -> int:
    """The number of sessions with this application name that are not idle."""
    ((count,),) = ask(
        dsn,
        "select count(*) from pg_stat_activity where application_name = %s and state <> 'idle'",
        [name],
    )
    return int(count)


def empty(dsn: Where) -> None:
    """Delete all jobs, workers and queues."""
    for name in ("jobs", "finished_jobs", "workers", "queues"):
        ask(dsn, f"delete from chancy.{name}")


def passed(dsn: Where, position: int) -> int:
    """The number of finished jobs after this position."""
    ((count,),) = ask(dsn, "select count(*) from chancy.finished_jobs where pos > %s", [position])
    return int(count)


def overdue(dsn: Where) -> int:
    """The number of scheduled jobs that are due."""
    ((count,),) = ask(
        dsn, "select count(*) from chancy.jobs where state = 2 and run_at <= clock_timestamp()"
    )
    return int(count)
