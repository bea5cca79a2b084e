"""Reads the tables directly, without the broker."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from chancy.states import State
from tests.support.sql import Where, ask, count


def live(dsn: Where) -> int:
    """The number of unfinished jobs."""
    return count(dsn, "chancy.jobs")


def finished(dsn: Where) -> int:
    return count(dsn, "chancy.finished_jobs")


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
    return count(dsn, "chancy.jobs where state = 1 and worker_id = %s", [worker_id])


def running_again(dsn: Where, worker_id: UUID) -> int:
    """The number of running jobs of a worker that have crashed before."""
    held = "chancy.jobs where state = 1 and worker_id = %s and crashes > 0"
    return count(dsn, held, [worker_id])


def running_elsewhere(dsn: Where, worker_id: UUID) -> int:
    """The number of running jobs of other workers."""
    return count(dsn, "chancy.jobs where state = 1 and worker_id <> %s", [worker_id])


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
    return count(dsn, "chancy.workers")


def sessions(dsn: Where, name: str) -> int:
    """The number of sessions with this application name."""
    return count(dsn, "pg_stat_activity where application_name = %s", [name])


def busy_sessions(dsn: Where, name: str) -> int:
    """The number of sessions with this application name that are not idle."""
    busy = "pg_stat_activity where application_name = %s and state <> 'idle'"
    return count(dsn, busy, [name])


def empty(dsn: Where) -> None:
    """Delete all jobs, workers and queues."""
    for name in ("jobs", "finished_jobs", "workers", "queues"):
        ask(dsn, f"delete from chancy.{name}")


def passed(dsn: Where, position: int) -> int:
    """The number of finished jobs after this position."""
    return count(dsn, "chancy.finished_jobs where pos > %s", [position])


def overdue(dsn: Where) -> int:
    """The number of scheduled jobs that are due."""
    return count(dsn, "chancy.jobs where state = 2 and run_at <= clock_timestamp()")
