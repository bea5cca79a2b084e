"""Threads that outlast their grace period: nothing can end them, so their calls are refused."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy.plugins.redis.streams.group.membership import Membership
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.ownership import Ownership
from tests.plugins.redis.streams.fleet import Fleet, Order, Worker
from tests.plugins.redis.streams.orders import pending
from tests.plugins.redis.streams.witness import Witness, witness
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.waiting import eventually

#: The events of the first are stuck in a thread while the partition moves to the next owner.
MOVED, STAYS = 1, 0
#: Their numbers in the fleet.
FIRST, SECOND = 2, 3
#: How the event of the thread ends, and by which script that would count.
LATE = {"goes on": "exchange", "raises": "bury"}


class Threads:
    """The threads of both workers block at an event until a test releases them."""

    def __init__(self, url: str, how: str) -> None:
        self.how = how
        self.seen: list[tuple[int, int, int]] = []
        #: What the thread receives after its event, by each kind of iteration.
        self.more: list[Any] = []
        self.gates = {FIRST: threading.Event(), SECOND: threading.Event()}
        self.ended = threading.Event()
        # The lease is not extended during the test.
        options = {"policy": Ignore(keep=True), "lease_s": 60.0, "grace_s": 0.1, "check_s": 0.2}
        self.crew = Fleet(url, partitions=2, blocking=self.handle, options=options)
        self.stream = self.crew.orders

    def handle(self, worker: int, events: BlockingEvents[Order]) -> None:
        for order in events.records():
            self.seen.append((worker, order.key, order.seq))
            if order.key == MOVED and not self.gates[worker].is_set():
                self.gates[worker].wait(30)
                if worker == FIRST:
                    self._go_on(events)

    def _go_on(self, events: BlockingEvents[Order]) -> None:
        try:
            if self.how == "raises":
                raise ValueError("too late")
            self.more += [*events.records(), *events, *events.take(5, within=0.1)]
        finally:
            self.ended.set()

    async def begin(self, count: int = 3) -> Worker:
        """Start the first worker, and wait until its thread blocks."""
        worker = await self.crew.start()
        await self.stream.send(*(Order(key=MOVED, seq=number) for number in range(count)))
        await eventually(lambda: self.seen == [(FIRST, MOVED, 0)])
        return worker

    async def close(self) -> None:
        for gate in self.gates.values():
            gate.set()
        await self.crew.close()


@pytest.fixture(params=LATE)
async def shop(redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Threads]:
    made = Threads(redis_url, request.param)
    yield made
    await made.close()


async def ended(shop: Threads, book: Witness) -> None:
    """End the thread, and wait for the replies to its calls."""
    shop.gates[FIRST].set()
    await eventually(shop.ended.is_set)
    await shop.stream.send(Order(key=STAYS, seq=9))
    await eventually(lambda: (FIRST, STAYS, 9) in shop.seen)

    async def acknowledged() -> bool:
        return not await pending(shop.stream, STAYS)

    # Sent by the same fetcher, after the acknowledgements of the thread.
    await eventually(acknowledged)
    await book.catch_up()


@pytest.mark.row("R30")
async def test_a_thread_that_outlasts_its_grace_does_nothing_to_what_was_handed_over(
    shop: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    stream = shop.stream
    async with witness(stream.link, shop.crew.url) as book:
        await shop.begin()
        await shop.crew.start()
        await eventually(lambda: (SECOND, MOVED, 0) in shop.seen)
        assert "processor_interrupted processor=orders/handle partition=1" in caplog.text
        held = await pending(stream, MOVED)
        await ended(shop, book)
        assert await pending(stream, MOVED) == held == 3
        assert book.acked[stream.keys.log(MOVED)] == []
        assert shop.more == []
        await eventually(lambda: "processor_ended_late" in caplog.text)
        assert ("too late" in caplog.text) == (shop.how == "raises")
        shop.gates[SECOND].set()
        await eventually(lambda: shop.seen[-1] == (SECOND, MOVED, 2))
        await book.catch_up()
        assert book.wrong == []
    report = (await Inspection(stream, "handle").report())[MOVED]
    assert (report.dead, report.fenced) == (0, 0)
    assert "partition_lost" not in caplog.text


@pytest.mark.row("R30")
async def test_acknowledgements_of_a_thread_are_refused_after_its_partition_moved(
    shop: Threads, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker has not noticed yet, and sends the acknowledgement or the dead letter."""
    stream, beats, change = shop.stream, list[str](), Membership.change

    async def noted(membership: Membership, action: Any) -> Any:
        beats.append(action)
        return await change(membership, action)

    monkeypatch.setattr(Membership, "change", noted)
    async with witness(stream.link, shop.crew.url) as book:
        executor = (await shop.begin()).executor
        await eventually(lambda: "beat" in beats)  # the next one would be after 15 s
        await stream.link.command("HSET", stream.keys.own(MOVED, "handle"), "until", 0)
        book.turns[stream.keys.own(MOVED, "handle")].until = 0
        await Ownership(stream.link, executor.processor, "another").acquire([MOVED])
        await ended(shop, book)
        assert executor.runner.counters.fenced == 1
        assert {call.name for call in book.late} == {LATE[shop.how]}
        assert book.acked[stream.keys.log(MOVED)] == []
        assert book.wrong == []
        assert await pending(stream, MOVED) == 3
        assert len(shop.more) <= 2, "those that it had in memory"
        assert caplog.text.count("partition_lost processor=orders/handle partition=1") == 1
    assert (await Inspection(stream, "handle").report())[MOVED].dead == 0


@pytest.mark.row("R30")
async def test_events_that_a_thread_ends_during_a_release_are_not_counted(
    shop: Threads, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgements that a release sends are already fixed then."""

    async def slowly(calls: Calls, send: Send) -> list[Any]:
        answers = await send()
        if any(call.script == "streams.release" and own in call.keys for call in calls):
            shop.gates[FIRST].set()
            await eventually(lambda: "processor_ended_late" in caplog.text)
        return answers

    worker = await shop.begin(1)
    counters, own = worker.executor.runner.counters, shop.stream.keys.own(MOVED, "handle")
    around(monkeypatch, slowly)
    await shop.crew.stop(worker)
    assert (await pending(shop.stream, MOVED), counters.acked) == (1, 0)
