"""Which jobs a claim of the Postgres broker finds, and how much it takes at a time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import psycopg
import pytest

from chancy import BrokerUnavailable, Chancy, Queue, State, Worker
from chancy.attempt.claim import Claim
from chancy.broker.values import PreparedJob
from chancy.errors import StatementFailed
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.claim import claims as claiming
from chancy.postgres.drivers import Name
from chancy.postgres.drivers.base import Row
from chancy.postgres.front_scans import FrontScans
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plans import functions
from tests.support import jobs
from tests.support.locks import BLOCKED
from tests.support.presence import present
from tests.support.proxy import Proxy
from tests.support.sql import ask
from tests.support.waiting import eventually

#: Where the driver has a say, and once for all statements; the others go by asyncpg.
EACH_DRIVER = pytest.mark.parametrize("broker", ["asyncpg", "psycopg"], indirect=True)


@pytest.fixture
async def broker(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[PostgresBroker]:
    driver: Name = getattr(request, "param", "asyncpg")
    made = PostgresBroker(dsn, driver=driver)
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
    """Only thorough claims start at the front, as if a scan from there took very long."""
    monkeypatch.setattr(FrontScans, "due", lambda *_: False)


def large(count: int, size: int = 900_000) -> list[PreparedJob]:
    """Jobs whose arguments the server cannot compress."""
    return [prepared(arguments=f'{{"x": "{secrets.token_hex(size // 2)}"}}') for _ in range(count)]


@EACH_DRIVER
async def test_claim_with_hints_finds_jobs_of_other_priorities(
    bench: Bench, no_front_scans: None
) -> None:
    await bench.running(prepared(priority=0), prepared(priority=7))
    wanted = [100, 9, 8, 7, 3, 0, -1, -100]
    ids = [(await bench.push(prepared(priority=priority)))[0] for priority in wanted]
    assert [one.id for one in await bench.claim(thorough=False)] == ids


async def test_claims_of_a_backlog_continue_with_the_next_priority(
    bench: Bench, no_front_scans: None
) -> None:
    await bench.push(*(prepared(priority=number % 3) for number in range(30)))
    first = await bench.claim(4)
    rest = [await bench.claim(4, thorough=False) for _ in range(8)]
    found = [*first, *(one for claims in rest for one in claims)]
    assert [one.priority for one in found] == [2] * 10 + [1] * 10 + [0] * 10


async def test_hints_at_positions_beyond_those_of_a_float_hide_no_job(
    bench: Bench, dsn: str, no_front_scans: None
) -> None:
    ask(dsn, "select setval('chancy.positions', %s)", [2**53 - 1])
    for _ in range(8):
        ids = await bench.push(prepared())
        assert [one.id for one in await bench.claim(thorough=False)] == ids


async def test_full_thorough_claim_rereads_lower_priorities(
    bench: Bench, no_front_scans: None
) -> None:
    claims = await bench.running(*(prepared(priority=number % 2) for number in range(10)))
    await bench.settle(*(settlement(one, State.PENDING) for one in claims))
    found = [*await bench.claim(3), *await bench.claim(100, thorough=False)]
    assert {one.id for one in found} == {one.id for one in claims}


@pytest.mark.parametrize("thorough", [True, False])
async def test_claim_skips_jobs_that_another_transaction_locks(
    bench: Bench, dsn: str, no_front_scans: None, thorough: bool
) -> None:
    await bench.running(prepared())
    ids = await bench.push(*(prepared() for _ in range(4)))
    with psycopg.connect(dsn) as connection:
        connection.execute("select from chancy.jobs where id = any(%s) for update", (ids[::2],))
        assert [one.id for one in await bench.claim(thorough=thorough)] == ids[1::2]
    assert [one.id for one in await bench.claim()] == ids[::2]


async def test_claims_from_the_front_and_after_many_jobs_take_turns(
    bench: Bench, dsn: str, no_front_scans: None
) -> None:
    await bench.push(*(prepared() for _ in range(80)))
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "select pg_advisory_xact_lock(hashtext(chancy.channel() || '.claim'),"
            " hashtext('default'))"
        )
        for limit, thorough in ((70, True), (10, False)):
            began = time.monotonic()
            assert len(await bench.claim(limit, thorough=thorough)) == limit
            assert time.monotonic() - began > 0.9, "it waits for a second"


async def test_claim_under_way_takes_no_job_that_was_pushed_after_a_pause(
    bench: Bench, dsn: str
) -> None:
    blocked = f"select 1 from pg_stat_activity where {BLOCKED}"
    ask(dsn, "alter function chancy.claim set lock_timeout = '60s'")  # instead of 2 s
    with psycopg.connect(dsn) as connection:
        connection.execute("lock table chancy.jobs in access exclusive mode")
        claiming = asyncio.create_task(bench.claim())
        await eventually(lambda: ask(dsn, blocked))
        assert await bench.broker.pause("default")
        connection.execute("select chancy.push('default', 'shop.jobs.work')")
    assert not await claiming


async def test_worker_drains_every_priority_without_polling(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow scan from the front puts the next one off, with a full backlog of other priorities."""
    due = iter([True])
    monkeypatch.setattr(FrontScans, "due", lambda *_: next(due, False))
    monkeypatch.setattr("chancy.worker.puller._LADDER_S", ())
    queue = Queue(name="async", executor="async", concurrency=2, poll_interval_s=3_600)
    async with Chancy(dsn, queues=[queue]) as chancy:
        references = await chancy.push_many(
            jobs.note.job(value=number).with_priority(number % 5) for number in range(50)
        )
        async with Worker(chancy):
            for reference in references:
                await reference.wait(30)


