"""What keeps streams in shape: trimming, the guard of partitions, and alarms."""

from __future__ import annotations

import os
import signal

import pytest

from chancy.plugins.redis.streams.model.policy import Halt
from chancy.plugins.redis.streams.processing.events import Events
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.support.waiting import eventually


async def length(crew: Fleet) -> int:
    return int(await crew.orders.link.command("XLEN", crew.orders.keys.log(0)))


@pytest.mark.row("R06")
async def test_only_events_acknowledged_by_every_processor_are_trimmed(redis_url: str) -> None:
    options = {"check_s": 0.05, "lease_s": 0.4}
    async with fleet(
        redis_url, partitions=1, stream_options={"size": 500}, options=options
    ) as crew:
        link, log = crew.orders.link, crew.orders.keys.log(0)
        await link.command("XGROUP", "CREATE", log, "slow", "0", "MKSTREAM")
        await crew.start()
        for first in range(0, 500, 100):
            await crew.send(first, 100)
        await eventually(lambda: len(crew.seen) == 500)
        crew.orders.size = 50
        for worker in crew.workers.values():
            worker.stream.size = 50
        read = await link.command(
            "XREADGROUP", "GROUP", "slow", "c", "COUNT", 100, "STREAMS", log, ">"
        )
        ids = [xid for xid, _ in read[0][1]]
        await link.command("XACK", log, "slow", *ids)

        async def trimmed() -> bool:
            first = await link.command("XRANGE", log, "-", "+", "COUNT", 1)
            return bool(first[0][0] > ids[0])

        await eventually(trimmed)
        # Of what the slow group has not read nothing is gone.
        assert await length(crew) >= 400
        await link.command("XGROUP", "DESTROY", log, "slow")

        async def short() -> bool:
            return await length(crew) <= 250

        await eventually(short)


@pytest.mark.row("R04")
async def test_a_worker_with_other_partitions_does_not_begin(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(redis_url, partitions=4) as crew:
        await crew.settle()
        crew.partitions = 8
        other = await crew.start()
        await eventually(lambda: "processor_not_started" in caplog.text)
        assert other.owned == set()
        assert "8" in caplog.text
        assert "4" in caplog.text
        del crew.workers[other.number]
        crew.partitions = 4
        assert crew.settled()
        crew.workers[other.number] = other


@pytest.mark.row("R19")
async def test_a_halt_may_end_the_process(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))

    async def fail(worker: int, events: Events[Order]) -> None:
        async for _ in events.records():
            raise ValueError("no")

    async with fleet(
        redis_url, partitions=2, handler=fail, options={"policy": Halt(exit=True)}
    ) as crew:
        worker = await crew.start()
        await crew.send(0, 2)
        await eventually(lambda: worker.executor.runner.halted == {0, 1})
        assert sent == [(os.getpid(), signal.SIGTERM)], "a second one would end it at once"
        assert worker.streams.exit.code == 5
        assert await crew.pending() == 2
