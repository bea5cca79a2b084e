"""What `chancy top`, `chancy doctor` and metrics read does not grow with the number of jobs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from chancy.app import backlog
from chancy.app.checkup import examination
from chancy.plugins.metrics.series import SQL
from chancy.postgres.statements import Statements
from tests.plans import functions
from tests.support.presence import present

FILL = (
    "insert into chancy.queues (name, executor) values ('mail', 'async')",
    "insert into chancy.jobs (id, pos, state, queue, priority, func, arguments, run_at)"
    " select gen_random_uuid(), n, (array[2, 0, 3, 0])[n %% 4 + 1], 'mail', n %% 3, 'a.b',"
    " '{}', now() + n * interval '1 s' from generate_series(1, %s) as n",
    "insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
    " max_attempts, crashes, pushed_at, claimed_at, finished_at) select gen_random_uuid(), n, 4,"
    " 'mail', 0, 'a.b', 1, 1, 0, now(), now(), now() - n * interval '1 ms'"
    " from generate_series(1, %s) as n",
)
LOOKS = ("backlog", "unfinished", "running", "rates", "recent", "retrying")
CHECKS = ("partitions", "overdue", "set_aside", "sizes", "live_table")


def pages(connection: psycopg.Connection[Any], sql: str) -> int:
    explained = f"explain (analyze, buffers, format json) {sql.replace('$1', '0')}"
    rows = [present(connection.execute(explained.encode()).fetchone()) for _ in range(3)]
    return min(functions.buffers(row[0][0]["Plan"]) for row in rows)  # with warm caches


@pytest.mark.parametrize(
    "rows", [40_000, pytest.param(400_000, marks=[pytest.mark.chaos, pytest.mark.timeout(240)])]
)
def test_looks_and_checks_read_the_ends_of_indexes(dsn: str, rows: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(FILL[0])
        for fill in FILL[1:]:
            connection.execute(fill.encode(), [rows])
        for _ in range(2):
            read = {
                name: pages(connection, backlog.SQL.statement(name, "chancy")) for name in LOOKS
            }
            read |= {
                name: pages(connection, examination.SQL.statement(name, "chancy"))
                for name in CHECKS
            }
            read["queues"] = pages(connection, SQL.statement("queues", "chancy"))
            read["counts"] = pages(connection, Statements("chancy").counts)
            # A row that is counted may be two pages, of the index and the table.
            most = {"unfinished": 22_000, "rates": 22_000, "backlog": 5_000, "queues": 22_000}
            most["counts"] = 50_000  # up to 100,001 of each state, most by the index alone
            too_many = {name: n for name, n in read.items() if n > most.get(name, 1_500)}
            assert too_many == {}
            connection.execute("vacuum (analyze) chancy.jobs, chancy.finished_jobs")


def test_jobs_on_hold_are_not_read_to_count_those_that_are_due(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into chancy.jobs (id, pos, state, queue, priority, func, meta)"
            " select gen_random_uuid(), n, 3, 'mail', 0, 'a.b', '{\"hold\": \"k\"}'"
            " from generate_series(1, 40000) as n"
        )
        connection.execute(
            "insert into chancy.jobs (id, pos, state, queue, priority, func)"
            " values (gen_random_uuid(), 50000, 3, 'mail', 0, 'a.b')"
        )
        for _ in range(2):
            assert pages(connection, backlog.SQL.statement("backlog", "chancy")) < 300
            found = connection.execute("select held from chancy.backlog()").fetchall()
            assert found == [(1,)]
            connection.execute("vacuum (analyze) chancy.jobs")
