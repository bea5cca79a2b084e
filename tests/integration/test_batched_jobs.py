"""Jobs of functions that take the items of several jobs in one call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Literal

import pytest

from chancy import Chancy, Job, Queue, Reference, State, Worker
from tests.integration.batched_jobs import (
    CALLS,
    Line,
    add,
    answer,
    collect,
    double,
    halve,
    lose,
    price,
    repeat,
    same,
    store,
)
from tests.support.presence import present
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
    return [(await reference.wait(60)).state for reference in references]


async def test_a_full_batch_is_one_call_with_an_outcome_for_each_job(chancy: Chancy) -> None:
    pushed = await chancy.push_many(double.job([n]) for n in range(50))
    async with Worker(chancy):
        done = [await reference.wait(60) for reference in pushed]
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


async def test_a_job_that_waits_for_others_is_released_by_a_pause_and_at_shutdown(
    chancy: Chancy,
) -> None:
    waits = await chancy.push(collect.job([1]))
    async with Worker(chancy, shutdown_timeout_s=600):
        await eventually(lambda: is_in(waits, State.RUNNING))
        await chancy.pause_queue("batched")
        await eventually(lambda: is_in(waits, State.PENDING))
        await chancy.resume_queue("batched")
        await eventually(lambda: is_in(waits, State.RUNNING))
    assert await waits.status() is State.PENDING
    assert CALLS == []


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
        done = [await reference.wait(60) for reference in pushed]
    assert {job.state for job in done} == {State.FAILED}
    assert "1 results for 2 items" in done[0].errors[0]["message"]


async def test_an_item_can_have_a_control_result_or_a_wrong_one(chancy: Chancy) -> None:
    names = "retry", "limited", "snooze", "cancel", "object", "plain"
    pushed = await chancy.push_many(answer.job([name]) for name in names)
    async with Worker(chancy):
        await states(pushed[3:])
        await eventually(lambda: is_in(pushed[2], State.SCHEDULED))
    jobs = await chancy.get_jobs([reference.id for reference in pushed])
    retry, limited, snooze, cancel, wrong, plain = (jobs[reference.id] for reference in pushed)
    for job, attempt in ((retry, 1), (limited, 0), (snooze, 0)):
        assert (job.state, job.attempt) == (State.SCHEDULED, attempt)
        assert job.run_at is not None
        assert (job.run_at - job.pushed_at).total_seconds() > 890
    assert retry.errors[0]["message"] == "later"
    assert (limited.meta["rate_limited"], snooze.meta["snoozes"]) == (1, 1)
    assert (cancel.state, cancel.errors[0]["message"]) == (State.CANCELLED, "not wanted")
    assert wrong.errors[0]["types"][0] == "chancy.errors.InvalidResult"
    assert plain.result == ["plain"]


async def test_the_limit_of_results_is_that_of_each_job(dsn: str) -> None:
    queue = Queue("batched", executor="async", concurrency=4)
    async with Chancy(dsn, queues=[queue], max_payload=1_000) as chancy:
        pushed = await chancy.push_many(map(repeat.job, ([900], [1_100], [500, 500], [800])))
        async with Worker(chancy):
            one, large, two, other = [await reference.wait(60) for reference in pushed]
    assert (one.result, other.result) == (["x" * 900], ["x" * 800])
    for job in (large, two):
        assert job.errors[0]["types"][0] == "chancy.errors.PayloadTooLarge"


async def test_jobs_of_an_older_version_join_a_batch(chancy: Chancy) -> None:
    old = Job[object](func=halve.job.template.func, queue="batched", max_attempts=1)
    pushed = await chancy.push_many(
        [old.with_arguments(number=3), old.with_arguments(number=4)], validate=False
    )
    current = await chancy.push(halve.job([6]))
    async with Worker(chancy):
        three, four, six = [await reference.wait(60) for reference in (*pushed, current)]
    assert (three.state, three.errors[0]["message"]) == (State.FAILED, "3 is odd")
    assert (four.result, six.result) == ([2], [3])
    assert CALLS == [[3, 4, 6]]


async def test_a_batch_runs_in_an_executor_process(dsn: str) -> None:
    async with Chancy(dsn, queues=[Queue("batched", concurrency=2)]) as chancy:
        pushed = await chancy.push_many(add.job([n, 1]) for n in (5, 0))
        async with Worker(chancy):
            five, zero = [await reference.wait(30) for reference in pushed]
    assert (five.state, five.result) == (State.SUCCEEDED, [7, 7])
    assert (zero.state, zero.errors[0]["types"][0]) == (State.FAILED, "builtins.KeyError")


async def test_results_of_items_have_the_types_of_the_function(chancy: Chancy) -> None:
    pushed = await chancy.push_many(price.job([Line(id=n), Line(id=2)]) for n in (1, 0))
    async with Worker(chancy):
        assert await pushed[0].result(60) == [Decimal("0.5"), Decimal(1)]
        wrong = await pushed[1].wait(60)
    assert wrong.errors[0]["types"][0] == "chancy.errors.InvalidResult"


@pytest.mark.parametrize("executor", ["process", "thread"])
async def test_results_of_items_are_typed_in_other_executors(
    dsn: str, executor: Literal["process", "thread"]
) -> None:
    queue = Queue("batched", executor=executor, concurrency=2)
    async with Chancy(dsn, queues=[queue]) as chancy:
        pushed = await chancy.push_many(same.job([Line(id=n)]) for n in (1, 0))
        async with Worker(chancy):
            assert await pushed[0].result(30) == [Line(id=1)]
            wrong = await pushed[1].wait(30)
    assert wrong.errors[0]["types"][0] == "chancy.errors.InvalidResult"


async def test_a_call_has_no_more_items_than_the_batch(chancy: Chancy) -> None:
    """Unless a single job has more."""
    await chancy.push_many(double.job([2] * count) for count in (30, 30, 20, 60))
    async with Worker(chancy):
        await eventually(lambda: len(CALLS) == 3)
    assert sorted(map(len, CALLS)) == [30, 50, 60]


async def test_a_worker_that_stops_releases_jobs_that_wait_for_others(chancy: Chancy) -> None:
    async with Worker(chancy, shutdown_timeout_s=0.1):
        waiting = await chancy.push(double.job([2]))
        await eventually(lambda: is_in(waiting, State.RUNNING))
    job = present(await waiting.get())
    assert (job.state, job.attempt) == (State.PENDING, 0)
    assert not CALLS
