"""Very many jobs that are due at one moment, beside others that are pushed meanwhile."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, Queue, Worker, job
from chancy.broker.contract import Broker
from chancy.broker.values import Promotion
from chancy.worker.promoter import BATCH
from tests.support.waiting import eventually

#: How much later than before a job may start while the others are promoted: the median, as a
#: multiple, and the slowest of twenty, in seconds.
TIMES, SLOWEST_S = 5.0, 0.25
#: Seconds that one promotion may take.
STATEMENT_S = 1.0
FILL = """
insert into chancy.jobs (id, pos, state, queue, func, arguments, run_at)
select gen_random_uuid(), nextval('chancy.positions'), 2, 'flood', 'a.b', '{}', now()
from generate_series(1, %s) as n
"""
BY_STATE = "select state, count(*), count(distinct pos) from chancy.jobs group by state"

_started: dict[int, float] = {}
#: The event that the next job sets.
_heard: list[asyncio.Event] = []


@job(queue="quick")
async def ring(number: int) -> None:
    _started[number] = time.monotonic()
    _heard[-1].set()


class Watched:
    """Promotions of one broker: how many jobs each made pending, and how long it took."""

    def __init__(self, broker: Broker) -> None:
        self._promote = broker.promote
        self.sizes: list[int] = []
        self.took_s: list[float] = []

    async def promote(self, limit: int, *, worker_id: UUID | None = None) -> Promotion:
        began = time.monotonic()
        promotion = await self._promote(limit, worker_id=worker_id)
        self.took_s.append(time.monotonic() - began)
        self.sizes.append(promotion.promoted)
        return promotion


async def latencies(chancy: Chancy, least: int, goes_on: Callable[[], bool]) -> list[float]:
    """Push one job after another; seconds from each push to its start."""
    found: list[float] = []
    while len(found) < least or goes_on():
        number = len(_started)
        _heard[:] = [asyncio.Event()]
        began = time.monotonic()
        await chancy.push(ring.job(number=number))
        await asyncio.wait_for(_heard[-1].wait(), 20)
        found.append(_started[number] - began)
    return found


async def avalanche(dsn: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Queue(name="quick", executor="async")
    watched: list[Watched] = []
    async with AsyncExitStack() as stack:
        for _ in range(2):
            chancy = await stack.enter_async_context(Chancy(dsn, queues=[quick]))
            watched.append(Watched(chancy.broker))
            monkeypatch.setattr(chancy.broker, "promote", watched[-1].promote)
            await stack.enter_async_context(Worker(chancy, queues=["quick"]))
        chancy = await stack.enter_async_context(Chancy(dsn))
        await latencies(chancy, 50, lambda: False)
        before = await latencies(chancy, 300, lambda: False)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(FILL.encode(), (count,))
            began = time.monotonic()

            def promoted() -> int:
                return sum(sum(one.sizes) for one in watched)

            during = await latencies(chancy, 20, lambda: promoted() < count)
            took_s = time.monotonic() - began
            await eventually(lambda: promoted() == count)
            rows: list[Any] = await (await connection.execute(BY_STATE.encode())).fetchall()
    # Each of them became pending, once, with a place of its own.
    assert (0, count, count) in rows, rows
    assert all(state != 2 for state, _, _ in rows), rows
    sizes = [size for one in watched for size in one.sizes]
    assert max(sizes) == BATCH
    assert all(sum(one.sizes) > count / 10 for one in watched), "both did their part"
    assert max(max(one.took_s) for one in watched) < STATEMENT_S
    usual, now = statistics.median(before), statistics.median(during)
    slowest = statistics.quantiles(during, n=20)[-1]
    said = (
        f"{count:,} promoted in {took_s:.1f} s; {len(during)} jobs started meanwhile: median "
        f"{now * 1000:.1f} ms, {usual * 1000:.1f} ms before, slowest of twenty "
        f"{slowest * 1000:.1f} ms"
    )
    assert now <= usual * TIMES, said
    assert slowest <= SLOWEST_S, said


@pytest.mark.chaos
@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_an_avalanche_of_a_million_is_promoted_beside_other_work(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await avalanche(dsn, 1_000_000, monkeypatch)
