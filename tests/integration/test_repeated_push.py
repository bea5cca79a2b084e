"""A push is repeated after its response was lost, and its jobs have run and were deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from chancy import Chancy
from chancy.errors import BrokerUnavailable
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.push.coalescing import PushCoalescer
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.support.sql import ask

_SLOT = "select extract(epoch from clock_timestamp())::bigint / 60 % 3"


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[PostgresBroker]:
    async with Chancy(dsn) as chancy:
        assert isinstance(chancy.broker, PostgresBroker)
        yield chancy.broker


@pytest.fixture
async def bench(broker: PostgresBroker) -> Bench:
    bench = Bench(broker)
    await bench.prepare()
    await broker.declare(Queue(name="default", keep_finished=False), upsert=True)
    return bench


def slots(session: psycopg.Connection) -> set[int]:
    """The slots of the table that have ids."""
    rows = session.execute("select distinct slot from chancy.recently_finished").fetchall()
    return {slot for (slot,) in rows}


def fill(session: psycopg.Connection) -> None:
    session.execute(
        "insert into chancy.recently_finished select slot, array[gen_random_uuid()]"
        " from generate_series(0, 2) as slot"
    )


async def test_a_lost_push_that_is_stored_and_run_during_the_repetition_runs_once(
    dsn: str, broker: PostgresBroker, bench: Bench
) -> None:
    """As where its commit takes long: the repetition has looked for the job before that."""
    job, sent = prepared(), list[str]()

    async def fetch(sql: str, *params: object) -> Sequence[Sequence[object]]:
        sent.append(sql)
        if len(sent) == 1:
            raise BrokerUnavailable("the response is lost")
        found = await broker.fetch(sql, *params)
        if len(sent) == 2:
            assert found == []
            (claim,) = await bench.running(job)
            await bench.settle(settlement(claim, State.SUCCEEDED))
        return found

    pushes = PushCoalescer(fetch, broker.transaction, broker.sql, lambda: None)
    assert await pushes.push([job]) == {}
    assert sent[1:] == [*[broker.sql.pushed_before] * 2, broker.sql.confirm]
    assert ask(dsn, "select id from chancy.jobs") == []


async def test_ids_of_finished_jobs_are_remembered_where_a_queue_does_not_keep_them(
    dsn: str, broker: PostgresBroker, bench: Bench
) -> None:
    claims = await bench.running(prepared(), prepared())
    await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
    ids = [claim.id for claim in claims]
    found = await broker.fetch(broker.sql.pushed_before, ids)
    assert {tuple(row) for row in found} == {(id, True) for id in ids}
    await broker.declare(Queue(name="default"), upsert=True)
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("truncate chancy.recently_finished")
        claims = await bench.running(prepared())
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
        assert slots(session) == set()


async def test_a_worker_that_settles_removes_the_oldest_ids(
    dsn: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.postgres.settle.settlements._FORGET_EVERY_S", 0.0)
    with psycopg.connect(dsn, autocommit=True) as session:
        before, after = 0, 1
        while before != after:  # once more if a minute ends meanwhile
            session.execute("truncate chancy.recently_finished")
            fill(session)
            ((before,),) = session.execute(_SLOT).fetchall()
            session.execute(  # jobs that finish every hour all use one slot
                "insert into chancy.recently_finished (ids, at)"
                " values (array[gen_random_uuid()], now() - interval '3 minutes')"
            )
            claims = await bench.running(prepared())
            await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
            ((after,),) = session.execute(_SLOT).fetchall()
        assert {0, 1, 2} - slots(session) == {(before + 1) % 3}
        old = "select from chancy.recently_finished where at < now() - interval '2 minutes'"
        assert session.execute(old).fetchall() == []


async def test_a_partition_that_others_read_delays_no_settlement_and_keeps_no_old_ids(
    dsn: str, bench: Bench
) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        fill(session)
        session.execute("update chancy.recently_finished set at = now() - interval '3 minutes'")
    with psycopg.connect(dsn) as reader, psycopg.connect(dsn, autocommit=True) as session:
        assert slots(reader) == {0, 1, 2}
        claims = await bench.running(prepared())
        assert await bench.settle(settlement(claims[0], State.SUCCEEDED)) == frozenset()
        old = "select from chancy.recently_finished where at < now() - interval '2 minutes'"
        assert len(session.execute(old).fetchall()) == 2
    assert await bench.broker.get([claims[0].id]) == {}
