"""What all jobs of a queue depend on is down: each fails, and is run again."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.plugins.retry import Retries
from chancy.retry import Exponential
from tests.faults import fleet as fleets
from tests.faults import jobs, tables
from tests.faults.book import Book
from tests.support.sql import ask
from tests.support.waiting import eventually

JOBS = 20_000
PROBES = 150
#: Of the queue beside it: how much longer a job may take in the storm, and what it may take in any
#: case, since what it takes without is some 5 ms.
RATIO = 40.0
FLOOR_S = 0.02


async def probe(chancy: Chancy, book: Book, first: int) -> float:
    """Push single jobs to the other queue; the median of the seconds from push to end, by the
    clock of the server."""
    for number in range(first, first + PROBES):
        await chancy.push(jobs.work.job(str(book), number).with_queue("other"))
        # The pace of the load, not a wait for an effect.
        await asyncio.sleep(0.02)

    async def ended() -> bool:
        query = "select count(*) from chancy.finished_jobs where queue = 'other'"
        return await asyncio.to_thread(ask, chancy.dsn, query) == [(first + PROBES,)]

    await eventually(ended, timeout=30.0)
    ((seconds,),) = ask(
        chancy.dsn,
        "select percentile_cont(0.5) within group (order by extract(epoch from"
        " finished_at - pushed_at)) from chancy.finished_jobs"
        " where queue = 'other' and (arguments ->> 'number')::int >= %s",
        [first],
    )
    return float(seconds)


@pytest.mark.chaos
async def test_a_storm_of_retries_is_spread_and_holds_no_other_queue_up(
    dsn: str, book: Book
) -> None:
    queues = [
        Queue(name="load", executor="async", concurrency=64),
        Queue(name="other", executor="async", concurrency=4),
    ]
    app = Chancy(dsn, queues=queues, plugins=[Retries(Exponential())], no_default_plugins=True)
    async with app, Worker(app, queues=["load", "other"]):
        calm_s = await probe(app, book, 0)
        down = jobs.stagger.job(str(book), 0, 99).with_max_attempts(3)
        await app.push_many(down.with_arguments(number=number) for number in range(JOBS))
        storm_s = await probe(app, book, PROBES)
        await eventually(lambda: tables.live(dsn) == 0, timeout=60.0)
    failures = failures_during(dsn)
    fleets.tell(calm_s=calm_s, storm_s=storm_s, failures=failures)
    assert failures > JOBS, "the storm was over before its effect was measured"
    assert storm_s < max(calm_s, FLOOR_S) * RATIO
    assert tables.states(dsn) == {State.FAILED: JOBS, State.SUCCEEDED: 2 * PROBES}
    check_spread(dsn)


def failures_during(dsn: str) -> int:
    """How many attempts failed while the other queue was measured in the storm."""
    ((count,),) = ask(
        dsn,
        "select count(*) from chancy.finished_jobs as f, jsonb_array_elements(f.errors) as e, ("
        "  select min(pushed_at) as begin, max(finished_at) as until from chancy.finished_jobs"
        "  where queue = 'other' and (arguments ->> 'number')::int >= %s) as span"
        " where f.queue = 'load' and (e ->> 'at')::timestamptz between span.begin and span.until",
        [PROBES],
    )
    return int(count)


def check_spread(dsn: str) -> None:
    """The second delay of each job is anywhere from 2 to 4 s, so that those which failed together
    do not come back together."""
    delays = ask(
        dsn,
        "select extract(epoch from run_at - (errors -> 1 ->> 'at')::timestamptz)::float8"
        " from chancy.finished_jobs where queue = 'load'",
    )
    tenths = Counter(int((delay - 2.0) / 0.2) for (delay,) in delays)
    fleets.tell(tenths=sorted(tenths.items()))
    assert set(tenths) <= set(range(11))
    for tenth in range(10):
        assert 0.08 * JOBS < tenths[tenth] < 0.12 * JOBS, tenths
