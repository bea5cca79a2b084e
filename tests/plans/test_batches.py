"""The statements of batches, at half a million jobs: in many batches, and in a large one.

Most of them are inside functions that call each other. So what is held to a bound is the pages that
the whole call looks at, which grow with the jobs that end and not with those that there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.batch import Batches
from chancy.plugins.batch.outcomes import SQL
from tests.plans.flows import looked_at

BATCH = 100
#: Pages for each job of a settlement: its row by index, and its share of the rows that count.
PAGES = 30
#: Pages for each batch of a settlement beside: its row, and the rows that count.
BATCH_PAGES = 60
#: Batches of ten jobs that run, and as many that have ended, with one job that failed.
SMALL = """
with made as (
  insert into chancy.batches (id, name, open, state, finished_at)
  select md5('b' || n)::uuid, 'small', false, case when n %% 2 = 0 then 1 else 5 end,
    case when n %% 2 = 1 then now() end
  from generate_series(%(first)s::int, %(last)s::int) as n
  returning id, state
), shards as (
  insert into chancy.batches_shards (batch_id, shard, pending, succeeded, failed)
  select m.id, 0, case m.state when 1 then 10 else 0 end, case m.state when 1 then 0 else 9 end,
    case m.state when 1 then 0 else 1 end
  from made as m)
insert into chancy.batches_jobs (batch_id, job_id, state)
select m.id, md5(m.id::text || p)::uuid, case m.state when 1 then 0 else 5 end
from made as m, generate_series(1, case m.state when 1 then 10 else 1 end) as p
"""
#: One of as many jobs, every tenth of which has failed.
LARGE = """
with made as (
  insert into chancy.batches (id, name, open, shards)
  values (md5('large')::uuid, 'large', false, 16)
), shards as (
  insert into chancy.batches_shards (batch_id, shard, pending, failed)
  select md5('large')::uuid, n, %(size)s::int / 16 * 0.9, %(size)s::int / 160
  from generate_series(0, 15) as n)
insert into chancy.batches_jobs (batch_id, job_id, state)
select md5('large')::uuid, md5('large' || n)::uuid, case when n %% 10 = 0 then 5 else 0 end
from generate_series(1, %(size)s::int) as n
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    Chancy(dsn, plugins=[Batches()]).sync_migrate()
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def jobs(connection: psycopg.Connection[Any], wanted: str) -> tuple[list[Any], list[Any]]:
    """Batches and jobs that have not ended."""
    select = f"select batch_id, job_id from chancy.batches_jobs where state = 0 and {wanted} limit "
    rows = connection.execute(f"{select} {BATCH}".encode()).fetchall()
    assert len(rows) == BATCH
    return [row[0] for row in rows], [row[1] for row in rows]


def measured(connection: psycopg.Connection[Any]) -> dict[str, tuple[int, int]]:
    """The pages of each call, and how many it may look at."""
    large = connection.execute("select md5('large')::uuid").fetchall()[0][0]
    some = connection.execute("select md5('b2')::uuid").fetchall()[0][0]
    many, of_many = jobs(connection, "batch_id <> md5('large')::uuid")
    one, of_one = jobs(connection, "batch_id = md5('large')::uuid")
    well, badly, middle = [4] * BATCH, [5] * BATCH, of_one[50]
    each, bound = PAGES * BATCH, (PAGES + BATCH_PAGES) * BATCH

    def found(name: str, *parameters: object) -> int:
        return looked_at(connection, SQL.statement(name, "chancy"), *parameters)

    return {
        "a job of each of many": (found("settle", many, of_many, well, None), bound),
        "many jobs of one": (found("settle", one, of_one, well, None), each),
        "many failures of one": (found("settle", one, of_one, badly, None), each),
        "many successes of one": (found("settle_one", large, of_one), each),
        "a look at the large one": (found("look", large), BATCH_PAGES * 16),
        "the sweep": (found("missed", None, None, BATCH), each),
        "the sweep, from the middle": (found("missed", large, middle, BATCH), each),
        "the sweep, in a small one": (found("missed", some, middle, BATCH), each),
        "what nobody has ended": (found("stuck", None, BATCH), each),
        "replays": (found("replayed", large, middle, BATCH), each),
        "what to cancel": (found("live", large, middle, BATCH), each),
        "jobs that did not succeed": (found("bad", large, middle, BATCH), each),
        "whether there may be more": (found("admit", large, None, None), each),
        "jobs that are forgotten": (found("forget_jobs", 0.0, BATCH), each),
        "batches that are forgotten": (found("forget", 0.0, BATCH), bound),
        "a list": (found("find", None, None, None, None, BATCH), each),
        "a list by name": (found("find", None, "small", None, some, BATCH), each),
        "progress": (found("find", [large], None, None, None, 1), BATCH_PAGES),
    }


@pytest.mark.timeout(240)
@pytest.mark.chaos
def test_batches_at_every_size(connection: psycopg.Connection[Any]) -> None:
    connection.execute("alter table chancy.batches_jobs set (autovacuum_enabled = off)")
    connection.execute(SMALL.encode(), {"first": 1, "last": 2_000})
    connection.execute(LARGE.encode(), {"size": 16_000})
    few = measured(connection)
    connection.execute(SMALL.encode(), {"first": 2_001, "last": 40_000})
    grow = LARGE[LARGE.index("insert into chancy.batches_jobs") :]
    grow = grow.replace("md5('large' || n)", "md5('more' || n)")
    connection.execute(grow.encode(), {"size": 240_000})
    connection.execute("vacuum analyze chancy.batches_jobs, chancy.batches, chancy.batches_shards")
    many = measured(connection)
    for what, (count, bound) in many.items():
        assert few[what][0] <= bound, f"{what}: {few[what][0]} pages of few"
        assert count <= bound, f"{what}: {count} pages of many"
        assert count <= few[what][0] * 2 + 200, f"{what}: {count} pages, {few[what][0]} of few"
