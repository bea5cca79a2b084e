"""Jobs whose function not every worker of their queue knows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from chancy import Chancy, Job, Queue, QueuedJob, Reference, State, Worker, job
from chancy.errors import UnknownFunction
from tests.support.sql import ask
from tests.support.waiting import eventually

SHARED = Queue(name="shared", executor="async", concurrency=4)


@job(queue="shared")
async def of_one(n: int) -> int:
    return n


@job(queue="shared")
async def of_other(n: int) -> int:
    return n


@job(queue="shared")
async def of_neither(n: int) -> int:
    return n


def without(app: Chancy, *funcs: str) -> Chancy:
    """An application whose workers do not know these functions."""
    find: Callable[[str], object] = app.registry.find

    def find_others(path: str) -> object:
        if path in funcs:
            raise UnknownFunction(f"no job is registered as {path!r}")
        return find(path)

    vars(app.registry)["find"] = find_others
    return app


async def finished(references: Iterable[Reference[int]]) -> list[QueuedJob]:
    return [await reference.wait(60) for reference in references]


ONE, OTHER, NEITHER = (one.job.template.func for one in (of_one, of_other, of_neither))


async def test_two_applications_share_a_queue(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    one = without(Chancy(dsn, queues=[SHARED]), OTHER)
    other = without(Chancy(dsn, queues=[SHARED]), ONE)
    async with one, other, Worker(one), Worker(other):
        found = await one.push_many((of_one, of_other)[n % 2].job(n) for n in range(400))
        done = await finished(found)
        assert {job.state for job in done} == {State.SUCCEEDED}
        assert {job.attempt for job in done} == {1}
        # A later job of each is set aside at most once as well.
        later = await one.push_many((of_one, of_other)[n % 2].job(n) for n in range(100))
        assert {job.state for job in await finished(later)} == {State.SUCCEEDED}
    events = [record for record in caplog.records if "function_unknown" in record.getMessage()]
    assert 1 <= len(events) <= 2
    assert {event.levelno for event in events} == {logging.WARNING}


async def test_jobs_set_aside_run_once_a_worker_knows_them(dsn: str) -> None:
    old = without(Chancy(dsn, queues=[SHARED]), OTHER)
    async with old, Chancy(dsn, queues=[SHARED]) as new:
        async with Worker(old):
            waiting = await old.push_many(of_other.job(n) for n in range(1_000))
            known = await old.push_many(of_one.job(n) for n in range(10))
            assert {job.state for job in await finished(known)} == {State.SUCCEEDED}
            await eventually(
                lambda: ask(dsn, "select count(*) from chancy.jobs where state = 3") == [(1_000,)]
            )
            async with Worker(new):
                done = await finished(waiting)
        assert {job.state for job in done} == {State.SUCCEEDED}
        assert {(job.attempt, job.crashes) for job in done} == {(1, 0)}


@job(queue="shared", version=2, upgrade=lambda arguments, version: {"n": -arguments["n"]})
async def of_second(n: int) -> int:
    return n


async def test_older_arguments_are_upgraded_and_later_ones_wait_for_a_newer_worker(
    dsn: str,
) -> None:
    path = of_second.job.template.func
    later: dict[str, Any] = {"$chancy": {"version": 3}, "n": 7}
    async with Chancy(dsn, queues=[SHARED]) as app, Worker(app, unknown_after_s=0.1):
        current = await app.push(of_second.job(n=1))
        waiting = Job[int](func=path, arguments={"n": 2}, queue="shared")
        older = await app.push(waiting, validate=False)
        newer = await app.push(waiting.with_arguments(**later), validate=False)
        assert [job.result for job in await finished([current, older])] == [1, -2]

        async def set_aside() -> bool:
            job = await newer.get()
            return job is not None and job.state is State.HELD and not job.errors

        await eventually(set_aside)
        # It alone: the others run, as after a rollback.
        for n in range(3):
            [done] = await finished([await app.push(of_second.job(n=n))])
            assert done.result == n
        assert await set_aside()
        [reason] = await app.why(newer.id)
        assert "or not version 3 of its arguments" in reason.text


async def test_a_job_fails_once_no_live_worker_has_known_its_function(dsn: str) -> None:
    one = without(Chancy(dsn, queues=[SHARED]), OTHER, NEITHER)
    other = without(Chancy(dsn, queues=[SHARED]), ONE, NEITHER)
    async with (
        one,
        other,
        Worker(one, unknown_after_s=0.5) as worker,
        Worker(other, unknown_after_s=3_600),
    ):
        reference = await one.push(of_neither.job(1))
        done = await reference.wait(60)
        assert done.state is State.FAILED
        message = done.errors[-1]["message"]
        assert "no job is registered as" in message
        assert "no live worker has known the function for 0.5 s" in message
        records = {record.id: record for record in await one.get_workers()}
        assert records[worker.worker_id].unknown == (NEITHER,)


async def test_why_a_job_is_set_aside(dsn: str) -> None:
    app = without(Chancy(dsn, queues=[SHARED]), NEITHER)
    async with app, Worker(app):
        reference = await app.push(of_neither.job(1))

        async def explained() -> bool:
            reasons = await app.why(reference.id)
            return [NEITHER in reason.text for reason in reasons] == [True]

        await eventually(explained)


async def test_a_worker_serves_the_queues_of_its_application(dsn: str) -> None:
    names = ["shared", "unnamed-1", "unnamed-2", "unnamed-3"]
    async with Chancy(dsn, queues=[Queue(name="unnamed-1")]) as app, Chancy(dsn) as foreign:
        for name in names:
            await foreign.declare(Queue(name=name, executor="async"))
        await app.declare(Queue(name="unnamed-2", executor="async"))
        async with Worker(app) as worker:
            assert set(worker.queues) == {"default", "shared", "unnamed-1", "unnamed-2"}
        async with Worker(app, queues=["unnamed-3"]) as worker:
            assert worker.queues == ("unnamed-3",)
        async with Worker(app, queues=["*"]) as worker:
            assert set(worker.queues) == {"default", *names}


async def test_a_job_pushed_by_name_waits_in_a_queue_of_another_application(dsn: str) -> None:
    async with Chancy(dsn) as app, Chancy(dsn) as foreign:
        await foreign.declare(Queue(name="unnamed-4", executor="async"))
        reference = await app.push(Job(func=ONE, arguments={"n": 1}, queue="unnamed-4"))
        async with Worker(app):
            reasons = await app.why(reference.id)
            assert any("was started for other queues" in reason.text for reason in reasons)
        async with Worker(foreign):
            assert (await reference.wait(60)).result == 1
