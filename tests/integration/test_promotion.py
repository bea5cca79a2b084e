"""Promotion by the Postgres broker: where it starts, and which worker does it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from chancy.broker.values import Promotion
from chancy.errors import StatementFailed
from chancy.postgres import front_scans
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers.base import Row
from chancy.postgres.front_scans import FrontScans
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, record
from tests.support.sql import ask

LOW, HIGH = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[PostgresBroker]:
    made = PostgresBroker(dsn)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def bench(broker: PostgresBroker) -> Bench:
    made = Bench(broker)
    await made.prepare()
    return made


@pytest.fixture
def no_front_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a scan from the front took very long."""
    monkeypatch.setattr(FrontScans, "due", lambda *_: False)


def make_due(dsn: str, seconds_ago: float, count: int = 1) -> None:
    """Schedule jobs that were due so long ago, as transactions do that commit late."""
    ask(
        dsn,
        "insert into chancy.jobs (id, pos, state, queue, func, run_at) select"
        " gen_random_uuid(), 0, 2, 'default', 'a.b', now() - %s * interval '1 s'"
        " from generate_series(1, %s)",
        (seconds_ago, count),
    )


async def test_promotion_starts_behind_promoted_jobs(
    bench: Bench, dsn: str, no_front_scans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await bench.broker.promote(10)).promoted == 0
    make_due(dsn, seconds_ago=60)
    assert (await bench.broker.promote(10)).promoted == 0
    monkeypatch.setattr(FrontScans, "due", lambda *_: True)
    assert (await bench.broker.promote(10)).promoted == 1


async def test_promotion_finds_jobs_committed_a_little_late(
    bench: Bench, dsn: str, no_front_scans: None
) -> None:
    assert (await bench.broker.promote(10)).promoted == 0
    make_due(dsn, seconds_ago=0.5)
    assert (await bench.broker.promote(10)).promoted == 1


async def test_full_promotions_skip_no_job_of_the_same_time(
    bench: Bench, dsn: str, no_front_scans: None
) -> None:
    make_due(dsn, seconds_ago=60, count=5)
    make_due(dsn, seconds_ago=50, count=2)
    promoted = [await bench.broker.promote(2) for _ in range(5)]
    assert [one.promoted for one in promoted] == [2, 2, 2, 1, 0]
    assert [(one.next_due_s or 0) < 0 for one in promoted] == [True, True, True, False, False]


@pytest.mark.parametrize("run_at", ["infinity", "-infinity"])
async def test_promotion_accepts_infinite_times(bench: Bench, dsn: str, run_at: str) -> None:
    make_due(dsn, seconds_ago=60, count=2)
    ask(dsn, "update chancy.jobs set run_at = %s", (run_at,))
    promoted = [(await bench.broker.promote(1)).promoted for _ in range(3)]
    assert promoted == ([1, 1, 0] if run_at == "-infinity" else [0, 0, 0])


async def test_expired_jobs_that_cannot_be_stored_hold_up_no_due_job(
    bench: Bench, dsn: str
) -> None:
    ask(
        dsn,
        "insert into chancy.jobs (id, pos, state, queue, func, expires_at)"
        " values (gen_random_uuid(), 0, 0, 'default', 'a.b', now() - interval '1 s')",
    )
    make_due(dsn, seconds_ago=60)
    with psycopg.connect(dsn) as other:
        other.execute("lock table chancy.finished_jobs in share mode")
        assert (await bench.broker.promote(10)).promoted == 1
    await bench.broker.promote(10)
    assert ask(dsn, "select state from chancy.finished_jobs") == [(State.CANCELLED,)]


async def test_new_session_promotes_from_the_front(
    bench: Bench, broker: PostgresBroker, dsn: str, no_front_scans: None
) -> None:
    """The clock of its server may be behind."""
    await broker.promote(10)
    make_due(dsn, seconds_ago=60)
    await broker.close()
    await broker.open()
    assert (await broker.promote(10)).promoted == 1


async def test_only_the_live_worker_with_the_lowest_id_promotes_often(
    broker: PostgresBroker, dsn: str
) -> None:
    async def ahead(worker_id: uuid.UUID | None) -> int:
        return (await broker.promote(1, worker_id=worker_id)).ahead

    for worker_id in (LOW, HIGH):
        await broker.register(record(worker_id))
    assert [await ahead(one) for one in (LOW, HIGH, None)] == [0, 1, 0]
    ask(dsn, "update chancy.workers set beat_at = now() - interval '1 m'")
    assert not await ahead(HIGH)


async def test_next_due_time_is_that_of_a_job_not_yet_due(bench: Bench) -> None:
    await bench.push(prepared(delay_s=-1.0), prepared(delay_s=3_600.0))
    promotion: Promotion = await bench.broker.promote(10)
    assert promotion.next_due_s is not None
    assert 3_500 < promotion.next_due_s <= 3_600


async def test_due_jobs_do_not_wait_for_scans_that_time_out(
    bench: Bench, broker: PostgresBroker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a snapshot that is held for long, with a statement_timeout."""
    fetch = broker._upkeeping.fetch

    async def timing_out(sql: str, limit: int, after: float | None, worker: None) -> Sequence[Row]:
        if after is None:
            raise StatementFailed("canceling statement", sqlstate="57014")
        return await fetch(sql, limit, after, worker)

    monkeypatch.setattr(front_scans, "_LEAST_S", front_scans._MOST_S)
    assert (await broker.promote(10)).promoted == 0
    broker._promotions._front_scans.hasten()
    monkeypatch.setattr(broker._upkeeping, "fetch", timing_out)
    with pytest.raises(StatementFailed):
        await broker.promote(10)
    make_due(dsn, seconds_ago=0)
    assert (await broker.promote(10)).promoted == 1
