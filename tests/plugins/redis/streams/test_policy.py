"""What a failing processor does to its partition, and to no other."""

from __future__ import annotations

from typing import Any

import pytest

from chancy.attempt.failure import Failure
from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.policy import Ignore, Policy, Quarantine, RetryInPlace
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.failures import ChildFailed, described, qualified
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.support.waiting import eventually


class Poison(Exception):
    """What the processors of these tests fail with."""


def poisoned(crew: Fleet, *seqs: int, times: int = 10**9) -> None:
    """Let the processors fail at some events, so many times."""
    left = dict.fromkeys(seqs, times)

    async def handle(worker: int, events: Events[Order]) -> None:
        if crew.batch > 1:
            async for batch in events.records().take(crew.batch, within=0.02):
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
