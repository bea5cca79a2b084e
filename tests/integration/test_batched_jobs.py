"""Jobs of functions that take the items of several jobs in one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from chancy import Chancy, Queue, Reference, State, Worker
from tests.integration.batched_jobs import CALLS, add, collect, double, lose, store
from tests.support.waiting import eventually, is_in


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    queue = Queue("batched", executor="async", concurrency=50)
    async with Chancy(dsn, queues=[queue]) as app:
        yield app


async def states(references: Sequence[Reference[object]]) -> list[State]:
    return [(await reference.wait(20)).state for reference in references]


async def test_a_full_batch_is_one_call_with_an_outcome_for_each_job(chancy: Chancy) -> None:
    pushed = await chancy.push_many(double.job([n]) for n in range(50))
    async with Worker(chancy):
        done = [await reference.wait(20) for reference in pushed]
    assert len(CALLS) == 1
    assert sorted(CALLS[0]) == list(range(50))
    assert [job.state for job in done] == [State.SUCCEEDED, State.FAILED] * 25
    assert [job.result for job in done[::2]] == [[2 * n] for n in range(0, 50, 2)]
    assert [job.errors[0]["message"] for job in done[1::2]] == [
        f"{n} is odd" for n in range(1, 50, 2)
    ]


async def test_a_call_starts_when_a_job_has_waited_or_all_slots_are_taken(chancy: Chancy) -> None:
    waited = await chancy.push(store.job([1, 2]))
    async with Worker(chancy):
        assert await states([waited]) == [State.SUCCEEDED]
        await states(await chancy.push_many(collect.job([3, 4]) for _ in range(50)))
    assert CALLS == [[1, 2], [3, 4] * 50]


async def test_jobs_with_other_arguments_are_another_batch(chancy: Chancy) -> None:
    pushed = await chancy.push_many(store.job([n], table="ab"[n % 2]) for n in range(6))
    async with Worker(chancy):
        await states(pushed)
    assert sorted(map(sorted, CALLS)) == [[0, 2, 4], [1, 3, 5]]


async def test_a_wrong_job_fails_alone(chancy: Chancy) -> None:
    wrong = await chancy.push(store.job.template.with_arguments(numbers=["x"]), validate=False)
    right = await chancy.push(store.job([1]))
    async with Worker(chancy):
        assert await states([wrong, right]) == [State.FAILED, State.SUCCEEDED]
    assert CALLS == [[1]]


async def test_a_job_that_waits_for_others_can_be_cancelled(chancy: Chancy) -> None:
    async with Worker(chancy):
        cancelled = await chancy.push(double.job([2]))
        await eventually(lambda: is_in(cancelled, State.RUNNING))
        await chancy.cancel(cancelled.id)
        assert await states([cancelled]) == [State.CANCELLED]
        rest = await chancy.push_many(double.job([4]) for _ in range(50))
        assert set(await states(rest)) == {State.SUCCEEDED}
    assert CALLS == [[4] * 50]


async def test_a_result_that_fits_no_items_fails_all_jobs(chancy: Chancy) -> None:
    pushed = await chancy.push_many(lose.job([n]) for n in range(2))
    async with Worker(chancy):
        done = [await reference.wait(20) for reference in pushed]
    assert {job.state for job in done} == {State.FAILED}
    assert "1 results for 2 items" in done[0].errors[0]["message"]


async def test_a_batch_runs_in_an_executor_process(dsn: str) -> None:
    async with Chancy(dsn, queues=[Queue("batched", concurrency=2)]) as chancy:
        pushed = await chancy.push_many(add.job([n, 1]) for n in (5, 0))
        async with Worker(chancy):
            five, zero = [await reference.wait(30) for reference in pushed]
    assert (five.state, five.result) == (State.SUCCEEDED, [7, 7])
    assert (zero.state, zero.errors[0]["types"][0]) == (State.FAILED, "builtins.KeyError")


async def test_a_worker_that_stops_releases_jobs_that_wait_for_others(chancy: Chancy) -> None:
    async with Worker(chancy, shutdown_timeout_s=0.1):
        waiting = await chancy.push(double.job([2]))
        await eventually(lambda: is_in(waiting, State.RUNNING))
    job = await waiting.get()
    assert job is not None
    assert (job.state, job.attempt) == (State.PENDING, 0)
    assert not CALLS
