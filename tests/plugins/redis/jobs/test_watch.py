"""Who hears which notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from chancy.broker.notices import Notice, NoticeKind, Topic
from chancy.errors import StatementFailed
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.testing.conformance.bench import prepared
from tests.plugins.redis.jobs.brokers import opened
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


async def test_the_probe_of_another_subscription_proves_this_one(redis_url: str) -> None:
    async with opened(redis_url) as (one, bench), opened(redis_url) as (other, _):
        told: list[Notice] = []

        def handle(notice: Notice) -> bool:
            told.append(notice)
            return notice.kind is NoticeKind.PROBE

        mine, theirs = await one.subscribe(), await other.subscribe()
        hearing = asyncio.create_task(mine.receive(30.0, handle))
        assert await theirs.probe(5.0) == []
        await eventually(lambda: [notice.kind for notice in told] == [NoticeKind.PROBE])
        await bench.push(prepared())
        assert await hearing == told[1:] == [Notice(NoticeKind.WAKE, "default")]
        for subscription in (mine, theirs):
            await subscription.close()


async def test_only_processes_that_wait_for_jobs_receive_completions(redis_url: str) -> None:
    async with opened(redis_url) as (broker, _):

        async def receivers() -> list[int]:
            channels = [f"{broker.tag}:{name}" for name in ("notices", "ends")]
            answer = await broker.client.command("PUBSUB", "NUMSUB", *channels)
            return list(answer[1::2])

        work = await broker.subscribe()
        assert await work.probe(5.0) == []
        assert await receivers() == [1, 0]
        finished = await broker.subscribe(Topic.FINISHED)
        assert await finished.probe(5.0) == []
        assert await receivers() == [1, 1]
        for subscription in (work, finished):
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
