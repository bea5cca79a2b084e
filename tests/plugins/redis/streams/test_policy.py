"""What a failure or a cancellation does to its partition, and to no other, also between events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from chancy.attempt.failure import Failure
from chancy.clock import Backoff
from chancy.errors import ConfigurationError
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group.membership import PartitionPlan
from chancy.plugins.redis.streams.model.policy import Halt, Ignore, Policy, Quarantine, RetryInPlace
from chancy.plugins.redis.streams.model.protocols import Item, MiddlewareContext
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.failures import ChildFailed, described, qualified
from chancy.plugins.redis.streams.processing.middleware import middleware
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet, working
from tests.support.waiting import eventually


class Poison(Exception):
    """The failure of the processors of these tests."""


def poisoned(crew: Fleet, *seqs: int, times: int = 10**9) -> None:
    """Make the processors fail at some events, this many times."""
    left = dict.fromkeys(seqs, times)

    async def handle(worker: int, events: Events[Order]) -> None:
        if crew.batch > 1:
            # All batches are full: a late read must not make them smaller.
            async for batch in events.records().take(crew.batch, within=8):
                for order in batch:
                    crew.note(worker, events, order)
                    spoil(order)
        else:
            async for order in events.records():
                crew.note(worker, events, order)
                spoil(order)

    def spoil(order: Order) -> None:
        if left.get(order.seq, 0) > 0:
            left[order.seq] -= 1
            raise Poison(f"event {order.seq}")

    crew.handler = handle


async def read_dead_letters(crew: Fleet, partition: int) -> list[dict[bytes, bytes]]:
    key = crew.orders.keys.dead(partition, "handle")
    found = await crew.orders.link.command("XRANGE", key, "-", "+")
    return [dict(fields) for _, fields in found]


@pytest.mark.row("R21", "R22")
@pytest.mark.parametrize(("batch", "keep"), [(1, False), (5, False), (5, True)])
async def test_ignore_drops_an_event_or_all_of_its_batch(
    place: dict[str, Any], batch: int, keep: bool
) -> None:
    options = {"policy": Ignore(keep=keep)}
    async with fleet(**place, partitions=1, batch=batch, options=options) as crew:
        poisoned(crew, 11)
        await crew.send(0, 20)
        await crew.start()
        await eventually(lambda: 19 in crew.numbers)
        await eventually(crew.idle)
        left_out = range(12, 15) if batch > 1 else ()
        assert crew.numbers == [number for number in range(20) if number not in left_out]
        assert len(await read_dead_letters(crew, 0)) == 5 * keep


@pytest.mark.row("R20", "R22")
async def test_a_quarantine_outlives_its_owner_and_ends_with_a_resume(
    place: dict[str, Any],
) -> None:
    async with fleet(**place, partitions=2, options={"policy": Quarantine()}) as crew:
        poisoned(crew, 10, times=1)
        first = await crew.settle()
        await crew.send(0, 40, keys=2)
        await eventually(lambda: {n for n in crew.numbers if n % 2} == set(range(1, 40, 2)))
        await eventually(lambda: first.executor.runner.parked == {0})
        await crew.stop(first)
        second = await crew.start()
        await eventually(lambda: second.owned == {1})
        await eventually(lambda: second.executor.runner.parked == {0})
        assert max(n for n in crew.numbers if n % 2 == 0) == 10
        keys, link = crew.orders.keys, crew.orders.link
        why = await link.command("HGETALL", keys.park(0, "handle"))
        assert why[b"error"] == b"Poison: event 10"
        await link.command("DEL", keys.park(0, "handle"))
        await link.command("XADD", keys.ctl("handle"), "*", "reason", "resume")
        await eventually(lambda: {n for n in crew.numbers if n % 2 == 0} == set(range(0, 40, 2)))
        assert crew.out_of_order() == []


async def test_retry_tries_again_in_place(place: dict[str, Any]) -> None:
    policy = RetryInPlace(times=3, base_s=0.01)
    async with fleet(**place, partitions=1, options={"policy": policy}) as crew:
        poisoned(crew, 10, times=3)
        await crew.send(0, 20)
        await crew.start()
        await eventually(lambda: 19 in crew.numbers)
        await eventually(crew.idle)
        assert crew.numbers == [*range(11), 10, 10, 10, *range(11, 20)]
        assert await read_dead_letters(crew, 0) == []


async def test_a_batch_that_is_retried_comes_again_in_order(place: dict[str, Any]) -> None:
    policy = RetryInPlace(times=1, base_s=0.01)
    async with fleet(**place, partitions=1, batch=4, options={"policy": policy}) as crew:
        poisoned(crew, 3, times=1)
        await crew.send(0, 8)
        await crew.start()
        await eventually(lambda: 7 in crew.numbers)
        assert crew.numbers == [0, 1, 2, 3, *range(8)]


@pytest.mark.row("R18")
async def test_exhausted_retries_become_dead_letters(place: dict[str, Any]) -> None:
    policy = RetryInPlace(times=2, base_s=0.01)
    async with fleet(**place, partitions=1, options={"policy": policy}) as crew:
        poisoned(crew, 10)
        await crew.send(0, 20)
        worker = await crew.start()
        await eventually(lambda: 19 in crew.numbers)
        await eventually(crew.idle)
        assert crew.numbers.count(10) == 3
        (letter,) = await read_dead_letters(crew, 0)
        assert letter[b"_error"] == f"{__name__}.Poison: event 10".encode()
        assert letter[b"_xid"]
        assert worker.executor.runner.counters.dead == 1


def test_a_failure_in_a_child_process_is_named_like_one_in_the_worker() -> None:
    for error in (Poison("event: 1"), ChildFailed(Failure.of(Poison("event: 1")))):
        assert described(error) == "Poison: event: 1"
        assert qualified(error) == f"{__name__}.Poison: event: 1"


@pytest.mark.row("R23")
@pytest.mark.parametrize("policy", [Ignore(), RetryInPlace(times=1, base_s=0.01)])
async def test_a_processor_that_fails_before_its_first_event_is_begun_again(
    place: dict[str, Any], policy: Policy
) -> None:
    runs = 0

    async def late(worker: int, events: Events[Order]) -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise Poison("not yet")
        async for order in events.records():
            crew.note(worker, events, order)

    async with fleet(**place, partitions=1, handler=late, options={"policy": policy}) as crew:
        await crew.start()
        await crew.send(0, 10)
        await eventually(lambda: crew.numbers == list(range(10)))


@pytest.mark.row("R23")
async def test_a_processor_that_returns_is_begun_again_with_the_same_event(
    place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def leave(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            if crew.numbers == [0, 1, 2]:
                break

    async with fleet(**place, partitions=1, handler=leave) as crew:
        await crew.start()
        await crew.send(0, 5)
        await eventually(lambda: crew.numbers == [0, 1, 2, 2, 3, 4])
        await eventually(crew.idle)
    assert "it returned before its events ended" in caplog.text


@pytest.mark.row("R23")
async def test_undecodable_events_are_handled_by_the_policy(place: dict[str, Any]) -> None:
    async with fleet(**place, partitions=1, options={"policy": Ignore(keep=True)}) as crew:
        link, log = crew.orders.link, crew.orders.keys.log(0)
        await crew.send(0, 1)
        await link.command("XADD", log, "*", "data", "not json")
        await crew.send(1, 1)
        await crew.start()
        await eventually(lambda: crew.numbers == [0, 1])
        await eventually(crew.idle)
        assert len(await read_dead_letters(crew, 0)) == 1


@pytest.mark.row("R14")
async def test_invalid_policies_and_batches_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        RetryInPlace(times=0)
    with pytest.raises(ConfigurationError, match="from 0 to cap_s"):
        RetryInPlace(base_s=5, cap_s=1)


class NothingCame(Exception):
    """Raised by a processor that waits for events for a limited time."""


def fickle(crew: Fleet) -> asyncio.Event:
    """Make the processors fail between events each time that the returned event is set."""
    failing = asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        records = aiter(events.records())
        while True:
            coming = asyncio.ensure_future(anext(records, None))
            told = asyncio.create_task(failing.wait())
            await asyncio.wait([coming, told], return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                failing.clear()
                coming.cancel()
                await asyncio.wait([coming])
                raise NothingCame
            told.cancel()
            order = coming.result()
            if order is None:
                return
            crew.note(worker, events, order)

    crew.handler = handle
    return failing


async def work_and_fail(crew: Fleet, failing: asyncio.Event, times: int) -> None:
    """Process an event, then fail; repeat."""
    for number in range(times):
        await crew.send(number, 1)
        await eventually(partial(lambda one: one in crew.numbers, number))
        failing.set()
        await eventually(lambda: not failing.is_set())


@pytest.mark.row("R23")
async def test_failures_with_work_between_them_are_not_those_of_one_event(redis_url: str) -> None:
    options: dict[str, Any] = {"policy": RetryInPlace(times=1, base_s=0.01, then=Halt())}
    async with fleet(redis_url, partitions=1, options=options) as crew:
        failing = fickle(crew)
        worker = await crew.start()
        await work_and_fail(crew, failing, 4)
        await crew.send(4, 1)
        await eventually(lambda: crew.numbers == [0, 1, 2, 3, 4])
        assert not worker.executor.runner.halted
        # Without an event between them they are counted together.
        for _ in range(2):
            failing.set()
            await eventually(lambda: not failing.is_set())
        await eventually(lambda: worker.executor.runner.halted)


@pytest.mark.row("R23")
async def test_pauses_do_not_grow_while_work_is_done_between_them(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(redis_url, partitions=1, options={"policy": Ignore()}) as crew:
        failing = fickle(crew)
        await crew.start()
        await work_and_fail(crew, failing, 6)

        def pauses() -> list[float]:
            return [float(found) for found in re.findall(r"next_try_s=([\d.]+)", caplog.text)]

        await eventually(lambda: len(pauses()) == 6)
        assert max(pauses()) <= 0.1


async def await_cancelled() -> None:
    """Await a task that was cancelled."""
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


class Panic(BaseException):
    """As the panics of extensions in Rust are."""


@pytest.mark.row("R23")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, Panic])
async def test_a_processor_that_raises_no_exception_is_up_to_the_policy(
    redis_url: str, error: type[BaseException]
) -> None:
    """It would end the worker, and then each other worker that gets the event."""

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            if order.seq == 2:
                raise error(3)
            crew.note(worker, events, order)

    options = {"policy": Ignore()}
    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        await crew.start()
        await crew.send(0, 5)
        await eventually(lambda: crew.numbers == [0, 1, 3, 4])


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


async def test_a_processor_that_cancels_itself_is_begun_again_after_a_pause(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    async def handle(worker: int, events: Events[Order]) -> None:
        runs.append(worker)
        task = asyncio.current_task()
        assert task is not None
        monkeypatch.setattr(Backoff, "next_s", lambda _: 3600.0)
        task.cancel()
        await asyncio.sleep(0)

    async with fleet(redis_url, partitions=1, handler=handle) as crew:
        worker = await crew.start()
        await eventually(lambda: runs and not worker.executor.runner.partitions)
        executor = worker.executor
        await executor.runner.follow(PartitionPlan(1, [executor.member], [executor.member]))
        assert not executor.runner.partitions
        assert len(runs) == 1
        monkeypatch.undo()


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

    async with working(streams):
        await eventually(lambda: runs >= 3)
    assert "stream_duty_failed kind=timer name=tick" in caplog.text


async def test_processors_continue_when_the_startup_tasks_have_ended(redis_url: str) -> None:
    """Also if the application declares nothing else."""
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
    """Turn a cancellation into an error, as clients of databases do."""
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
    """Otherwise the policy would skip the event, and a middleware dead-letter it."""
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
