"""What must not end processors and duties silently: cancellations of others, and ends of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.model.protocols import Item, MiddlewareContext
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.middleware import middleware
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.support.waiting import eventually


async def await_cancelled() -> None:
    """Await a task that somebody else has cancelled."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


def broken_once(crew: Fleet, seq: int) -> None:
    left = [seq]

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            if order.seq in left:
                left.remove(order.seq)
                await await_cancelled()

    crew.handler = handle


async def test_a_cancellation_that_escapes_is_up_to_the_policy(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(redis_url, partitions=1, options={"policy": Ignore()}) as crew:
        broken_once(crew, 2)
        worker = await crew.start()
        await crew.send(0, 5)
        await eventually(lambda: crew.numbers == [0, 1, 2, 3, 4])
        assert worker.executor.runner.counters.failed == 1
    assert "CancelledError" in caplog.text


async def test_a_processor_that_cancels_itself_is_begun_again(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    left = [1]

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            if order.seq in left:
                left.clear()
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            crew.note(worker, events, order)

    async with fleet(redis_url, partitions=1, handler=handle) as crew:
        await crew.start()
        await crew.send(0, 3)
        await eventually(lambda: crew.numbers[-2:] == [1, 2])
    assert "stream_consumer_failed" in caplog.text


class Cancelling:
    """A middleware that lets a cancellation escape while it handles a failure, once."""

    def __init__(self) -> None:
        self.broken = True

    async def handler(
        self, parent: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncIterator[Item]:
        async for item in parent:
            try:
                yield item
            except ValueError:
                if self.broken:
                    self.broken = False
                    await await_cancelled()
                raise


async def test_a_cancellation_that_escapes_a_middleware_acknowledges_nothing(
    redis_url: str,
) -> None:
    options: dict[str, Any] = {"policy": Ignore(), "middleware": [Cancelling()]}

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            if order.seq == 1:
                raise ValueError("one")

    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        await crew.start()
        await crew.send(0, 3)
        await eventually(lambda: crew.numbers == [0, 1, 1, 2])


async def test_a_timer_continues_after_a_cancellation_that_escapes(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    streams = Streams(RedisSettings(url=redis_url, prefix="t:"))
    runs = 0

    @streams.timer(every_s=0.01)
    async def tick() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await await_cancelled()

    task = asyncio.create_task(streams.serve())
    await eventually(lambda: runs >= 3)
    task.cancel()
    await asyncio.wait([task])
    assert "stream_duty_failed kind=timer name=tick" in caplog.text


async def test_processors_continue_when_the_startup_tasks_have_ended(redis_url: str) -> None:
    """And nothing else is declared that would keep them company."""
    async with fleet(redis_url, partitions=1) as crew:
        worker = await crew.start()
        done = asyncio.Event()

        @worker.streams.task()
        async def warm() -> None:
            done.set()

        await done.wait()
        await eventually(crew.settled)
        await crew.send(0, 3)
        await eventually(lambda: crew.numbers == [0, 1, 2])
        assert worker.task is not None
        assert not worker.task.done()


async def _disguised() -> None:
    """Make an error of a cancellation, as clients of databases do."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("the connection is closed") from None


async def _in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_disguised())


@pytest.mark.row("R32")
@pytest.mark.parametrize("wait", [_disguised, _in_a_group])
async def test_an_interruption_that_becomes_an_error_is_no_failure(
    redis_url: str, caplog: pytest.LogCaptureFixture, wait: Callable[[], Awaitable[None]]
) -> None:
    """Its policy would leave the event out, and its middleware make it a dead letter."""
    seen: list[str] = []

    @middleware
    async def watching(
        items: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncGenerator[Item, None]:
        async for item in items:
            try:
                yield item
            except Exception as error:
                seen.append(f"failed: {error}")
                raise

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            await wait()

    options = {"policy": Ignore(keep=True), "grace_s": 0.05, "middleware": [watching]}
    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        worker = await crew.start()
        await crew.send(0, 2)
        await eventually(lambda: crew.numbers == [0])
        meter = worker.executor.runner.counters
        await crew.stop(worker)
        assert (meter.failed, meter.dead) == (0, 0)
        assert await crew.pending() == 2
        assert seen == []
    assert "processor_ended_late processor=orders/handle partition=0 error=" in caplog.text
