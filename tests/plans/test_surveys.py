"""What a survey reads, with many jobs of other queues and with many workers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.plans import functions
from tests.support.presence import present

WORKERS = 1_000
OWN = [f"own{n:03}" for n in range(300)]
OTHERS = """
insert into chancy.jobs (id, pos, state, queue, func, arguments)
select gen_random_uuid(), n, 0, 'other' || n %% %s, 'a.b', '{}'
from generate_series(1, %s) as n
"""
CROWD = """
insert into chancy.workers (id, host, pid, queues)
select case when n = 1 then %s else gen_random_uuid() end, 'here', n, %s
from generate_series(1, %s) as n
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def pages(connection: psycopg.Connection[Any], call: str, *params: object) -> int:
    """Pages that a call reads, once its plans are made and the caches of the session are warm."""
    command = f"explain (analyze, buffers, format json) select * from {call}"
    found = []
    for _ in range(3):
        row = present(connection.execute(command.encode(), params).fetchone())
        plan = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
        found.append(functions.buffers(plan))
    return min(found)


def waiting(connection: psycopg.Connection[Any], queues: list[str]) -> int:
    return pages(connection, "chancy.waiting(%s::text[])", queues)


def test_survey_of_idle_queues_reads_as_much_for_ten_as_for_three_hundred(
    connection: psycopg.Connection[Any],
) -> None:
    assert waiting(connection, OWN) == waiting(connection, OWN[:10]) <= 10


#: Many queues beside a million jobs, since the pages of 100,000 are no more than they may read.
LARGE = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("rows", "queues", "most"),
    [
        (100_000, 1, 30),
        pytest.param(1_000_000, 250, 2_500, marks=LARGE),
        pytest.param(1_000_000, 2_000, 6_500, marks=LARGE),
    ],
)
def test_survey_passes_the_jobs_of_other_queues(
    connection: psycopg.Connection[Any], rows: int, queues: int, most: int
) -> None:
    connection.execute(OTHERS.encode(), (queues, rows))
    assert waiting(connection, OWN) <= most  # not analysed
    connection.execute("vacuum (analyze) chancy.jobs")
    assert waiting(connection, OWN) <= most


def test_survey_of_a_worker_of_a_thousand_reads_the_rows_of_the_workers_once(
    connection: psycopg.Connection[Any],
) -> None:
    own = uuid.uuid4()
    connection.execute(CROWD.encode(), (own, ["a"], WORKERS))
    connection.execute(CROWD.encode(), (uuid.uuid4(), ["b"], 100))
    call = "chancy.survey(%s::uuid, '{}', true)"
    assert pages(connection, call, own) <= 1.5 * WORKERS
    connection.execute("vacuum (analyze) chancy.workers")
    assert pages(connection, call, own) <= 1.5 * WORKERS


def test_heartbeats_and_surveys_change_no_index(connection: psycopg.Connection[Any]) -> None:
    own = uuid.uuid4()
    connection.execute(CROWD.encode(), (own, ["a"], 10))
    for number in range(20):
        connection.execute("update chancy.workers set beat_at = clock_timestamp()")
        connection.execute("select chancy.survey(%s, array[%s], true)", (own, f"q{number}"))
    connection.execute("select pg_stat_force_next_flush()")
    row = connection.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'workers'"
    ).fetchone()
    assert row is not None
    updates, hot = row
    assert updates == 220
    assert hot > 0.7 * updates
