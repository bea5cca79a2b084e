"""Statements of idle workers look at few pages, however many entries a held snapshot keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from chancy.postgres.statements import Statements
from tests.plans import functions
from tests.support.presence import present

JOBS = 20_000
#: Pages of a statement that starts behind the dead entries.
PAGES = 60
WORKER = "11111111-0000-4000-8000-000000000000"
SQL = Statements("chancy")
FILL = """
insert into chancy.jobs (id, pos, state, queue, func, run_at, worker_id, lease, stop_asked_at)
select gen_random_uuid(), n, %s, 'default', 'a.b', now() - interval '1 h' + n * interval '1 ms',
  %s, gen_random_uuid(), null
from generate_series(1, %s) as n
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session beside one that holds a snapshot."""
    with psycopg.connect(dsn, autocommit=True) as made, psycopg.connect(dsn) as holder:
        made.execute("alter table chancy.jobs set (autovacuum_enabled = off)")
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from chancy.jobs")
        yield made


def pages(connection: psycopg.Connection[Any], statement: str, *parameters: object) -> int:
    """The pages that a statement looks at, once its plan is cached and the caches are warm."""
    found = []
    with psycopg.RawCursor(connection) as cursor:
        for _ in range(3):
            command = f"explain (analyze, buffers, format json) {statement}"
            row = present(cursor.execute(command.encode(), parameters).fetchone())
            found.append(functions.buffers(row[0][0]["Plan"]))
    return min(found)


def test_promotion_starts_behind_dead_entries(connection: psycopg.Connection[Any]) -> None:
    connection.execute(FILL, (2, None, JOBS))
    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(SQL.promote.encode(), (JOBS, None, None))
        assert (row := cursor.fetchone()) is not None
        assert row[0] == JOBS
    connection.execute("delete from chancy.jobs")
    behind = pages(connection, SQL.promote, 100, time.time() - 2.0, WORKER)
    front = pages(connection, SQL.promote, 100, None, WORKER)
    assert behind < PAGES, (behind, front)
    assert front > 3 * behind, (behind, front)
    # From the front it passes the dead entries once.
    assert front < 1.5 * JOBS / 20, (behind, front)


def test_stop_requests_pass_no_entries_of_other_jobs(connection: psycopg.Connection[Any]) -> None:
    connection.execute(FILL, (1, WORKER, JOBS))
    connection.execute("delete from chancy.jobs")
    connection.execute(FILL, (1, WORKER, 100))
    connection.execute("update chancy.jobs set stop_asked_at = now() where pos = 7")
    connection.execute("analyze chancy.jobs")
    assert pages(connection, SQL.stop_requests, WORKER) < PAGES
    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(SQL.stop_requests.encode(), (WORKER,))
        assert len(cursor.fetchall()) == 1


def test_check_for_lost_claims_reads_dead_entries_once(connection: psycopg.Connection[Any]) -> None:
    """The worker makes it rarer the longer it takes."""
    connection.execute(FILL, (1, WORKER, JOBS))
    connection.execute("delete from chancy.jobs")
    connection.execute(FILL, (1, WORKER, 100))
    connection.execute("analyze chancy.jobs")
    assert pages(connection, SQL.running, WORKER, [], [], 1_000) < 1.5 * JOBS / 20
