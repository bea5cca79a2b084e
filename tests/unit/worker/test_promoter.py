"""How often a worker promotes."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from chancy.broker.values import Promotion
from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker
from chancy.worker.promoter import BATCH, Promoter
from tests.support.waiting import eventually

WORKER = uuid.uuid4()


class Scripted(MemoryBroker):
    """Returns the same promotion each time, and counts the calls."""

    def __init__(self, promotion: Promotion) -> None:
        super().__init__()
        self.promotion = promotion
        self.calls: list[tuple[int, uuid.UUID | None]] = []

    async def promote(self, limit: int, *, worker_id: uuid.UUID | None = None) -> Promotion:
        self.calls.append((limit, worker_id))
        return self.promotion


@pytest.mark.parametrize(
    ("promotion", "calls"),
    [
        (Promotion(0, None, ahead=0), 2),
        (Promotion(0, 0.1, ahead=0), 10),
        (Promotion(0, 0.1, ahead=1), 1),
        (Promotion(0, None, ahead=1), 1),
    ],
)
async def test_worker_promotes_rarely_while_another_one_does_it(
    promotion: Promotion, calls: int
) -> None:
    """In about two seconds."""
    broker, clock = Scripted(promotion), ManualClock()
    serving = asyncio.create_task(Promoter(broker, clock, lambda: WORKER).serve())
    for _ in range(19):
        await eventually(lambda: clock.sleepers)
        clock.advance(0.1)
    await eventually(lambda: clock.sleepers)
    assert calls <= len(broker.calls) <= 2 * calls
    assert set(broker.calls) == {(BATCH, WORKER)}
    for _ in range(15):
        await eventually(lambda: clock.sleepers)
        clock.advance(0.1)
    await eventually(lambda: len(broker.calls) > 1)
    serving.cancel()
    await asyncio.wait([serving])
