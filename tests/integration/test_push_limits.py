"""Limits of jobs, by every way of pushing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import psycopg
import pytest

from chancy import Chancy, Limit, Queue
from chancy.job.limits import Limits, decode_limits
from chancy.testing.conformance.bench import Bench
from tests.support import jobs


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn) as made:
        yield made


async def test_limits_reach_the_claim_by_every_way_of_pushing(chancy: Chancy, dsn: str) -> None:
    limits = (Limit.time(2.5), Limit.memory(2**28))
    made = jobs.note.job(value=1)
    bounded = made.with_limits(*limits)
    pushed = [await chancy.push(bounded)]
    # One and many take different statements, and 1,001 are two chunks.
    pushed += await chancy.push_many([bounded])
    several = await chancy.push_many([made, bounded, *[made] * 999, bounded])
    pushed += [several[1], several[1001]]
    with Chancy(dsn) as sync:
        pushed.append(sync.sync_push(bounded))
        pushed += sync.sync_push_many([bounded, bounded])
        with psycopg.connect(dsn) as session:
            pushed.append(sync.sync_push(bounded, within=session))
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        pushed.append(await chancy.push(bounded, within=connection))
    await connection.close()
    async with chancy.transaction() as transaction:
        pushed.append(await chancy.push(bounded, within=transaction))
        pushed += await chancy.push_many([bounded], within=transaction)
    bench = Bench(chancy.broker)
    await bench.prepare(Queue(name="async"))
    claims = await bench.claim(limit=2_000, queue="async")
    found = {claim.id: decode_limits(claim.limits) for claim in claims if claim.limits is not None}
    assert found == {reference.id: Limits(2.5, 2**28) for reference in pushed}
    assert len(pushed) == 11
    assert len(claims) == 1_011
    for job in (await chancy.get_jobs([reference.id for reference in pushed])).values():
        assert job.limits == limits
