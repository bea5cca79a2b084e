"""Services on a server alone and on a cluster, and on a server to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugins.redis.services.shop import Shop, shop
from tests.support.redis_fixtures import RedisServer


@pytest.fixture(params=["alone", pytest.param("cluster", marks=pytest.mark.chaos)])
def place(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Services on a single server, and in the long runs on a cluster."""
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
    with shop(url, cluster=clustered) as made:
        yield made


@pytest.fixture
def alone(redis_url: str) -> Iterator[Shop]:
    """Services on a single server."""
    with shop(redis_url, cluster=False) as made:
        yield made


@pytest.fixture
def apart(server: RedisServer) -> Iterator[Shop]:
    """Services on the server that only this test uses, past the proxy in front of it."""
    with shop(server.url, cluster=False) as made:
        yield made
