"""Migrations of the core on tables that are in use: nobody waits for a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from chancy import Chancy
from chancy.errors import ConfigurationError
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import HEAD
from tests.migrations.next_release import NEXT

FROM = HEAD
pytestmark = pytest.mark.usefixtures("next_release")
PUSH = (
    "insert into chancy.jobs (id, pos, state, queue, func) select gen_random_uuid(),"
    " nextval('chancy.positions'), 0, 'default', 'a.b'"
)
CLAIM = (
    "select from chancy.claim('11111111-0000-4000-8000-000000000000'::uuid, gen_random_uuid(),"
    " 'default', 5, 1000000, null::int[], null::bigint[])"
)
LOOK = "select count(*) from chancy.queues, chancy.workers"


def fill(dsn: str, rows: int) -> None:
    schema.upgrade(dsn, component="core", revision=FROM)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"{PUSH} from generate_series(1, {rows})".encode())
        connection.execute(
            "insert into chancy.workers (id, host, pid)"
            " values ('11111111-0000-4000-8000-000000000000', 'h', 1)"
        )


@contextmanager
def clients(dsn: str, waits: list[float]) -> Generator[None]:
    """Sessions that push, claim and look without a pause, and how long each statement took."""
    done = threading.Event()

    def work(statement: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not done.is_set():
                began = time.monotonic()
                connection.execute(statement.encode())
                waits.append(time.monotonic() - began)

    with ThreadPoolExecutor() as threads:
        try:
            working = [threads.submit(work, one) for one in (PUSH, CLAIM, LOOK)]
            yield
        finally:
            done.set()
    for one in working:
        one.result()


def held_up(dsn: str, rows: int) -> list[float]:
    """Upgrade beside clients, while a report holds every table for longer than anybody may wait."""
    fill(dsn, rows)
    waits: list[float] = []
    with clients(dsn, waits), ThreadPoolExecutor() as threads:
        with psycopg.connect(dsn) as report:
            report.execute(LOOK.encode())
            upgrade = threads.submit(schema.upgrade, dsn)
            until = time.monotonic() + 3.0
            waiting = (
                "select 1 from pg_locks where not granted and mode = 'AccessExclusiveLock'"
                " and database = (select oid from pg_database where datname = current_database())"
            )
            seen = 0
            with psycopg.connect(dsn, autocommit=True) as watch:
                while time.monotonic() < until:
                    seen += len(watch.execute(waiting).fetchall())
                    time.sleep(0.02)
            assert seen, "the upgrade never had to wait"
            assert not upgrade.done()
        upgrade.result(timeout=60)
    assert schema.revisions(dsn) == {"core": NEXT}
    return waits


@pytest.mark.chaos
@pytest.mark.alone
def test_an_upgrade_gives_way_to_sessions_that_lock_a_table(empty_dsn: str) -> None:
    assert max(held_up(empty_dsn, 1_000)) < 1.0


@pytest.mark.chaos
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_with_a_million_jobs_no_caller_waits_for_a_second(empty_dsn: str) -> None:
    assert max(held_up(empty_dsn, 1_000_000)) < 1.0


def test_a_table_that_is_held_for_ever_ends_the_upgrade(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.postgres.schema.sessions.PATIENCE_S", 1.0)
    fill(empty_dsn, 1)
    with psycopg.connect(empty_dsn) as report:
        report.execute(LOOK.encode())
        with pytest.raises(
            ConfigurationError, match=r"other sessions hold \(see pg_locks\), and was"
        ):
            schema.upgrade(empty_dsn)
    assert schema.revisions(empty_dsn) == {"core": FROM}
    schema.upgrade(empty_dsn)


def test_a_downgrade_that_ends_names_what_is_gone(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.postgres.schema.sessions.PATIENCE_S", 0.0)
    every = Chancy(dsn).hooks.components
    before = schema.revisions(dsn)
    with psycopg.connect(dsn) as report:
        report.execute("select from chancy.jobs")
        with pytest.raises(ConfigurationError) as failed:
            schema.downgrade(dsn, components=every)
    gone = [one.name for one in reversed(every) if one.name not in schema.revisions(dsn)]
    assert before.keys() >= {*gone} > {"cron"}
    assert str(failed.value).endswith(f"; downgraded before it: {', '.join(gone)}")
    schema.downgrade(dsn, components=every)
    assert schema.revisions(dsn) == {}
