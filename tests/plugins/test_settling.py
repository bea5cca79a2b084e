"""A plugin that writes in the transaction that settles, beside a worker."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import psycopg

from chancy import Chancy, Queue, Settlement, State, Worker
from chancy.broker.transaction import Transaction
from chancy.plugin.plugin import Plugin
from chancy.plugins.retry import Retries
from tests.plugins.recovery.test_recovery import orphan
from tests.support import jobs

ASYNC = Queue(name="async", executor="async")


class Ledger(Plugin):
    """Books what it is told."""

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        sql = "insert into booked select * from unnest($1::uuid[], $2::int[])"
        await tx.fetch(sql, [one.id for one in batch], [int(one.state) for one in batch])


class Torn(Ledger):
    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await super().settling(tx, batch)
        raise RuntimeError("torn")


class Canceller(Ledger):
    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await super().settling(tx, batch)
        await tx.fetch("rollback")


def booked(dsn: str) -> dict[UUID, State]:
    with psycopg.connect(dsn) as session:
        rows = session.execute("select id, state from booked").fetchall()
    return {id: State(state) for id, state in rows}


def make_book(dsn: str) -> None:
    with psycopg.connect(dsn) as session:
        session.execute("create table booked (id uuid primary key, state int)")


async def test_it_receives_every_final_settlement(dsn: str) -> None:
    make_book(dsn)
    plugins = [Ledger(), Retries(False)]
    async with Chancy(dsn, queues=[ASYNC], plugins=plugins) as chancy:
        good = await chancy.push(jobs.note.job("good"))
        bad = await chancy.push(jobs.fail.job())
        async with Worker(chancy):
            await good.wait(10)
            await bad.wait(10)
    assert booked(dsn) == {good.id: State.SUCCEEDED, bad.id: State.FAILED}


async def test_the_jobs_settle_without_one_that_raises(dsn: str) -> None:
    make_book(dsn)
    async with Chancy(dsn, queues=[ASYNC], plugins=[Torn()]) as chancy:
        good = await chancy.push(jobs.note.job("good"))
        async with Worker(chancy):
            assert (await good.wait(10)).state is State.SUCCEEDED
    assert booked(dsn) == {}


async def test_jobs_keep_their_results_beside_a_plugin_that_rolls_back(dsn: str) -> None:
    make_book(dsn)
    async with Chancy(dsn, queues=[ASYNC], plugins=[Canceller()]) as chancy:
        references = [await chancy.push(jobs.note.job(number)) for number in range(6)]
        async with Worker(chancy):
            assert [await one.result(10) for one in references] == list(range(6))
    assert booked(dsn) == {}


async def test_it_receives_what_is_rescued(dsn: str) -> None:
    make_book(dsn)
    async with Chancy(dsn, plugins=[Ledger()]) as chancy:
        reference = await chancy.push(jobs.note.job("lost"))
        with psycopg.connect(dsn) as session:
            session.execute("update chancy.jobs set crashes = 2")
        orphan(dsn, silent="1 hour", registered=False, started=True)
        async with Worker(chancy, queues=[]):
            assert (await reference.wait(10)).state is State.FAILED
    assert booked(dsn) == {reference.id: State.FAILED}