@EACH_DRIVER
async def test_hints_end_with_a_session_that_was_lost_while_idle(
    bench: Bench, broker: PostgresBroker, dsn: str, no_front_scans: None
) -> None:
    """The next session may be on a server whose sequence is behind."""
    for _ in range(2):
        await bench.running(*(prepared() for _ in range(10)))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'chancy' and datname = current_database()"
        )
        connection.execute("select setval('chancy.positions', 3)")
    ids = await bench.push(prepared(), prepared())

    async def claimed() -> list[Sequence[Claim]]:
        try:
            return [await bench.claim(thorough=False)]
        except BrokerUnavailable:
            return []

    [found] = await eventually(claimed)
    assert [one.id for one in found] == ids


async def test_claim_takes_a_limited_number_of_bytes(bench: Bench, no_front_scans: None) -> None:
    many = large(8)
    await bench.push(*many)
    found = [await bench.claim(thorough=False) for _ in range(2)]
    assert 1 < len(found[0]) < len(many)
    assert [one.id for claims in found for one in claims] == [one.id for one in many]


async def test_claims_of_jobs_that_are_stored_compressed_become_smaller(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "MOST_TEXT", 65_536)
    monkeypatch.setattr(claiming, "_LEAST_BYTES", 1)
    many = [prepared(arguments=f'{{"x": "{"x" * 900_000}"}}') for _ in range(12)]
    await bench.push(*many)
    found = [len(await bench.claim(6)) for _ in range(3)]
    assert found[0] == 6
    assert 1 <= found[2] <= found[1] < 6


