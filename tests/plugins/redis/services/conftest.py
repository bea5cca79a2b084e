"""Services on a server alone and on a cluster, and on a server to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugins.redis.services.shop import Shop, shop
from tests.support.redis_fixtures import RedisServer


@pytest.fixture(params=["alone", pytest.param("cluster", marks=pytest.mark.chaos)])
def place(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Of a server, and of a cluster in the long runs: nothing but the way to keys differs."""
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
    with shop(url, cluster=clustered) as made:
        yield made


@pytest.fixture
def alone(redis_url: str) -> Iterator[Shop]:
    """Of a server."""
    with shop(redis_url, cluster=False) as made:
        yield made


@pytest.fixture
def apart(server: RedisServer) -> Iterator[Shop]:
    """Of that server, by another way."""
    with shop(server.url, cluster=False) as made:
        yield made
