"""One plugin object used by many applications in turn."""

from __future__ import annotations

import gc
import weakref
from uuid import uuid4

import pytest

from chancy import Chancy, WaitTimeout
from chancy.broker.contract import Broker
from chancy.plugins.batch import Batches
from chancy.plugins.workflow import Workflows
from tests.support.postgres_fixtures import template_with


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, Workflows(), Batches())


async def test_finished_waits_keep_no_reference_to_the_application(dsn: str) -> None:
    flows, batches = Workflows(), Batches()
    brokers: list[weakref.ref[Broker]] = []

    async def wait() -> None:
        async with Chancy(dsn, plugins=[flows, batches]) as chancy:
            for _ in range(2):
                with pytest.raises(WaitTimeout):
                    await flows.reference(chancy, uuid4()).wait(0.01)
                with pytest.raises(WaitTimeout):
                    await batches.reference(chancy, uuid4()).wait(0.01)
            brokers.append(weakref.ref(chancy.broker))

    # A walk over the objects of earlier tests takes a second each time.
    gc.freeze()
    for _ in range(3):
        await wait()
    gc.collect()  # the waiters, which are the values of a dictionary
    gc.collect()  # their brokers, which are its keys
    assert [one for one in brokers if one() is not None] == []
