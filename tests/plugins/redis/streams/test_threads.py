"""Threads that work on beyond their time: nothing can end them, so all they do is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall
from tests.plugins.redis.streams.fleet import Order, orders_of
from tests.plugins.redis.streams.orders import pending
from tests.plugins.redis.streams.witness import Witness, witness
from tests.support.waiting import eventually

#: Its events are stuck in a thread, and the next owner has the first of them at hand.
MOVED, STAYS = 1, 0
#: How the event of the thread ends, and by which script that would count.
LATE = {"goes on": "exchange", "raises": "bury"}


class Shop:
    """Two workers, each with a thread for each partition."""

    def __init__(self, url: str, how: str) -> None:
        self.url = url
        self.how = how
        self.seen: list[tuple[str, int, int]] = []
        #: What the thread is given after its event, however it asks.
        self.more: list[Any] = []
        self.gates = {"first": threading.Event(), "second": threading.Event()}
        self.ended = threading.Event()
        self.serving: list[asyncio.Task[None]] = []

    def start(self, name: str, *, begun: bool = True) -> tuple[Streams, Stream[Order]]:
        streams = Streams(RedisSettings(url=self.url, prefix="t:"))
        stream = orders_of(streams, 2)

        def handle(events: BlockingEvents[Order]) -> None:
            for order in events.records():
                self.seen.append((name, order.key, order.seq))
                if order.key == MOVED and not self.gates[name].is_set():
                    self.gates[name].wait(30)
                    if name == "first":
                        self._go_on(events)

        # A lease of which nothing is extended meanwhile.
        streams.processor(
            stream,
            mode="thread",
            policy=Ignore(keep=True),
            lease_s=60.0,
            grace_s=0.1,
            join_delay_s=0,
            check_s=0.2,
        )(handle)
        if begun:
            self.serving.append(asyncio.create_task(streams.serve()))
        return streams, stream

    def _go_on(self, events: BlockingEvents[Order]) -> None:
        try:
            if self.how == "raises":
                raise ValueError("too late")
            self.more += [*events.records(), *events, *events.take(5, within=0.1)]
        finally:
            self.ended.set()

    async def close(self) -> None:
        for gate in self.gates.values():
            gate.set()
        for task in self.serving:
            task.cancel()
        await asyncio.wait(self.serving)


@pytest.fixture(params=LATE)
async def shop(redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    made = Shop(redis_url, request.param)
    yield made
    await made.close()


async def ended(shop: Shop, stream: Stream[Order], book: Witness) -> None:
    """Let the thread end, and what it may have asked for be answered."""
    shop.gates["first"].set()
    await eventually(shop.ended.is_set)
    await stream.send(Order(key=STAYS, seq=9))
    await eventually(lambda: ("first", STAYS, 9) in shop.seen)

    async def acknowledged() -> bool:
        return not await pending(stream, STAYS)

    # By the same fetcher, behind what the thread has left it.
    await eventually(acknowledged)
    await book.catch_up()


@pytest.mark.row("R30")
async def test_a_thread_that_outlasts_its_grace_does_nothing_to_what_was_handed_over(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    _, stream = shop.start("first")
    async with witness(stream.link, shop.url) as book:
        await stream.send(*(Order(key=MOVED, seq=number) for number in range(3)))
        await eventually(lambda: shop.seen == [("first", MOVED, 0)])
        shop.start("second")
        await eventually(lambda: ("second", MOVED, 0) in shop.seen)
        assert "processor_interrupted processor=orders/handle partition=1" in caplog.text
        held = await pending(stream, MOVED)
        await ended(shop, stream, book)
        assert await pending(stream, MOVED) == held == 3
        assert book.acked[stream.keys.log(MOVED)] == []
        assert shop.more == []
        await eventually(lambda: "processor_ended_late" in caplog.text)
        assert ("too late" in caplog.text) == (shop.how == "raises")
        shop.gates["second"].set()
        await eventually(lambda: shop.seen[-1] == ("second", MOVED, 2))
        await book.catch_up()
        assert book.wrong == []
    report = (await Inspection(stream, "handle").report())[MOVED]
    assert (report.dead, report.fenced) == (0, 0)
    assert "partition_lost" not in caplog.text


@pytest.mark.row("R30")
async def test_acknowledgements_of_a_thread_are_refused_after_its_partition_moved(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Its worker does not know yet, so the acknowledgement, or the dead letter, is on its way."""
    streams, stream = shop.start("first")
    async with witness(stream.link, shop.url) as book:
        await stream.send(*(Order(key=MOVED, seq=number) for number in range(3)))
        await eventually(lambda: shop.seen == [("first", MOVED, 0)])
        (executor,) = streams.executors
        await stream.link.command("HSET", stream.keys.own(MOVED, "handle"), "until", 0)
        book.turns[stream.keys.own(MOVED, "handle")].until = 0
        await Ownership(stream.link, executor.processor, "another").acquire([MOVED])
        await ended(shop, stream, book)
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
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes along with a partition that is given back is said by then."""
    call_many = RedisClient.run_many

    async def slowly(link: RedisClient, calls: Sequence[ScriptCall], **more: Any) -> Any:
        answers = await call_many(link, calls, **more)
        if any(call.script == "streams.release" and own in call.keys for call in calls):
            shop.gates["first"].set()
            await eventually(lambda: "processor_ended_late" in caplog.text)
        return answers

    streams, stream = shop.start("first")
    await stream.send(Order(key=MOVED, seq=0))
    await eventually(lambda: shop.seen == [("first", MOVED, 0)])
    (executor,) = streams.executors
    own = stream.keys.own(MOVED, "handle")
    monkeypatch.setattr(RedisClient, "run_many", slowly)
    shop.serving[0].cancel()
    await asyncio.wait(shop.serving)
    left = await pending(stream, MOVED)
    await stream.link.close()
    assert (left, executor.runner.counters.acked) == (1, 0)
