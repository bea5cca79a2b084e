"""The hook `settled`: what became of each claim, after it was stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from chancy import Chancy, Plugin, Queue, Settlement, State, Worker, job
from chancy.attempt.outcome import Raised, Returned
from chancy.worker import settler
from tests.support.sql import ask
from tests.support.waiting import eventually

GATE = asyncio.Event()


@job(queue="counted")
async def returning() -> None:
    pass


@job(queue="counted", max_attempts=1)
async def raising() -> None:
    raise ValueError("no")


@job(queue="counted")
async def waiting() -> None:
    await GATE.wait()


@job(queue="counted")
async def napping() -> None:
    """Takes long enough not to end in the same turn of the loop as the next one."""
    await asyncio.sleep(0.005)


class Counter(Plugin):
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.stored: list[Settlement] = []
        self.stale: list[Settlement] = []

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        self.batches.append(len(batch))
        self.stored += batch
        self.stale += stale


async def test_stored_and_stale_settlements_come_with_claim_and_outcome(dsn: str) -> None:
    GATE.clear()
    counter = Counter()
    queue = Queue("counted", executor="async")
    async with Chancy(dsn, queues=[queue], plugins=[counter]) as chancy, Worker(chancy):
        lost = await chancy.push(waiting.job())
        good, bad = await chancy.push_many([returning.job(), raising.job()])
        assert (await good.wait(30)).state is State.SUCCEEDED
        assert (await bad.wait(30)).state is State.FAILED
        take_over = "update chancy.jobs set lease = gen_random_uuid() where id = %s and state = 1"
        assert ask(dsn, f"{take_over} returning 1", [lost.id]) == [(1,)]
        GATE.set()
        await eventually(lambda: counter.stale)
        assert len(counter.stored) == 2
    outcomes = {item.id: item.outcome for item in counter.stored + counter.stale}
    assert isinstance(outcomes[good.id], Returned)
    assert isinstance(outcomes[bad.id], Raised)
    assert [item.id for item in counter.stale] == [lost.id]
    claims = [item.claim for item in counter.stored + counter.stale]
    assert {claim.queue for claim in claims if claim is not None} == {"counted"}


async def test_outcomes_of_a_backlog_are_stored_together(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settler._GATHER_S == 0.025, "as long as a few naps, and no longer than documented"
    # On a busy machine each of the naps takes longer.
    monkeypatch.setattr(settler, "_GATHER_S", 1.0)
    counter = Counter()
    queue = Queue("counted", executor="async", concurrency=1)
    async with Chancy(dsn, queues=[queue], plugins=[counter]) as chancy:
        await chancy.push_many(napping.job() for _ in range(60))
        async with Worker(chancy):
            await eventually(lambda: len(counter.stored) == 60)
            assert len(counter.batches) <= 30, "a transaction for each job"
            alone = await chancy.push(napping.job())
            assert (await alone.wait(30)).state is State.SUCCEEDED
