"""What takes jobs from Postgres to Redis looks at the first ones, however many there are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.redis import RedisPlugin
from tests.plans import functions
from tests.support.presence import present
from tests.support.sql import ask

BATCH = 100
#: Pages for each job: four are looked at, and the row and the move of one read and written by key.
PAGES = 40

_FILL = """
insert into chancy.jobs (id, pos, state, queue, func, arguments, run_at, worker_id)
select gen_random_uuid(), n, case when n %% 4 > 2 then 0 else n %% 4 end, %(queue)s, 'a.b', '{}',
  case when n %% 4 = 2 then now() + interval '1 day' end, gen_random_uuid()
from generate_series(1, %(count)s) as n
"""
_READ = "explain (analyze, buffers, costs off, timing off, format json) "


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    Chancy(dsn, plugins=[RedisPlugin()]).sync_migrate()
    with psycopg.connect(dsn, autocommit=True) as made:
        made.execute("alter table chancy.jobs set (autovacuum_enabled = off)")
        for queue in ("fast", "none"):
            made.execute("insert into chancy.queues (name, broker) values (%s, 'redis')", [queue])
        yield made


def fill(connection: psycopg.Connection[Any], queue: str, count: int) -> None:
    connection.execute(_FILL.encode(), {"queue": queue, "count": count})


def pages(connection: psycopg.Connection[Any], call: str, parameters: Sequence[object] = ()) -> int:
    """The pages that a call looks at with warm caches, which is undone."""
    pages = []
    for _ in range(2):
        with connection.transaction(force_rollback=True):
            found = present(connection.execute(f"{_READ}{call}".encode(), parameters).fetchone())
        plan = found[0] if isinstance(found[0], list) else json.loads(found[0])
        pages.append(functions.buffers(plan[0]["Plan"]))
    return min(pages)


def taken(connection: psycopg.Connection[Any]) -> list[UUID]:
    rows = connection.execute("select id from chancy.redis_move('fast', %s, 4194304, 10)", [BATCH])
    return [row[0] for row in rows.fetchall()]


@pytest.mark.parametrize("known", [pytest.param(False, marks=pytest.mark.chaos), True])
def test_a_batch_among_many_jobs(connection: psycopg.Connection[Any], known: bool) -> None:
    """With statistics of an empty table, too."""
    connection.execute("analyze chancy.jobs")
    fill(connection, "other", 40_000)
    fill(connection, "fast", 40_000)
    if known:
        connection.execute("vacuum analyze chancy.jobs")
    take = "select * from chancy.redis_move('fast', %s, 4194304, 10)"
    assert pages(connection, take, [BATCH]) <= PAGES * BATCH
    assert pages(connection, "select * from chancy.redis_move('none', 100, 4194304, 10)") <= 20
    assert len(taken(connection)) == BATCH
    assert pages(connection, take, [BATCH]) <= PAGES * BATCH, "behind those that are on their way"
    ids = taken(connection)
    end = "select * from chancy.redis_moved(%s, array(select lease from chancy.redis_moves))"
    assert pages(connection, end, [ids]) <= PAGES * BATCH
    ((worker,),) = ask(
        connection,
        "insert into chancy.workers (id, host, pid) values (gen_random_uuid(), 'w', 1)"
        " returning id",
    )
    claim = "select * from chancy.redis_claim(%s, gen_random_uuid(), 'fast', %s)"
    assert pages(connection, claim, [worker, BATCH]) <= PAGES * BATCH
