"""One notification of many workers stands for those of the pushes that follow it closely."""

from __future__ import annotations

import asyncio

import pytest

from chancy import Chancy, Queue, Worker
from chancy.broker.notices import Notice, NoticeKind
from chancy.errors import StatementFailed
from chancy.postgres.broker import PostgresBroker
from chancy.testing.conformance.bench import Bench, prepared
from chancy.worker.crowd import Crowd
from tests.support import jobs
from tests.support.waiting import eventually

#: Claims have locks of their own.
_GUARDS = (
    "pg_locks where locktype = 'advisory' and granted"
    " and classid = (hashtext(chancy.channel())::bigint & 4294967295)::oid"
    " and database = (select oid from pg_database where datname = current_database())"
)


async def guarded(broker: PostgresBroker) -> bool:
    [[count]] = await broker.fetch(f"select count(*) from {_GUARDS}")
    return bool(count)


async def end_suppression(broker: PostgresBroker) -> None:
    assert await broker.fetch(f"select pg_cancel_backend(pid) from {_GUARDS}") == [(True,)]


async def test_pushes_meanwhile_notify_nobody(dsn: str) -> None:
    broker = PostgresBroker(dsn)
    await broker.open()
    bench = Bench(broker)
    await bench.prepare()
    subscription = await broker.subscribe()
    assert await subscription.probe(30.0) == []
    # For longer than the test takes on any machine.
    suppressing = asyncio.create_task(broker.suppress("default", 300.0))
    await eventually(lambda: guarded(broker))
    await bench.push(prepared())
    await bench.push(prepared(queue="other"))
    assert [notice.token for notice in await subscription.receive(30.0)] == ["other"]
    assert not suppressing.done()
    async with broker.transaction() as within:  # of a caller's: it may be open for long
        await broker.push([prepared()], within=within)
    assert [notice.token for notice in await subscription.receive(30.0)] == ["default"]
    await end_suppression(broker)
    with pytest.raises(StatementFailed, match="57014"):
        await suppressing
    await broker.suppress("default", 0.01)
    await bench.push(prepared())
    assert [notice.token for notice in await subscription.receive(30.0)] == ["default"]
    await subscription.close()
    await broker.close()


async def test_a_worker_of_many_claims_without_further_notifications(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Crowd, "suppress_s", lambda crowd, notice: 300.0)
    notices: list[Notice] = []
    jobs.noted.clear()
    on_notice = Worker._on_notice

    def recorded(worker: Worker, session: object, notice: Notice) -> None:
        notices.append(notice)
        on_notice(worker, session, notice)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "_on_notice", recorded)
    queues = [Queue("async", executor="async")]
    async with Chancy(dsn, queues=queues, no_default_plugins=True) as chancy, Worker(chancy) as one:
        assert isinstance(chancy.broker, PostgresBroker)
        broker = chancy.broker
        await eventually(lambda: one.listening)
        # The push has the guard, too, until it has notified.
        await (await chancy.push(jobs.note.job(value=0))).wait(30)
        await eventually(lambda: guarded(broker))
        for value in range(1, 4):
            await (await chancy.push(jobs.note.job(value=value))).wait(30)
        assert [notice.kind for notice in notices].count(NoticeKind.WAKE) == 1
        await end_suppression(broker)
    assert jobs.noted == [0, 1, 2, 3]