@EACH_DRIVER
async def test_lost_claim_is_recovered_in_pieces(
    bench: Bench, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = large(4)
    await bench.push(*many)
    fetch = broker._claiming.fetch

    async def lose(sql: str, *parameters: object, **options: float) -> object:
        await fetch(sql, *parameters, **options)
        raise BrokerUnavailable("the response was lost")

    with monkeypatch.context() as patch:
        patch.setattr(broker._claiming, "fetch", lose)
        with pytest.raises(BrokerUnavailable):
            await bench.claim()
        for claim in broker._claims._states[bench.worker_id, "default"].unanswered:
            for _ in range(3):
                claim.checked_at = 0.0
                with pytest.raises(BrokerUnavailable):
                    await bench.claim()
            claim.checked_at = 0.0
    pieces = [await bench.claim() for _ in range(len(many) + 1)]
    assert max(map(len, pieces)) < len(many)
    assert [one.id for claims in pieces for one in claims] == [one.id for one in many]
    assert {one.attempt for claims in pieces for one in claims} == {1}
    assert len({one.lease for claims in pieces for one in claims}) == 1


async def test_large_jobs_run_over_a_slow_line(
    dsn: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together take longer than the deadline of a claim."""
    monkeypatch.setattr("chancy.postgres.claim.claims._DEADLINE_S", 0.5)
    queue = Queue(name="async", executor="async", concurrency=20)
    async with Chancy(dsn, queues=[queue]) as pusher:
        references = await pusher.push_many(
            jobs.discard.job(value=secrets.token_hex(200_000)) for _ in range(12)
        )
        proxy.bytes_per_s = 4_000_000
        async with Chancy(proxy.dsn(dsn), queues=[queue]) as chancy, Worker(chancy):
            for reference in references:
                await reference.wait(30)
            found = await pusher.get_jobs([reference.id for reference in references])
    assert [job.attempt for job in found.values()] == [1] * 12


async def test_late_push_is_found_beside_a_held_snapshot_without_reading_its_dead_entries(
    bench: Bench, broker: PostgresBroker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.postgres.claim.hints._SAMPLE_S", 0.0)
    monkeypatch.setattr("chancy.postgres.claim.hints._TRAIL_S", 3_600.0)
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn) as late:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from chancy.jobs")
        ask(
            dsn,
            "with dead as (insert into chancy.jobs (id, pos, state, queue, func)"
            " select gen_random_uuid(), nextval('chancy.positions'), 0, 'default', 'a.b'"
            " from generate_series(1, 20000) returning id) select count(*) from dead",
        )
        ask(dsn, "with gone as (delete from chancy.jobs returning id) select count(*) from gone")
        await bench.running(prepared())
        hints = broker._claims._states[bench.worker_id, "default"].hints
        monkeypatch.setattr(hints._front_scans, "slow", True)
        monkeypatch.setattr(hints._front_scans, "ended", lambda *_, **__: None)
        monkeypatch.setattr(hints._front_scans, "due", lambda _: False)
        monkeypatch.setattr(hints._short_scans, "due", lambda _: True)

        async def settled() -> bool:
            """Other databases of the server may have transactions in progress."""
            await bench.running(prepared())
            return hints._settled >= 20_000

        await eventually(settled)
        ((job,),) = ask(late, "select chancy.push('default', 'shop.jobs.work')")
        for _ in range(5):
            await bench.running(prepared())
        late.commit()
        plan = present(hints.plan(0.0, thorough=False))
        assert [one.id for one in await bench.claim(thorough=False)] == [job]
        await bench.push(prepared())
        claim = (
            f"select from chancy.claim('{bench.worker_id}', gen_random_uuid(), 'default', 1, 9,"
            " %s, %s)"
        )

        def pages(*lanes: list[int]) -> int:
            found = 0
            with psycopg.connect(dsn) as connection:
                for _ in range(2):  # the first one plans
                    explain = f"explain (analyze, buffers, format json) {claim}"
                    ((found_plan,),) = ask(connection, explain, lanes)
                    found = functions.buffers(found_plan[0]["Plan"])
                    connection.rollback()
            return found

        short, front = pages([0], plan[1]), pages([], [])
        assert short < 60, (short, front)
        assert front > 300, (short, front)


async def test_jobs_behind_the_hints_do_not_wait_for_scans_that_time_out(
    bench: Bench,
    broker: PostgresBroker,
    no_front_scans: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As beside a snapshot that is held for long, with a statement_timeout."""

    async def claim() -> list[UUID]:
        found = await broker.claim("default", worker_id=bench.worker_id, limit=5, thorough=True)
        return [claim.id for claim in found]

    fetch = broker._claiming.fetch

    async def timing_out(sql: str, *params: object, **rest: float) -> Sequence[Row]:
        if sql == broker.sql.claim_front:
            raise StatementFailed("canceling statement", sqlstate="57014")
        return await fetch(sql, *params, **rest)

    assert await claim() == []
    first = await bench.push(prepared())
    assert await claim() == first
    monkeypatch.setattr(broker._claiming, "fetch", timing_out)
    with pytest.raises(StatementFailed):
        await claim()
    for _ in range(3):
        pushed = await bench.push(prepared())
        assert await claim() == pushed
    with pytest.raises(StatementFailed):  # it does not pretend that there are no others
        await claim()
    monkeypatch.setattr(broker._claiming, "fetch", fetch)
    monkeypatch.setattr(FrontScans, "due", lambda *_: True)
    assert await claim() == []
