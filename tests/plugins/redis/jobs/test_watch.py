"""Who hears which notices."""

from __future__ import annotations

import asyncio

from chancy.broker.notices import Notice, NoticeKind
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.testing.conformance.bench import Bench, prepared


async def test_the_probe_of_another_is_told_to_nobody(redis_url: str) -> None:
    """Two workers begin at one moment: each asks whether it hears itself, and both hear that."""
    one, other = [RedisBroker(RedisSettings(url=redis_url)) for _ in range(2)]
    for broker in (one, other):
        await broker.open()
    try:
        bench = Bench(one)
        await bench.prepare()
        told: list[Notice] = []
        mine, theirs = await one.subscribe(), await other.subscribe()
        hearing = asyncio.create_task(mine.receive(0.3, told.append))
        assert await theirs.probe(5.0) == []
        assert await hearing == told == []
        hearing = asyncio.create_task(mine.receive(5.0, told.append))
        await asyncio.sleep(0)
        await theirs.probe(5.0)
        bench = Bench(one)
        await bench.prepare()
        await bench.push(prepared())
        heard = await hearing
        assert told == heard == [Notice(NoticeKind.WAKE, "default")]
        for subscription in (mine, theirs):
            await subscription.close()
    finally:
        for broker in (one, other):
            await broker.close()
