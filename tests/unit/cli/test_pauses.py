"""Pauses of queues until a time, by the clock of the database."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from chancy import Chancy, Queue
from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker
from tests.support.command import inside

#: Its clock is years ahead of this machine.
BROKER = MemoryBroker(clock=ManualClock(datetime(2100, 1, 1, tzinfo=UTC)))
APP = f"{__name__}:application"


def application() -> Chancy:
    return Chancy(broker=BROKER)


def paused(name: str) -> tuple[bool, datetime | None]:
    [queue] = asyncio.run(BROKER.queues(name))
    return queue.paused, queue.resume_at


def test_seconds_are_counted_by_the_clock_of_the_database() -> None:
    asyncio.run(BROKER.declare(Queue(name="mail")))
    answer = inside("queue", "pause", "mail", "--for", "600", app=APP)
    assert answer.out == "queue mail is paused until 2100-01-01 00:10:00Z\n"
    assert paused("mail") == (True, datetime(2100, 1, 1, 0, 10, tzinfo=UTC))


def test_a_time_that_is_over_in_the_database_is_refused() -> None:
    asyncio.run(BROKER.declare(Queue(name="other")))
    over = "2099-12-31T23:59:00+00:00"
    answer = inside("queue", "pause", "other", "--resume-at", over, app=APP, code=2)
    assert f"resume_at={over} is over" in answer.err
    assert "it is 2100-01-01T00:00:00+00:00 in the database" in answer.err
    assert paused("other") == (False, None)
