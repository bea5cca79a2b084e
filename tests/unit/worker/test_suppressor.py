"""A worker suppresses notifications of a queue, and claims at the end."""

from __future__ import annotations

import asyncio
from typing import cast

from chancy.broker.optional import Surveying
from chancy.worker.crowd import Suppressor
from tests.support.waiting import eventually


class _Broker:
    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        self.end = asyncio.Event()

    async def suppress(self, queue: str, seconds: float) -> None:
        self.calls.append((queue, seconds))
        await self.end.wait()


async def test_one_queue_at_a_time_is_claimed_from_at_the_end() -> None:
    broker, claimed = _Broker(), list[str]()
    suppressor = Suppressor(cast("Surveying", broker))
    serving = asyncio.create_task(suppressor.serve())
    for seconds in (0.0, 0.02, 0.2):
        broker.end.clear()
        suppressor.begin("a", seconds, lambda: claimed.append("a"))
        suppressor.begin("b", seconds, lambda: claimed.append("b"))
        calls = len(broker.calls) + (seconds > 0)
        await eventually(lambda: len(broker.calls) == calls)  # noqa: B023
        broker.end.set()
        await eventually(lambda: len(claimed) == calls)  # noqa: B023
    assert broker.calls == [("a", 0.02), ("a", 0.2)]
    assert claimed == ["a", "a"]
    serving.cancel()
    await asyncio.wait([serving])
