"""What several modules of tests of the broker need; some have a broker of their own instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from chancy.plugins.redis import RedisBroker, RedisPlugin, RedisSettings
from tests.support.postgres_fixtures import template_with
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer

# Makes the assertions of the contract as readable as those of a test module.
pytest.register_assert_rewrite("chancy.testing.conformance")

from chancy.testing.conformance.bench import Bench  # noqa: E402  rewriting comes first


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    """With the tables of the plugin: to migrate takes longer than most tests."""
    return template_with(pytestconfig, template, RedisPlugin(url="redis://127.0.0.1"))


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[RedisBroker]:
    """On an empty server that is the test's alone."""
    made = RedisBroker(RedisSettings(url=redis_url))
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def bench(broker: RedisBroker) -> Bench:
    """At that broker."""
    bench = Bench(broker)
    await bench.prepare()
    return bench


@pytest.fixture
def server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    """A server that the test may kill."""
    return own_redis()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    """A way to that server that can be cut."""
    with Proxy("127.0.0.1", server.port) as made:
        yield made
