"""Jobs that were given to a worker which hears of them late, and may never claim again."""

from __future__ import annotations

import struct
import time
from uuid import UUID

import pytest

from chancy.attempt.claim import Claim
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis import RedisBroker
from chancy.plugins.redis.jobs.handoff import Handoff
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared
from tests.plugins.redis.jobs.listening import Listening, woken
from tests.support.waiting import eventually


async def test_what_is_heard_late_goes_back_if_nobody_claims_there_again(
    bench: Bench, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the worker no longer serves the queue. It is no crash."""
    assert await bench.claim() == []
    monkeypatch.setattr("chancy.plugins.redis.jobs.handoff.LATE_S", -60.0)
    [job] = await bench.push(prepared())
    await woken(listening)
    other = Bench(bench.broker)
    await other.prepare()

    async def claims() -> list[Claim]:
        return list(await other.claim())

    [claim] = await eventually(claims, timeout=5.0)
    assert (claim.id, claim.attempt, claim.crashes) == (job, 1, 0)
    assert await bench.claim() == []


async def test_it_is_asked_for_until_the_server_says_it(
    bench: Bench, listening: Listening, monkeypatch: pytest.MonkeyPatch, broker: RedisBroker
) -> None:
    assert await bench.claim() == []
    monkeypatch.setattr("chancy.plugins.redis.jobs.handoff.LATE_S", -60.0)
    [job] = await bench.push(prepared())
    await woken(listening)
    run, asked = broker.client.run, list[str]()

    async def fail(name: str, *args: str | bytes | float) -> object:
        asked.append(name)
        if name == "claim" and asked.count(name) < 3:
            raise BrokerUnavailable("away")
        return await run(name, *args)

    monkeypatch.setattr(broker.client, "run", fail)

    async def waits() -> bool:
        return await bench.state(job) is State.PENDING

    await eventually(waits, timeout=5.0)
    assert asked.count("claim") == 3


def given(number: int, queue: str) -> Claim:
    lease = UUID(bytes=struct.pack(">d", float(number)) + bytes(8))
    id, worker = UUID(int=number), UUID(int=1)
    return Claim(id, lease, worker, queue, "a.b", "{}", 1, 3, 0, 0, number, None, None)


async def test_unused_entries_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except entries with unconfirmed jobs: the server would hand those off again."""
    monkeypatch.setattr("chancy.plugins.redis.jobs.handoff.MOST_ENTRIES", 3)
    made = Handoff(lambda claims: None, lambda worker, queue: None)
    made.skew = time.monotonic() - 1_000.0
    worker, [first, second] = UUID(int=1), [given(900, "a"), given(901, "b")]
    assert made.missed([first, second]) == [first, second]
    received = made.unconfirmed(worker, "b")
    made.confirmed(worker, "b", received)
    made.unconfirmed(worker, "c")
    made.unconfirmed(worker, "b")
    made.unconfirmed(worker, "d")
    assert sorted(made.queues(worker)) == ["a", "b", "d"]
    made.unconfirmed(worker, "e")
    assert sorted(made.queues(worker)) == ["a", "d", "e"]
    assert made.missed([first]) == []
    # A day later the server does not know what it gave.
    made.skew -= 100_000.0
    for queue in "def":
        made.unconfirmed(worker, queue)
    assert sorted(made.queues(worker)) == ["d", "e", "f"]
