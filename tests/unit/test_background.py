"""The loop beside threads that have none."""

from __future__ import annotations

import asyncio
import uuid
from uuid import UUID

import pytest

from chancy.errors import BrokerUnavailable
from chancy.job import QueuedJob
from chancy.postgres.background import Background
from tests.waiting import eventually_sync


class Slow:
    """A broker that is never reached."""

    opening = False

    async def open(self) -> None:
        self.opening = True
        await asyncio.Event().wait()

    async def close(self) -> None:
        """It was not opened."""


class Nobody:
    """Nobody comes so far as to wait."""

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob:
        raise AssertionError(id)

    async def close(self) -> None:
        """There is nothing to end."""


def test_who_waits_for_a_broker_that_is_not_reached_is_told_of_the_close() -> None:
    broker = Slow()
    background = Background(lambda: (broker, Nobody()))
    waiting = background.begin(uuid.uuid4(), None)
    given_up = background.begin(uuid.uuid4(), None)
    eventually_sync(lambda: broker.opening)
    given_up.cancel()
    background.close()
    with pytest.raises(BrokerUnavailable, match="the application was closed"):
        waiting.result(5)
    assert given_up.cancelled()
