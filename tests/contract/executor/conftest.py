"""What the tests of the contracts share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chancy.executors.base import Executor
from chancy.queue.executor_kind import EXECUTORS
from tests.contract.executor.calls import DEADLINE_S, Place, started
from tests.support.clusters import ANYWHERE, CLUSTERS, cluster_options


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of a busy machine take more than a second to take a call; it is not given back."""
    monkeypatch.setattr("chancy.executors.process.executor._PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr("chancy.executors.process.executor._PATIENCE_BROKEN_S", DEADLINE_S)
    monkeypatch.setattr("chancy.executors.thread.executor._PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr("chancy.executors.cluster.executor._PATIENCE_S", 10 * DEADLINE_S)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=EXECUTORS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=ANYWHERE)
def anywhere(request: pytest.FixtureRequest) -> str:
    """The name of an executor, also of those on clusters."""
    found: str = request.param
    if found in CLUSTERS:
        cluster_options(found)  # starts it before the test has its deadline
    return found


@pytest.fixture
async def one(name: str) -> AsyncIterator[Executor]:
    """An executor with one slot."""
    async with started(name) as made:
        yield made


@pytest.fixture
async def child() -> AsyncIterator[Executor]:
    """A process executor with one child."""
    async with started("process") as made:
        yield made
