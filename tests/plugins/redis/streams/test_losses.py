"""What is said of partitions that go: one line where one was lost, and none where it was given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from chancy.plugins.redis.streams.group.membership import Membership
from chancy.plugins.redis.streams.model.policy import Quarantine
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall, Value
from tests.plugins.redis.streams.fleet import Fleet, Order, Worker, fleet
from tests.support.waiting import eventually

LEASE_S = 2.0


class Overtaken:
    """Extensions of leases arrive behind what gives partitions back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, given_by: str) -> None:
        self.kept = 0
        self.given = threading.Event()
        call, call_many = RedisClient.run, RedisClient.run_many

        async def late_many(link: RedisClient, calls: Sequence[ScriptCall], **more: Any) -> Any:
            if any(one.script == "streams.extend" for one in calls):
                self.kept += 1
                await eventually(self.given.is_set)
            replies = await call_many(link, calls, **more)
            if any(one.script == given_by for one in calls):
                self.given.set()
                await asyncio.sleep(0.1)  # its answer comes last
            return replies

        async def late(
            link: RedisClient, script: str, keys: Sequence[Value], args: Any = (), **more: Any
        ) -> Any:
            reply = await call(link, script, keys, args, **more)
            if script == given_by:
                self.given.set()
                await asyncio.sleep(0.1)
            return reply

        monkeypatch.setattr(RedisClient, "run_many", late_many)
        monkeypatch.setattr(RedisClient, "run", late)


async def test_a_partition_that_is_released_is_not_said_to_be_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extensions = Overtaken(monkeypatch, "streams.release")
    async with fleet(redis_url, partitions=2, options={"lease_s": LEASE_S}) as crew:
        worker = await crew.settle()
        await eventually(lambda: extensions.kept)
        await crew.stop(worker)
        assert extensions.given.is_set()
    assert "partition_lost" not in caplog.text


async def test_a_partition_that_is_quarantined_is_not_said_to_be_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extensions, spoilt = Overtaken(monkeypatch, "streams.park"), asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for _ in events.records():
            await spoilt.wait()
            raise ValueError("no")

    options = {"lease_s": LEASE_S, "policy": Quarantine()}
    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        worker = await crew.start()
        await crew.send(0, 1)
        await eventually(lambda: extensions.kept)
        spoilt.set()
        await eventually(lambda: worker.executor.runner.parked == {0})
    assert "partition_lost" not in caplog.text


async def taken_away(crew: Fleet, worker: Worker) -> None:
    """Let another have the first partition, as after a failover that has lost who had it."""
    link, keys = crew.orders.link, crew.orders.keys
    await link.command("HSET", keys.own(0, "handle"), "until", 0)
    await Ownership(link, worker.executor.processor, "another").acquire([0])


async def test_a_loss_is_reported_once_though_the_processor_does_not_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beats, going, change = list[str](), asyncio.Event(), Membership.change

    async def noted(membership: Membership, action: Any) -> Any:
        beats.append(action)
        return await change(membership, action)

    async def handle(worker: int, events: Events[Order]) -> None:
        async for _ in events.records():
            while not going.is_set():
                try:
                    await going.wait()
                except asyncio.CancelledError:
                    continue

    monkeypatch.setattr(Membership, "change", noted)
    options = {"lease_s": 0.8, "check_s": 0.1}
    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        worker = await crew.start()
        await crew.send(0, 1)
        await eventually(crew.settled)
        await taken_away(crew, worker)
        await eventually(lambda: "partition_lost" in caplog.text)
        beats.clear()
        await eventually(lambda: beats.count("beat") >= 3)
        going.set()
    assert caplog.text.count("partition_lost processor=orders/handle partition=0 epoch=1") == 1


async def test_a_refused_release_is_logged(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was done since the last acknowledgement comes again."""
    async with fleet(redis_url, partitions=1, options={"lease_s": 60.0}) as crew:
        worker = await crew.start()
        await crew.send(0, 3)
        await eventually(lambda: len(crew.seen) == 3)
        await eventually(crew.settled)
        await taken_away(crew, worker)
        runner = worker.executor.runner
        await crew.stop(worker)
        assert runner.counters.fenced == 1
    assert caplog.text.count("partition_lost processor=orders/handle partition=0 epoch=1") == 1
