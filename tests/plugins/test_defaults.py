"""The plugins that an application has by default, and how they are replaced."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Raised
from chancy.plugins import standard
from chancy.plugins.pruner import Pruner
from chancy.plugins.retry import Retries
from chancy.postgres.broker import PostgresBroker
from tests.plugins.pruner.finished import add_day
from tests.support import jobs
from tests.support.sql import ask

ASYNC = Queue(name="async", executor="async")


def claim(attempt: int = 1, most: int = 3) -> Claim:
    ids = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    return Claim(*ids, "q", "a.b", "{}", attempt, most, 0, 0, 1, None)


def test_without_plugins_a_failure_is_for_good() -> None:
    chancy = Chancy("postgresql://nowhere/nothing", no_default_plugins=True)
    assert chancy.hooks.plugins == ()
    assert chancy.hooks.judge(claim(), Raised(Failure.of(ValueError()))).state is State.FAILED


def test_a_plugin_replaces_the_default_one_of_its_identifier() -> None:
    mine = Retries()
    chancy = Chancy("postgresql://nowhere/nothing", plugins=[mine])
    assert mine in chancy.hooks.plugins
    assert len(chancy.hooks.plugins) == len(standard())


async def test_the_pruner_makes_the_days_to_come_and_drops_old_ones(dsn: str) -> None:
    today = datetime.now(UTC).date()

    def name(days: int) -> str:
        return f"finished_jobs_{today + timedelta(days=days):%Y%m%d}"

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"drop table chancy.{name(3)}".encode())
        for days in (-9, -8, -7):
            add_day(connection, today + timedelta(days=days))
    async with Chancy(dsn) as chancy:
        assert isinstance(chancy.broker, PostgresBroker)
        assert await Pruner(keep_days=7).prune(chancy.broker) == [name(-9), name(-8)]
        assert await Pruner(keep_days=7).prune(chancy.broker) == []
    rows = ask(
        dsn,
        "select inhrelid::regclass::text from pg_inherits "
        "where inhparent = 'chancy.finished_jobs'::regclass",
    )
    found = {str(row[0]) for row in rows}
    assert found == {f"chancy.{name(days)}" for days in (-7, *range(8))} | {
        "chancy.finished_jobs_default"
    }


async def test_the_pruner_gives_way_to_a_reader(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    today = datetime.now(UTC).date()
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn) as reader:
        connection.execute(
            f"drop table chancy.finished_jobs_{today + timedelta(days=2):%Y%m%d}".encode()
        )
        reader.execute("lock table chancy.finished_jobs in share update exclusive mode")
        async with Chancy(dsn) as chancy:
            assert isinstance(chancy.broker, PostgresBroker)
            await Pruner().prune(chancy.broker)
    assert "prune_postponed" in caplog.text


async def test_the_pruner_moves_what_came_before_its_days_partition(dsn: str) -> None:
    today = f"finished_jobs_{datetime.now(UTC).date():%Y%m%d}"
    async with Chancy(dsn, queues=[ASYNC]) as chancy:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"drop table chancy.{today}".encode())
            bare = Chancy(dsn, queues=[ASYNC], no_default_plugins=True)
            async with bare, Worker(bare, queues=["async"]):
                reference = await bare.push(jobs.note.job(value=1))
                await reference.wait(10)
            count = "select count(*) from chancy.finished_jobs_default"
            assert isinstance(chancy.broker, PostgresBroker)
            await Pruner().prune(chancy.broker)
            assert connection.execute(count.encode()).fetchone() == (0,)
            kept = connection.execute(f"select id from chancy.{today}".encode()).fetchall()
        assert kept == [(reference.id,)]
        assert await chancy.get_job(reference.id) is not None
