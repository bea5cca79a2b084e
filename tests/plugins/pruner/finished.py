"""Finished jobs for the tests of the pruner."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import psycopg

from chancy import State

HOUR = timedelta(hours=1)
#: Finished jobs: one a minute, ``number`` minutes ago.
FINISHED = """
insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt, max_attempts,
  crashes, lease, pushed_at, finished_at)
select gen_random_uuid(), n, %(state)s, %(queue)s, 0, %(func)s, 1, 3, 0, gen_random_uuid(),
  now() - interval '9 days', now() - %(first)s - n * interval '1 minute'
from generate_series(1, %(count)s) as n
"""


def fill(
    connection: psycopg.Connection[Any],
    count: int,
    *,
    queue: str = "default",
    func: str = "shop.jobs.sell",
    state: State = State.SUCCEEDED,
    first: timedelta = timedelta(minutes=5),
) -> None:
    values = {"count": count, "queue": queue, "func": func, "state": int(state), "first": first}
    connection.execute(FINISHED.encode(), values)


def left(connection: psycopg.Connection[Any]) -> dict[tuple[str, str, int], int]:
    rows = connection.execute(
        "select queue, func, state, count(*) from chancy.finished_jobs group by 1, 2, 3"
    ).fetchall()
    return {(queue, func, state): count for queue, func, state, count in rows}


def ages(connection: psycopg.Connection[Any]) -> list[int]:
    rows = connection.execute("select pos from chancy.finished_jobs order by pos").fetchall()
    return [pos for (pos,) in rows]


def add_day(connection: psycopg.Connection[Any], day: date) -> str:
    """Make the partition of a day, if there is none; returns its name."""
    name = f"finished_jobs_{day:%Y%m%d}"
    connection.execute(
        f"create table if not exists chancy.{name} partition of chancy.finished_jobs"
        f" for values from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')".encode()
    )
    return name
