"""A listener tells each notice once, and one of many probes for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from chancy.broker.contract import Broker
from chancy.broker.listener import Listener
from chancy.broker.notices import Notice, NoticeKind, Topic
from chancy.clock import SystemClock
from tests.support.waiting import eventually

_A, _B = Notice(NoticeKind.WAKE, "a"), Notice(NoticeKind.WAKE, "b")


class _Clock(SystemClock):
    """Simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)

    def monotonic(self) -> float:
        return self.now


class _Subscription:
    """Gives these lists, one after the other, and then nothing more. An empty one takes all of the
    time that there is."""

    def __init__(self, *lists: list[Notice], early: bool) -> None:
        self._lists = list(lists)
        self._early = early
        self.clock = _Clock()
        self.probes = 0
        self.done = asyncio.Event()

    async def receive(
        self, timeout_s: float, handle: Callable[[Notice], bool] | None = None
    ) -> list[Notice]:
        if not self._lists:
            self.done.set()
            await asyncio.Event().wait()
        notices = self._lists.pop(0)
        if not notices:
            self.clock.now += timeout_s
        if self._early and handle is not None:
            return [notice for notice in notices if not handle(notice)]
        return notices

    async def probe(self, timeout_s: float) -> list[Notice]:
        self.probes += 1
        return []

    async def close(self) -> None:
        pass


class _Broker:
    def __init__(self, subscription: _Subscription) -> None:
        self._subscription = subscription

    async def subscribe(self, topic: Topic) -> _Subscription:
        return self._subscription


async def _listen(subscription: _Subscription) -> list[Notice]:
    told: list[Notice] = []
    broker = cast("Broker", _Broker(subscription))
    listener = Listener(
        broker,
        subscription.clock,
        Topic.WORK,
        on_notice=told.append,
        on_resumed=lambda: None,
    )
    serving = asyncio.create_task(listener.serve())
    await subscription.done.wait()
    serving.cancel()
    await asyncio.wait([serving])
    return told


@pytest.mark.parametrize("early", [False, True])
async def test_each_notification_is_delivered_once(early: bool) -> None:
    told = await _listen(_Subscription([_A], [_A, _B], early=early))
    assert sorted(notice.token for notice in told) == ["a", "a", "b"]


async def test_a_repeated_notification_is_delivered_again() -> None:
    # It may speak of a job that was stored after the first one had its answer.
    assert await _listen(_Subscription([_A, _A, _A], early=True)) == [_A, _A, _A]


async def test_only_silence_asks_for_a_proof() -> None:
    subscription = _Subscription([_A], [], [_B], early=True)
    assert await _listen(subscription) == [_A, _B]
    assert subscription.probes == 2  # one of them at the beginning


async def test_a_flood_of_notifications_ends_in_pauses() -> None:
    subscription = _Subscription([_A] * 150, [_B] * 100, early=True)
    assert len(await _listen(subscription)) == 201  # of those that wait only different ones
    assert subscription.clock.slept_s == [0.001]


class _Bus:
    """Delivers probes to the subscriptions of many listeners, in simulated time."""

    def __init__(self) -> None:
        self.clock = _Clock()
        self.probes = 0
        self.waiting: dict[asyncio.Future[list[Notice]], float] = {}

    async def subscribe(self, topic: Topic) -> _Bus:
        return self

    async def receive(
        self, timeout_s: float, handle: Callable[[Notice], bool] | None = None
    ) -> list[Notice]:
        received: asyncio.Future[list[Notice]] = asyncio.get_running_loop().create_future()
        self.waiting[received] = self.clock.now + timeout_s
        return await received

    async def probe(self, timeout_s: float) -> list[Notice]:
        self.probes += 1
        for received in self.waiting:
            received.set_result([Notice(NoticeKind.PROBE, "x")])
        self.waiting.clear()
        return []

    async def close(self) -> None:
        pass

    def expire(self) -> None:
        """Advance to the next timeout. Those within the time of a delivery expire as well."""
        self.clock.now = min(self.waiting.values())
        for received, until in list(self.waiting.items()):
            if until <= self.clock.now + 0.005:
                del self.waiting[received]
                received.set_result([])


async def test_one_of_many_idle_listeners_probes_for_all() -> None:
    bus, many = _Bus(), 50
    serving = [
        asyncio.create_task(
            Listener(
                cast("Broker", bus),
                bus.clock,
                Topic.WORK,
                on_notice=lambda _: None,
                on_resumed=lambda: None,
            ).serve()
        )
        for _ in range(many)
    ]
    await eventually(lambda: len(bus.waiting) == many)
    bus.probes = 0
    while bus.clock.now < 80.0:
        bus.expire()
        await eventually(lambda: len(bus.waiting) == many)
    assert 10 <= bus.probes <= 40
    for task in serving:
        task.cancel()
    await asyncio.wait(serving)
