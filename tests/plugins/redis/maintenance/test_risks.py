"""What a worker says of the configuration of a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.maintenance.upkeep import risks
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.shard import ShardClient
from tests.support.redis_fixtures import RedisServer


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"appendonly": "yes"}, []),
        ({}, ["appendonly=no"]),
        (
            {"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"},
            ["maxmemory_policy=allkeys-lru", "appendonly=no"],
        ),
        ({"appendonly": "yes", "maxmemory_policy": "allkeys-lru"}, []),
        ({"appendonly": "yes", "replicaof": "127.0.0.1 1"}, ["role=replica"]),
    ],
)
async def test_settings_that_may_lose_jobs_are_logged(
    own_redis: Callable[..., RedisServer], settings: dict[str, str], wanted: list[str]
) -> None:
    server = own_redis(**settings)
    link = ShardClient(RedisClient(RedisSettings(url=server.url)))
    await link.open()
    try:
        found = risks(await link.command("INFO", "ALL"))
    finally:
        await link.close()
    assert [one.partition(":")[0] for one in found] == wanted
