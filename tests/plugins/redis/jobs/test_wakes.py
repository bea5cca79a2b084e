"""Which workers are woken and promote due jobs, and which notifications they receive."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from chancy.broker.notices import Notice, NoticeKind, Subscription
from chancy.errors import StatementFailed
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.queue.queue import Queue
from chancy.queue.rules import GlobalConcurrency
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, record, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

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
        notices = await self.subscription.probe(30.0)
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
        began = time.monotonic()
        for _ in range(MANY):
            await workers[0].bench.push(prepared())
        most = 1 + math.ceil(time.monotonic() - began)
        heard = await asyncio.gather(*(one.heard() for one in workers))
        # Twice, if a second has passed meanwhile.
        assert all(1 <= len(notices) <= most for notices in heard)


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


async def test_the_probe_of_another_subscription_proves_this_one(redis_url: str) -> None:
    async with opened(redis_url) as (one, bench), opened(redis_url) as (other, _):
        told: list[Notice] = []

        def handle(notice: Notice) -> bool:
            told.append(notice)
            return notice.kind is NoticeKind.PROBE

        mine, theirs = await one.subscribe(), await other.subscribe()
        hearing = asyncio.create_task(mine.receive(30.0, handle))
        assert await theirs.probe(30.0) == []
        await eventually(lambda: [notice.kind for notice in told] == [NoticeKind.PROBE])
        await bench.push(prepared())
        assert await hearing == told[1:] == [Notice(NoticeKind.WAKE, "default")]
        for subscription in (mine, theirs):
            await subscription.close()


async def test_a_refused_subscription_leaves_no_connection_open(
    own_redis: Callable[..., RedisServer],
) -> None:
    server = own_redis()
    server.ask("ACL SETUSER shop on >secret ~* &* +@all -subscribe")
    url = server.url.replace("redis://", "redis://shop:secret@")
    broker = RedisBroker(RedisSettings(url=url))
    await broker.open()
    try:
        for _ in range(3):
            with pytest.raises(StatementFailed, match="Redis refused access"):
                await broker.subscribe()
        # The one for commands.
        await eventually(lambda: server.ask("CLIENT LIST TYPE NORMAL").count(b"name=chancy") == 1)
    finally:
        await broker.close()


async def test_of_many_workers_one_promotes_often(broker: RedisBroker, bench: Bench) -> None:
    async def ahead(worker_id: uuid.UUID | None) -> int:
        return (await broker.promote(10, worker_id=worker_id)).ahead

    few = [uuid.uuid4(), uuid.uuid4()]
    assert [await ahead(one) for one in few] == [0, 0]
    first, second, third, *_, last = ids = [uuid.UUID(int=n) for n in range(1, 40)]
    for worker_id in ids:
        await broker.register(record(worker_id))
    assert [await ahead(one) for one in (first, second, third, last)] == [0, 3, 4, 20]
    assert [await ahead(one) for one in (first, None)] == [0, 0]
    # One that is killed is replaced when its key expires, one that leaves at once.
    promoter = f"{broker.tag}:promoter"
    assert 0 < await broker.client.command("PTTL", promoter) <= 3_000
    await broker.client.command("DEL", promoter)
    assert [await ahead(one) for one in (second, first)] == [0, 2]
    await broker.unregister(second)
    assert [await ahead(one) for one in (third, first)] == [0, 2]
    # The others promote what is due when they call.
    [claim] = await bench.running()
    await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=-1.0))
    promotion = await broker.promote(10, worker_id=first)
    assert promotion == (1, None, 2)
