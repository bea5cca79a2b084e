"""What the tests of jobs share that are in Postgres although their queue is in Redis."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from chancy import Chancy, Plugin, Queue
from chancy.broker.optional import Adoption, SqlStore
from chancy.plugins.redis import RedisBroker, RedisPlugin
from chancy.routing.router import RoutedBroker

FAST = Queue(name="fast", executor="async", broker="redis")


@asynccontextmanager
async def application(
    dsn: str, url: str, *plugins: Plugin, queue: Queue = FAST
) -> AsyncGenerator[Chancy]:
    plugins = (RedisPlugin(url=url), *plugins)
    async with Chancy(dsn, queues=[queue], plugins=plugins, pool_size=3) as chancy:
        await chancy.declare(queue)
        yield chancy


async def fetch(chancy: Chancy, sql: str, *parameters: object) -> Sequence[Sequence[Any]]:
    assert isinstance(chancy.broker, SqlStore)
    return await chancy.broker.fetch(sql, *parameters)


async def insert(chancy: Chancy, numbers: Sequence[int], meta: str | None = None) -> list[UUID]:
    """Push jobs by SQL; each notes its number."""
    rows = await fetch(
        chancy,
        "select chancy.push('fast', 'tests.support.jobs.note', jsonb_build_object('value', n),"
        " meta => $2::text::jsonb) from unnest($1::int[]) as n",
        list(numbers),
        meta,
    )
    return [row[0] for row in rows]


async def plane(chancy: Chancy) -> RedisBroker:
    """What is in Redis."""
    assert isinstance(chancy.broker, RoutedBroker)
    found = await chancy.broker.brokers.ready("redis")
    assert isinstance(found, RedisBroker)
    return found


def plugin(chancy: Chancy) -> RedisPlugin:
    (found,) = (one for one in chancy.hooks.plugins if isinstance(one, RedisPlugin))
    return found


async def adoption(chancy: Chancy) -> Adoption:
    found = (await plane(chancy)).adoption(chancy.control)
    assert found is not None
    return found


async def left(chancy: Chancy) -> tuple[int, int]:
    """Unfinished jobs in Postgres, and those that are on their way."""
    (row,) = await fetch(
        chancy,
        "select (select count(*) from chancy.jobs), (select count(*) from chancy.redis_moves)",
    )
    return row[0], row[1]


async def arrived(chancy: Chancy) -> bool:
    return await left(chancy) == (0, 0)
