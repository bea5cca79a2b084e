"""A worker with a plugin that opens something around each run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from chancy import Chancy, Plugin, Queue, State, Worker
from chancy.context.context import JobContext
from tests.integration import middleware_jobs
from tests.support import jobs
from tests.support.presence import present
from tests.support.waiting import eventually


class Trace(Plugin):
    """Notes what runs, and how it ended."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.ended: list[tuple[str, str]] = []
        self.refused = 0

    @asynccontextmanager
    async def around(self, context: JobContext) -> AsyncGenerator[None]:
        if context.meta.get("refused"):
            self.refused += 1
            raise PermissionError("not this one")
        self.open.add(str(context.id))
        yield
        self.open.remove(str(context.id))
        await asyncio.sleep(0)
        self.ended.append((context.queue, type(context.outcome).__name__))


async def test_around_hooks_stand_about_every_run_of_a_worker(dsn: str) -> None:
    trace = Trace()
    queues = [Queue(name=name, executor=name) for name in ("async", "thread", "process")]
    async with Chancy(dsn, queues=queues, plugins=[trace], no_default_plugins=True) as chancy:
        async with Worker(chancy, children=1, shutdown_timeout_s=0.1):
            pushed = await chancy.push_many(
                job
                for queue in queues
                for job in (
                    jobs.note.job(value=1).with_queue(queue.name),
                    jobs.fail.job().with_queue(queue.name),
                    jobs.note.job(value=1).with_queue(queue.name).with_meta(refused=True),
                )
            )
            done = [await reference.wait(30) for reference in pushed]
            endless = await chancy.push(jobs.wait_for_ever.job().with_queue("async"))
            await eventually(lambda: str(endless.id) in trace.open)
        assert [one.state for one in done] == [State.SUCCEEDED, State.FAILED, State.FAILED] * 3
        assert [one.errors[0]["message"] for one in done if one.errors] == [
            "no",
            "not this one",
        ] * 3
        stored = present(await endless.get())
        assert stored.state is State.PENDING
    assert trace.refused == 3
    assert trace.open == set()
    assert sorted(trace.ended) == [
        ("async", "Raised"),
        ("async", "Released"),
        ("async", "Returned"),
        ("process", "Raised"),
        ("process", "Returned"),
        ("thread", "Raised"),
        ("thread", "Returned"),
    ]


PROCESS = Queue(name="process", concurrency=1)


class Shops(Plugin):
    """Wraps each job in the process that runs it."""

    around_in_child = "tests.integration.middleware_jobs.shop"


async def test_middleware_in_executor_processes_wraps_each_job(dsn: str) -> None:
    async with (
        Chancy(dsn, queues=[PROCESS], plugins=[Shops()], no_default_plugins=True) as chancy,
        Worker(chancy),
    ):
        pushed = await chancy.push_many(
            pushed.with_queue("process").with_meta(shop=f"shop {n}", **meta)
            for n, (pushed, meta) in enumerate(
                (
                    (middleware_jobs.see_later.job(), {}),
                    (jobs.fail.job(), {}),
                    (middleware_jobs.see.job(), {}),
                    (middleware_jobs.see.job(), {"refused": True}),
                    (middleware_jobs.see.job(), {"broken": True}),
                    (middleware_jobs.see.job(), {}),
                )
            )
        )
        done = [await reference.wait(30) for reference in pushed]
    assert [one.state.name for one in done] == [
        "SUCCEEDED", "FAILED", "SUCCEEDED", "FAILED", "FAILED", "SUCCEEDED",
    ]  # fmt: skip
    assert done[0].result == "shop 0"
    assert done[2].result[:2] == ["shop 2", ["Raised"]]
    assert done[2].result[2] != os.getpid()
    assert [one.errors[0]["message"] for one in done if one.errors] == [
        "no",
        "not this one",
        "closing failed",
    ]
    assert done[5].result == ["shop 5", ["Returned"], done[2].result[2]]


class Lost(Plugin):
    around_in_child = "tests.integration.middleware_jobs.nowhere"


async def test_middleware_that_cannot_be_imported_stops_the_queue_and_gives_the_reason(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Chancy(dsn, queues=[PROCESS], plugins=[Lost()], no_default_plugins=True) as chancy:
        async with Worker(chancy):
            reference = await chancy.push(jobs.note.job(value=1).with_queue("process"))
            await eventually(lambda: "queue_broken queue=process" in caplog.text)
        stored = await reference.get()
    assert "has no function 'nowhere'" in caplog.text
    assert stored is not None
    assert (stored.state, stored.attempt) == (State.PENDING, 0)
