"""A broker other than the control one whose clock is set forward declares no live worker dead."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chancy.broker.contract import Broker
from chancy.queue.queue import Queue
from chancy.routing.router import RoutedBroker
from chancy.testing.clock import ManualClock
from chancy.testing.conformance.bench import Bench
from chancy.testing.memory import MemoryBroker

TIMEOUT_S = 15.0


class Shard:
    """A broker on a server with a clock of its own, with a worker that runs a job, and the routed
    broker of the worker that sweeps."""

    def __init__(self) -> None:
        self.clock, self.server = ManualClock(), ManualClock()
        self.broker = MemoryBroker(clock=self.server)
        self.bench = Bench(self.broker)
        far: dict[str, Broker] = {"far": self.broker}
        queues = [Queue(name="away", broker="far")]
        control = MemoryBroker(clock=self.clock)
        self.routed = RoutedBroker(control, far, self.clock, queues, lambda queue, broker: None)
        self.routed.contact_s = lambda name: 60.0

    async def sweep(self) -> int:
        """The jobs that are rescued."""
        return len(await self.routed.orphans(heartbeat_age_s=TIMEOUT_S, limit=10))

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.server.advance(seconds)

    async def beat(self) -> None:
        assert await self.broker.beat(self.bench.worker_id)


@pytest.fixture
async def shard() -> AsyncIterator[Shard]:
    made = Shard()
    await made.routed.open()
    await made.bench.prepare()
    await made.bench.running()
    assert await made.sweep() == 0
    for _ in range(4):
        made.wait(5)
        await made.beat()
        assert await made.sweep() == 0
    yield made
    await made.routed.close()


@pytest.mark.parametrize("forward_s", [3_600.0, 20.0])
async def test_a_step_declares_no_live_worker_dead(
    shard: Shard, forward_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    shard.server.advance(forward_s)
    assert await shard.sweep() == 0
    for _ in range(5):
        shard.wait(5)
        await shard.beat()
        assert await shard.sweep() == 0
    assert caplog.text.count("broker_clock_set broker=far") == 1


async def test_after_a_step_a_dead_worker_is_found_one_timeout_later(shard: Shard) -> None:
    shard.server.advance(3_600)
    found = []
    for _ in range(4):
        found.append(await shard.sweep())
        shard.wait(5)
    assert found == [0, 0, 0, 1]


async def test_without_a_step_a_dead_worker_is_found_at_once(shard: Shard) -> None:
    shard.wait(TIMEOUT_S)
    assert await shard.sweep() == 1


async def test_a_step_back_and_a_slow_reply_are_no_steps_forward(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = shard.broker.now_s

    async def slow() -> float:
        shard.wait(4)
        found = await now_s()
        shard.wait(4)
        return found

    monkeypatch.setattr(shard.broker, "now_s", slow)
    shard.clock.advance(30)  # the server goes back, seen from this process
    assert await shard.sweep() == 0
    monkeypatch.setattr(shard.broker, "now_s", now_s)
    assert await shard.sweep() == 0
    shard.wait(TIMEOUT_S)
    assert await shard.sweep() == 1
