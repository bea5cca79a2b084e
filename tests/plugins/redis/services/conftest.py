"""Services on a server alone and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugins.redis.services.shop import Shop, shop


def _shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
    with shop(url, cluster=clustered) as made:
        yield made


@pytest.fixture(params=["alone", "cluster"])
def everywhere(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Of a server, and of a cluster."""
    yield from _shop(request)


@pytest.fixture(params=["alone", pytest.param("cluster", marks=pytest.mark.chaos)])
def place(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """The same, with the cluster in the long runs only: nothing but the way to keys differs."""
    yield from _shop(request)


@pytest.fixture
def alone(redis_url: str) -> Iterator[Shop]:
    """Of a server."""
    with shop(redis_url, cluster=False) as made:
        yield made
