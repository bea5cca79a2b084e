"""The sessions of a worker: two while it is idle, few under load."""

from __future__ import annotations

import asyncio
import statistics
import uuid
from dataclasses import replace

import asyncpg
import pytest
from psycopg.conninfo import make_conninfo

from chancy import Chancy, Queue, RateLimit, Worker
from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.postgres import drivers
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers import pool
from chancy.queue.rules import Rule
from chancy.worker.supervisor.supervisor import SESSIONS
from tests.support import jobs
from tests.support.roles import roles
from tests.support.sql import ask
from tests.support.waiting import eventually, gives

ASYNC = Queue(name="async", executor="async")
COUNT = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'chancy%'
"""

END_SESSIONS = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s"


@pytest.fixture(autouse=True)
def idle_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_IDLE_S", 0.3)


async def test_a_worker_has_two_sessions_when_idle_and_few_under_load(dsn: str) -> None:
    counter = await asyncpg.connect(dsn)

    async def count() -> int:
        return int(await counter.fetchval(COUNT))

    try:
        async with Chancy(dsn, queues=[ASYNC]) as chancy, Worker(chancy) as worker:
            await eventually(lambda: worker.listening)

            async def idle_for_long() -> bool:
                # One more may be needed for a moment, if two things happen at once.
                counts: list[int] = []
                for _ in range(50):
                    counts.append(await count())
                    await asyncio.sleep(0.02)
                return max(counts) <= 3 and sum(number == 2 for number in counts) > 40

            await eventually(idle_for_long, timeout=60)
            async with Chancy(dsn, queues=[ASYNC], pool_size=1) as other:
                await other.push_many(jobs.note.job(value=n) for n in range(8_000))
                busy = [await count() - 1]
                while worker.settled < 8_000:
                    busy.append(await count() - 1)
                    await asyncio.sleep(0.02)
            # More may be open for moments: a statement that takes long is not waited for.
            assert statistics.median(busy) <= SESSIONS, busy
            await eventually(lambda: gives(count(), 2))
    finally:
        await counter.close()


@pytest.mark.parametrize("rules", [(), (RateLimit(100, 60),)])
async def test_callers_that_use_all_of_their_sessions_block_no_claim(
    dsn: str, rules: tuple[Rule, ...]
) -> None:
    queues = [replace(ASYNC, rules=rules)]
    async with Chancy(dsn, queues=queues, pool_size=2) as chancy, Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        reference = await chancy.push(jobs.note.job(value=1))
        await reference.wait(30)
        broker = chancy.broker
        assert isinstance(broker, PostgresBroker)
        holder = await asyncpg.connect(dsn)
        await holder.execute("select pg_advisory_lock(1)")
        blocked = [
            asyncio.create_task(broker.fetch("select pg_advisory_lock_shared(1)")) for _ in range(4)
        ]
        settled = worker.settled
        async with Chancy(dsn, queues=[ASYNC]) as other:
            await other.push(jobs.note.job(value=2))
            await eventually(lambda: worker.settled > settled)
        assert not any(task.done() for task in blocked)
        await holder.close()
        await asyncio.gather(*blocked)


async def test_leadership_and_recovery_need_no_session_of_callers(dsn: str) -> None:
    """A caller has the only session for callers in use, as a job with a long transaction does."""
    plugins = [Leadership(renew_s=0.2), Recovery(sweep_s=0.2)]
    monitor = await asyncpg.connect(dsn)
    dead = uuid.uuid4()
    jobs.noted.clear()
    try:
        async with Chancy(dsn, queues=[ASYNC], plugins=plugins, pool_size=1) as chancy:
            await chancy.push(jobs.note.job(value="of a dead worker"))
            await monitor.execute(
                "insert into chancy.workers (id, host, pid) values ($1, 'gone', 1)", dead
            )
            claim = "select from chancy.claim($1, gen_random_uuid(), 'async', 1, 10000, null, null)"
            await monitor.execute(claim, dead)
            await monitor.execute("delete from chancy.workers where id = $1", dead)
            async with Worker(chancy) as worker, chancy.transaction() as held:
                await held.fetch("select 1")
                term = await worker.leader.wait()
                renewed = "select renewed_at from chancy.leadership_leases"
                before = await monitor.fetchval(renewed)
                again = f"select ({renewed}) > $1"
                await eventually(lambda: monitor.fetchval(again, before))
                assert worker.leader.term == term
                await eventually(lambda: jobs.noted == ["of a dead worker"])
    finally:
        await monitor.close()


async def test_long_statements_of_plugins_delay_no_upkeep(dsn: str) -> None:
    async with Chancy(dsn, queues=[ASYNC], pool_size=1) as chancy, Worker(chancy) as worker:
        store = worker.broker
        assert isinstance(store, PostgresBroker)
        holder = await asyncpg.connect(dsn)
        await holder.execute("select pg_advisory_lock(1)")
        blocked = [
            asyncio.create_task(store.fetch("select pg_advisory_lock_shared(1)")) for _ in range(4)
        ]
        waiting = (
            "select count(*) = 3 from pg_locks where locktype = 'advisory' and not granted and"
            " database = (select oid from pg_database where datname = current_database())"
        )
        await eventually(lambda: holder.fetchval(waiting))
        before = await holder.fetchval("select beat_at from chancy.workers")
        await chancy.broker.beat(worker.worker_id)
        assert await holder.fetchval("select beat_at from chancy.workers") > before
        assert not any(task.done() for task in blocked)
        await holder.close()
        await asyncio.gather(*blocked)


async def test_a_transaction_of_a_plugin_may_run_other_statements_of_it(dsn: str) -> None:
    async with Chancy(dsn, queues=[ASYNC], pool_size=1) as chancy, Worker(chancy) as worker:
        store = worker.broker
        assert isinstance(store, PostgresBroker)
        async with asyncio.timeout(30), store.transaction() as transaction:
            assert await transaction.fetch("select 1") == [(1,)]
            assert await store.fetch("select 2") == [(2,)]
            assert await store.counts() == await chancy.counts()


async def test_a_statement_of_a_plugin_may_end_after_the_broker_was_closed(dsn: str) -> None:
    broker = PostgresBroker(dsn)
    await broker.open()
    upkeep = broker.for_upkeep()
    monitor = await asyncpg.connect(dsn)
    waiting = (
        "select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted and"
        " database = (select oid from pg_database where datname = current_database())"
    )
    try:
        for _ in range(2):
            await monitor.execute("select pg_advisory_lock(1)")
            running = asyncio.create_task(upkeep.fetch("select pg_advisory_lock_shared(1)::text"))
            await eventually(lambda: monitor.fetchval(waiting))
            await broker.close()
            await monitor.execute("select pg_advisory_unlock_all()")
            assert [tuple(row) for row in await running] == [("",)]
            await broker.open()
            assert [tuple(row) for row in await upkeep.fetch("select 2")] == [(2,)]
    finally:
        await monitor.close()
        await broker.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_role_that_is_refused_later_is_an_outage(dsn: str, driver: drivers.Name) -> None:
    """For example after a change of the password: a worker continues once that is undone."""
    role = f"refused_{uuid.uuid4().hex[:12]}"
    with roles(dsn, [role]):
        own = make_conninfo(dsn, user=role)
        broker = PostgresBroker(own, driver=driver)
        with pytest.raises(ConfigurationError, match="not permitted to log in"):
            await broker.open()
        ask(dsn, f"alter role {role} login")
        await broker.open()
        try:
            ask(dsn, f"alter role {role} nologin")
            ask(dsn, END_SESSIONS, [role])

            async def refused() -> bool:
                with pytest.raises(BrokerUnavailable) as failure:
                    await broker.fetch("select 1")
                return "not permitted to log in" in str(failure.value)

            await eventually(refused)
            with pytest.raises(BrokerUnavailable, match="not permitted to log in"):
                await broker.subscribe()
            ask(dsn, f"alter role {role} login")
            await broker.fetch("select 1")
        finally:
            await broker.close()
