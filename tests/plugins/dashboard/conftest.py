"""The application of the dashboard's tests, without a worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import pytest

from chancy import Chancy
from tests.plugins.dashboard.scene import QUEUES, application
from tests.support.postgres_fixtures import _database, extended_template, find_run


@pytest.fixture(scope="session")
def shop_template(pytestconfig: pytest.Config, template: str) -> str:
    """A database with the tables of all plugins that have pages."""
    return extended_template(
        pytestconfig, template, "shop", lambda dsn: application(dsn).sync_migrate()
    )


@pytest.fixture
def shop_dsn(request: pytest.FixtureRequest, shop_template: str) -> Iterator[str]:
    with _database(find_run(request.config), request, shop_template) as name:
        yield name


@pytest.fixture
async def shop(shop_dsn: str) -> AsyncGenerator[Chancy]:
    async with application(shop_dsn) as chancy:
        for queue in QUEUES:
            await chancy.declare(queue)
        yield chancy
