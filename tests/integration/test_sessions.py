"""The sessions of a worker: two while it is idle, few under load."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from chancy import Chancy, Queue, Worker
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers import pool
from tests.support import jobs
from tests.support.waiting import eventually

ASYNC = Queue(name="async", executor="async")
COUNT = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'chancy%'
"""


@pytest.fixture(autouse=True)
def idle_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_IDLE_S", 0.3)


async def test_a_worker_has_two_sessions_when_idle_and_few_under_load(dsn: str) -> None:
    counter = await asyncpg.connect(dsn)

    async def count() -> int:
        return int(await counter.fetchval(COUNT))

    async def idle() -> bool:
        return await count() == 2

    try:
        async with Chancy(dsn, queues=[ASYNC]) as chancy, Worker(chancy) as worker:
            await eventually(lambda: worker.listening)

            async def idle_for_long() -> bool:
                # One more may be needed for a moment, if two things happen at once.
                counts: list[int] = []
                for _ in range(100):
                    counts.append(await count())
                    await asyncio.sleep(0.02)
                return max(counts) <= 3 and sum(number == 2 for number in counts) > 80

            await eventually(idle_for_long, timeout=60)
            async with Chancy(dsn, queues=[ASYNC], pool_size=1) as other:
                await other.push_many(jobs.note.job(value=n) for n in range(8_000))
                busy = [await count() - 1]
                while worker.settled < 8_000:
                    busy.append(await count() - 1)
                    await asyncio.sleep(0.02)
            # On a busy machine more are open for moments: statements wait for others for long, and
            # sessions that are not needed take long to close.
            assert min(busy) <= 4
            await eventually(idle)
    finally:
        await counter.close()


async def test_callers_that_use_all_of_their_sessions_block_no_claim(dsn: str) -> None:
    async with Chancy(dsn, queues=[ASYNC], pool_size=2) as chancy, Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        reference = await chancy.push(jobs.note.job(value=1))
        await reference.wait(10)
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
            await eventually(lambda: worker.settled > settled, timeout=10)
        assert not any(task.done() for task in blocked)
        await holder.close()
        await asyncio.gather(*blocked)
