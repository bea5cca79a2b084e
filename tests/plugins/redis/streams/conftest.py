"""Clients of a single server and of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams import shop


@pytest.fixture(params=["alone", pytest.param("cluster", marks=pytest.mark.chaos)])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A single server, and in the long runs a cluster of three primaries."""
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
    return {"url": url, "cluster": clustered}


@pytest.fixture
async def link(place: dict[str, Any]) -> AsyncIterator[RedisClient]:
    made = RedisClient(RedisSettings(**place, prefix="t:"))
    yield made
    await made.close()


@pytest.fixture
async def alone(redis_url: str) -> AsyncIterator[RedisClient]:
    made = RedisClient(RedisSettings(url=redis_url, prefix="t:"))
    yield made
    await made.close()


@pytest.fixture
async def streams(place: dict[str, Any]) -> AsyncIterator[Streams]:
    """Streams without any declarations."""
    made = Streams(RedisSettings(**place, prefix="t:"))
    yield made
    await made.link.close()


@pytest.fixture
def shop_streams(streams: Streams) -> Streams:
    """The streams of the application that tests of commands use."""
    shop.declare(streams)
    return streams
