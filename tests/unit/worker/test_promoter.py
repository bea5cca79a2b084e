"""How often a worker promotes."""

from __future__ import annotations

import asyncio
import random
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


async def test_worker_promotes_what_it_has_settled_with_a_short_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while another one promotes, and few times for many jobs."""
    monkeypatch.setattr(random, "random", lambda: 0.0)
    broker, clock = Scripted(Promotion(0, None, ahead=20)), ManualClock()
    promoter = Promoter(broker, clock, lambda: WORKER)
    serving = asyncio.create_task(promoter.serve())
    await eventually(lambda: clock.sleepers)
    clock.advance(0.03)
    for hundredths in range(7):
        promoter.expect(hundredths / 100)
    promoter.expect(0.55)
    for _ in range(20):  # until it waits for less
        await asyncio.sleep(0)
    calls = []
    for _ in range(14):
        clock.advance(0.05)
        await eventually(lambda: clock.sleepers)
        calls.append(len(broker.calls))
    assert calls == [1] + 10 * [2] + 3 * [3]
    serving.cancel()
    await asyncio.wait([serving])
