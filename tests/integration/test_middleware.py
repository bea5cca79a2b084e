"""A worker with a plugin that opens something around each run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chancy import Chancy, Plugin, Queue, State, Worker
from chancy.context.context import JobContext
from tests.support import jobs
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
        async with Worker(chancy, shutdown_timeout_s=0.1):
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
        stored = await endless.get()
        assert stored is not None
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
