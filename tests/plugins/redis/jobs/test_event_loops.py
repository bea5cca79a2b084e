"""One application in one event loop after the other, with waiting enough that every lock is waited
for in each of them."""

from __future__ import annotations

import asyncio

import pytest

from chancy import Chancy, Queue, Worker
from chancy.plugins.redis import RedisPlugin
from chancy.routing.router import RoutedSqlBroker
from tests.support import jobs

CROWD = 50


def test_an_application_lives_in_one_event_loop_after_the_other(
    dsn: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [
        Queue(name="async", executor="async", concurrency=CROWD),
        Queue(name="there", executor="async", concurrency=CROWD, broker="redis"),
    ]
    # Few connections, so that callers wait for them.
    chancy = Chancy(
        dsn,
        queues=queues,
        plugins=[RedisPlugin(url=redis_url, max_connections=2)],
        pool_size=2,
    )

    async def crowd() -> None:
        assert isinstance(chancy.broker, RoutedSqlBroker)
        await asyncio.gather(*(chancy.broker.open() for _ in range(3)))
        async with chancy:
            there = await chancy.broker.brokers.ready("redis")
            for heard in await asyncio.gather(*(there.subscribe() for _ in range(3))):
                await heard.close()
        async with chancy, Worker(chancy):
            for queue in queues:
                pushed = [jobs.note.job(number).with_queue(queue.name) for number in range(CROWD)]
                references = await asyncio.gather(*map(chancy.push, pushed))
                ended = (reference.result(timeout_s=20) for reference in references)
                assert await asyncio.gather(*ended) == list(range(CROWD))
            await asyncio.gather(*(chancy.broker.counts() for _ in range(CROWD)))

    for _ in range(3):
        asyncio.run(crowd())
    assert not [record for record in caplog.records if record.exc_info]
