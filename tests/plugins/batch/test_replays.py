"""Replays of dead letters of jobs of batches."""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, State
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.outcomes import SQL, BatchJobOutcome, BatchRef, settle_statement
from chancy.plugins.dead_letter import DeadLetters
from tests.plugins.batch import jobs as batch_jobs
from tests.plugins.batch.batching import (
    Unreporting,
    callbacks,
    counts,
    eventually_counts,
    idle,
    sweep_of,
    working,
)
from tests.plugins.batch.jobs import act, ran
from tests.support.locks import BLOCKED
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

LETTERS = DeadLetters()


async def test_a_replay_that_succeeds_makes_its_batch_succeed(batches_dsn: str) -> None:
    batches = Batches()
    batch_jobs.failing.update({1, 2})
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in range(4)])
        assert await reference.wait(20) is BatchState.FAILED
        await idle(batches_dsn)
        # The first replay fails, and its dead letter is replayed again.
        first, other = [id for id, _ in await reference.bad()]
        assert await LETTERS.replay(chancy, first)
        await idle(batches_dsn)
        assert await counts(reference) == (0, 2, 2, 0)
        batch_jobs.failing.clear()
        assert await LETTERS.replay(chancy, first, force=True)
        await eventually_counts(reference, (0, 3, 1, 0))
        found = present(await reference.get())
        assert found.state is BatchState.FAILED
        for _ in range(2):  # it counts once
            assert await LETTERS.replay(chancy, other, force=True)
        await eventually_counts(reference, (0, 4, 0, 0))
        assert await reference.wait(5) is BatchState.SUCCEEDED
        await idle(batches_dsn)
        assert await counts(reference) == (0, 4, 0, 0)
    told = [one for one in ran if one.startswith("on ")]
    assert sorted(told) == ["on failure", "on finish", "on success"]


async def test_a_replay_may_end_before_its_first_job_is_reported(batches_dsn: str) -> None:
    deaf, batches = Unreporting(), Batches(sweep_s=3600)
    batch_jobs.failing.add(1)
    async with working(batches_dsn, deaf) as chancy:
        id = (await deaf.push(chancy, callbacks(), [act.job(1)])).id
        await idle(batches_dsn)
        ((letter,),) = ask(batches_dsn, "select id from chancy.dead_letters")
        batch_jobs.failing.clear()
        await LETTERS.replay(chancy, letter)
        await idle(batches_dsn)
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        # As the service of a worker that has recorded the replay, but not the first job.
        ((job,),) = ask(batches_dsn, "select replayed_as from chancy.dead_letters")
        await BatchCalls(chancy.broker).report(
            [BatchJobOutcome(BatchRef(id, letter), job, int(State.SUCCEEDED))]
        )
        reference = batches.reference(chancy, id)
        assert await reference.wait(5) is BatchState.SUCCEEDED
        assert await counts(reference) == (0, 1, 0, 0)
        assert await sweep_of(chancy).turn() == 0


async def test_the_sweep_reports_a_replay_whose_worker_died(batches_dsn: str) -> None:
    batches = Batches(sweep_s=3600)
    batch_jobs.failing.add(1)
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in (1, 2)])
        assert await reference.wait(20) is BatchState.FAILED
        await idle(batches_dsn)
        ((letter, _),) = await reference.bad()
    # The workers report neither the failed replay, nor the replay of that one.
    async with working(batches_dsn, Unreporting()) as chancy:
        first = present(await LETTERS.replay(chancy, letter))
        await idle(batches_dsn)
        batch_jobs.failing.clear()
        assert await LETTERS.replay(chancy, first)
        await idle(batches_dsn)
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference, sweep = batches.reference(chancy, reference.id), sweep_of(chancy)
        assert await sweep.turn() == 1
        assert await counts(reference) == (0, 1, 1, 0)
        assert await sweep.turn() == 1
        assert await reference.wait(5) is BatchState.SUCCEEDED
        assert await counts(reference) == (0, 2, 0, 0)
        assert await sweep.turn() == 0
        pushed = {one.on.label: one.pushed_at is not None for one in await reference.callbacks()}
        assert pushed == {"success": True, "failure": True, "finish": True}


@pytest.mark.parametrize("succeeds", [0, 1])
async def test_a_success_counts_among_replays_that_end_at_the_same_time(
    batches_dsn: str, succeeds: int
) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference = await batches.push(chancy, Batch(name="b"), [act.job(1)])
        ((job,),) = ask(batches_dsn, "select job_id from chancy.batches_jobs")
        store = SQL.on(chancy.broker).store
        first = BatchJobOutcome(BatchRef(reference.id, None), job, int(State.FAILED))
        await store.fetch(*settle_statement("chancy", [first]))
        assert await counts(reference) == (0, 0, 1, 0)
        ref = BatchRef(reference.id, job)
        states = [State.SUCCEEDED if at == succeeds else State.FAILED for at in range(2)]
        ends = [BatchJobOutcome(ref, UUID(int=at), int(one)) for at, one in enumerate(states)]
        await store.fetch(*settle_statement("chancy", ends))
        assert await counts(reference) == (0, 1, 0, 0)
        assert await reference.wait(5) is BatchState.SUCCEEDED


async def blocked(dsn: str, count: int) -> None:
    waiting = f"select 1 from pg_stat_activity where {BLOCKED}"
    await eventually(lambda: len(ask(dsn, waiting)) >= count)


async def test_replays_and_jobs_of_several_batches_wait_in_one_order(batches_dsn: str) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        store = SQL.on(chancy.broker).store
        jobs = [[act.job(n) for n in range(4)] for _ in range(2)]
        first, second = sorted(
            [(await batches.push(chancy, Batch(name="b"), some)).id for some in jobs]
        )

        def ids(batch: UUID) -> list[UUID]:
            wanted = "select job_id from chancy.batches_jobs where batch_id = %s order by job_id"
            return [row[0] for row in ask(batches_dsn, wanted, [batch])]

        async def settle(*outcomes: BatchJobOutcome) -> None:
            await store.fetch(*settle_statement("chancy", outcomes))

        one, other = ids(first), ids(second)
        await settle(BatchJobOutcome(BatchRef(first, None), one[0], int(State.FAILED)))
        well = int(State.SUCCEEDED)
        replay = BatchJobOutcome(BatchRef(first, one[0]), UUID(int=1), well)
        both = [
            BatchJobOutcome(BatchRef(first, None), one[1], well),
            BatchJobOutcome(BatchRef(second, None), other[1], well),
        ]
        async with await psycopg.AsyncConnection.connect(batches_dsn) as held:
            shards = "select from chancy.batches_shards where batch_id = %s for update"
            await held.execute(shards, [first])
            plain = asyncio.create_task(settle(*both))
            await blocked(batches_dsn, 1)
            mixed = asyncio.create_task(
                settle(replay, BatchJobOutcome(BatchRef(second, None), other[0], well))
            )
            await blocked(batches_dsn, 2)
        await asyncio.gather(mixed, plain)
        assert await counts(batches.reference(chancy, first)) == (2, 2, 0, 0)
        assert await counts(batches.reference(chancy, second)) == (2, 2, 0, 0)
