"""Databases that tests use one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.recycling import Recycling
from tests.support.sql import ask

ROWS = """
insert into chancy.jobs (id, pos, state, queue, func, arguments, pushed_at)
select gen_random_uuid(), nextval('chancy.positions'), 0, 'default', 'a.b', '{}', now()
from generate_series(1, %s)
"""
CONTENT = """
select (select count(*) from chancy.jobs), nextval('chancy.positions'),
  (select array_agg(queues::text order by name) from chancy.queues)
"""


@pytest.fixture
def recycling() -> Iterator[Recycling]:
    made = Recycling()
    yield made
    made.close()


def content(dsn: str) -> object:
    with psycopg.connect(dsn) as session:
        found = session.execute(CONTENT).fetchone()
        session.rollback()
    return found


@pytest.fixture
def recycled() -> bool:
    """These databases are for the tests' own recycling."""
    return False


@pytest.mark.parametrize("rows", [3, 5_000])
def test_rows_queues_and_sequences_are_those_of_the_template(
    recycling: Recycling, dsn: str, rows: int
) -> None:
    before = content(dsn)
    for _ in range(2):
        with psycopg.connect(dsn) as session:
            session.execute(ROWS, (rows,))
            session.execute("delete from chancy.core_version")
            session.execute("update chancy.queues set concurrency = 77")
        assert content(dsn) != before
        assert recycling.keep("template", "one", dsn)
        assert recycling.take("template") == "one"
        assert content(dsn) == before
        assert recycling.take("template") is None, "another test has it"


@pytest.mark.parametrize(
    "change",
    [
        "create table shops (id int)",
        "drop index chancy.jobs_held",
        "grant select on chancy.jobs to public",
        "analyze chancy.queues",
        "select lo_create(0)",
    ],
)
def test_a_database_in_which_more_than_rows_has_changed_is_not_used_again(
    recycling: Recycling, dsn: str, change: str
) -> None:
    ask(dsn, change)
    assert not recycling.keep("template", "one", dsn)
    assert recycling.take("template") is None


def test_a_database_with_a_lock_is_not_used_again(recycling: Recycling, dsn: str) -> None:
    with psycopg.connect(dsn) as session:
        session.execute("update chancy.queues set concurrency = 77")
        assert not recycling.keep("template", "one", dsn)
