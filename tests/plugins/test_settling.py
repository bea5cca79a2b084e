"""A plugin that writes in settling transactions, beside a worker."""

from __future__ import annotations

from collections.abc import Sequence

from chancy import Chancy, Settlement, State, Worker
from chancy.broker.transaction import Transaction
from chancy.plugin.plugin import Plugin
from tests.plugins.recovery.test_recovery import orphan
from tests.support import jobs
from tests.support.sql import ask


class Ledger(Plugin):
    """Stores the settlements that it receives."""

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        sql = "insert into booked select * from unnest($1::uuid[], $2::int[])"
        await tx.fetch(sql, [one.id for one in batch], [int(one.state) for one in batch])


async def test_it_receives_what_is_rescued(dsn: str) -> None:
    ask(dsn, "create table booked (id uuid primary key, state int)")
    async with Chancy(dsn, plugins=[Ledger()]) as chancy:
        reference = await chancy.push(jobs.note.job("lost"))
        ask(dsn, "update chancy.jobs set crashes = 2")
        orphan(dsn, silent="1 hour", registered=False, started=True)
        async with Worker(chancy, queues=[]):
            done = await reference.wait(10)
    assert (done.state, done.crashes) == (State.FAILED, 3)
    assert "crash 3 of 3" in done.errors[-1]["message"]
    booked = ask(dsn, "select id, state from booked")
    assert booked == [(reference.id, State.FAILED)]
