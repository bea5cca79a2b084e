"""What becomes of a batch when the dead letter of one of its jobs is replayed."""

from __future__ import annotations

import pytest

from chancy import Chancy, State
from chancy.plugins.batch import Batches, BatchState
from chancy.plugins.batch.calls import Calls
from chancy.plugins.batch.ends import End, Place
from chancy.plugins.dead_letter import DeadLetters
from tests.workflow import batch_jobs
from tests.workflow.batch_jobs import act, ran
from tests.workflow.batching import (
    Deaf,
    callbacks,
    counts,
    eventually_counts,
    execute,
    idle,
    sweep_of,
    working,
)

LETTERS = DeadLetters()


@pytest.mark.parametrize("forced", [False, True])
async def test_a_replay_that_succeeds_makes_its_batch_succeed(
    batches_dsn: str, forced: bool
) -> None:
    batches = Batches()
    batch_jobs.failing.update({1, 2})
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in range(4)])
        assert await reference.finished(20) is BatchState.FAILED
        await idle(batches_dsn)
        # The first replay fails; the one after it is of that letter, or of the first one again.
        first, other = [id for id, _ in await reference.bad()]
        again = await LETTERS.replay(chancy, first)
        assert again is not None
        await idle(batches_dsn)
        assert await counts(reference) == (0, 2, 2, 0)
        batch_jobs.failing.clear()
        assert await LETTERS.replay(chancy, first if forced else again, force=True)
        await eventually_counts(reference, (0, 3, 1, 0))
        found = await reference.get()
        assert found is not None
        assert found.state is BatchState.FAILED
        for _ in range(2):  # it counts once
            assert await LETTERS.replay(chancy, other, force=True)
        await eventually_counts(reference, (0, 4, 0, 0))
        assert await reference.finished(5) is BatchState.SUCCEEDED
        await idle(batches_dsn)
        assert await counts(reference) == (0, 4, 0, 0)
    told = [one for one in ran if one.startswith("on ")]
    assert sorted(told) == ["on failure", "on finish", "on success"]


async def test_a_replay_may_end_before_its_first_job_is_told(batches_dsn: str) -> None:
    deaf, batches = Deaf(), Batches(sweep_s=3600)
    batch_jobs.failing.add(1)
    async with working(batches_dsn, deaf) as chancy:
        id = (await deaf.push(chancy, callbacks(), [act.job(1)])).id
        await idle(batches_dsn)
        ((letter,),) = execute(batches_dsn, "select id from chancy.dead_letters")
        batch_jobs.failing.clear()
        await LETTERS.replay(chancy, letter)
        await idle(batches_dsn)
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        # As the service of a worker would that has seen the replay end, and not its first job.
        ((job,),) = execute(batches_dsn, "select replayed_as from chancy.dead_letters")
        await Calls(chancy.broker).settle([End(Place(id, letter), job, int(State.SUCCEEDED))])
        reference = batches.reference(chancy, id)
        assert await reference.finished(5) is BatchState.SUCCEEDED
        assert await counts(reference) == (0, 1, 0, 0)
        assert await sweep_of(chancy).turn() == 0
