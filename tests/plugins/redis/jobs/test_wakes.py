"""Which workers are woken when jobs become pending: no more than can use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from chancy.broker.notices import Notice, NoticeKind, Subscription
from chancy.plugins.redis import RedisBroker
from chancy.queue.queue import Queue
from chancy.queue.rules import GlobalConcurrency
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened

WAKE, REWIND = Notice(NoticeKind.WAKE, "default"), Notice(NoticeKind.REWIND, "default")
MANY = 30


@dataclass
class IdleWorker:
    """A process with a worker that has claimed, and found nothing."""

    broker: RedisBroker
    bench: Bench
    subscription: Subscription

    async def heard(self) -> list[Notice]:
        """The notifications since the last call, without the probes of others."""
        notices = await self.subscription.probe(5.0)
        return [one for one in notices if one.kind is not NoticeKind.PROBE]


@asynccontextmanager
async def idle(url: str, number: int, *queues: Queue) -> AsyncGenerator[list[IdleWorker]]:
    async with AsyncExitStack() as stack:
        made: list[IdleWorker] = []
        for _ in range(number):
            broker, bench = await stack.enter_async_context(opened(url, *queues))
            subscription = await broker.subscribe()
            stack.push_async_callback(subscription.close)
            assert await bench.claim() == []
            made.append(IdleWorker(broker, bench, subscription))
        for one in made:
            await one.heard()
        yield made


async def woken(workers: Sequence[IdleWorker], notice: Notice = WAKE) -> list[IdleWorker]:
    """Those that have received a notification since they were asked last, and no other one."""
    heard = [await one.heard() for one in workers]
    assert {notice}.issuperset(found for notices in heard for found in notices)
    return [one for one, notices in zip(workers, heard, strict=True) if notices]


async def test_a_push_wakes_two_of_many_workers(redis_url: str) -> None:
    async with idle(redis_url, MANY) as workers:
        others = workers
        for _ in range(5):
            await workers[0].bench.push(prepared())
            chosen = await woken(workers)
            assert len(chosen) == 2
            # Not the same ones again, before they have claimed.
            assert set(map(id, chosen)) <= set(map(id, others))
            others = [one for one in others if one not in chosen]


async def test_a_push_wakes_all_of_a_few_workers(redis_url: str) -> None:
    async with idle(redis_url, 4) as workers:
        await workers[0].bench.push(prepared())
        assert len(await woken(workers)) == 4


async def test_jobs_that_become_pending_otherwise_wake_a_few_workers(redis_url: str) -> None:
    async with idle(redis_url, MANY) as workers:
        [claim] = await workers[0].bench.running()
        await woken(workers)
        await workers[0].bench.settle(settlement(claim, State.PENDING))
        assert len(await woken(workers, REWIND)) == 2
        [scheduled, due] = [prepared(delay_s=1e6), prepared(delay_s=-1.0)]
        await workers[0].bench.push(scheduled, due)
        assert len(await woken(workers)) == 2
        await workers[0].broker.run_now([scheduled.id])
        assert len(await woken(workers)) == 2


async def test_a_push_of_many_jobs_wakes_as_many_workers_as_can_use_them(redis_url: str) -> None:
    async with idle(redis_url, MANY) as workers:
        await workers[0].bench.push(*(prepared() for _ in range(2 * MANY)))
        left = workers
        while chosen := await woken(left):
            for one in chosen:
                assert len(await one.bench.claim(1)) == 1
            left = [one for one in left if one not in chosen]
        assert left == []


async def test_a_few_jobs_wake_a_few_workers_though_each_takes_one(redis_url: str) -> None:
    async with idle(redis_url, MANY) as workers:
        await workers[0].bench.push(*(prepared() for _ in range(3)))
        left = workers
        while chosen := await woken(left):
            for one in chosen:
                await one.bench.claim(1)
            left = [one for one in left if one not in chosen]
        assert MANY - len(left) <= 8


async def test_a_worker_without_room_is_not_woken(redis_url: str) -> None:
    async with idle(redis_url, MANY) as workers:
        busy = workers[:-1]
        await workers[0].bench.push(*(prepared() for _ in busy))
        for one in busy:
            assert len(await one.bench.claim(1)) == 1
        assert await workers[-1].bench.claim() == []
        await woken(workers)
        await workers[0].bench.push(prepared())
        assert await woken(workers) == workers[-1:]
        [claim] = await workers[-1].bench.claim()
        await workers[-1].bench.settle(settlement(claim, State.SUCCEEDED))
        # It still has room.
        await workers[0].bench.push(prepared())
        assert await woken(workers) == workers[-1:]


async def test_workers_that_no_longer_listen_delay_no_job(redis_url: str) -> None:
    async with idle(redis_url, MANY) as workers:
        for one in workers[1:]:
            await one.subscription.close()
        await workers[0].bench.push(prepared())
        assert await woken(workers[:1]) == workers[:1]


async def test_all_workers_are_woken_if_no_idle_one_listens(redis_url: str) -> None:
    async with idle(redis_url, 4) as workers:
        listens, *deaf = workers
        for one in deaf:
            await one.subscription.close()
        for _ in range(3):
            await deaf[0].bench.claim()
            await deaf[0].bench.push(prepared())
            assert await woken([listens]) == [listens]


async def test_workers_of_which_nothing_is_known_are_all_woken_once_a_second(
    redis_url: str,
) -> None:
    async with idle(redis_url, MANY) as workers:
        client = workers[0].broker.client
        await client.command("DEL", f"{client.tag}:idle:default")
        for _ in range(MANY):
            await workers[0].bench.push(prepared())
        heard = await asyncio.gather(*(one.heard() for one in workers))
        # Twice, if a second has passed meanwhile.
        assert all(notices and len(notices) <= 2 for notices in heard)


async def test_a_rule_that_keeps_jobs_back_wakes_nobody_in_vain(redis_url: str) -> None:
    queue = Queue(name="default", rules=(GlobalConcurrency(1),))
    async with idle(redis_url, MANY, queue) as workers:
        await workers[0].bench.push(*(prepared() for _ in range(MANY)))
        chosen = await woken(workers)
        claims = [len(await one.bench.claim(2)) for one in chosen]
        assert sum(claims) == 1
        assert await woken(workers) == []


async def test_workers_that_have_left_are_forgotten(redis_url: str) -> None:
    async with idle(redis_url, 2) as workers:
        stays, client = workers[0], workers[0].broker.client
        for _ in range(100):
            gone = Bench(workers[1].broker)
            await gone.prepare()
            await gone.claim()
            await gone.broker.unregister(gone.worker_id)
            for _ in range(4):
                assert await stays.bench.claim() == []
        assert await client.command("SCARD", f"{client.tag}:idle:default") < 10
