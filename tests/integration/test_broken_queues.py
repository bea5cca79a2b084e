"""A queue that cannot be served shows as broken, and holds up no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from chancy import Chancy, ProcessOptions, Queue, State, Worker
from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Returned
from chancy.executors.base import Executor
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.worker import queue_worker as serving
from tests.integration import progress_jobs as reporting
from tests.support import jobs
from tests.support.command import inside
from tests.support.waiting import eventually, gives


class Stub:
    """An executor that a test controls. Runs everything at once."""

    def __init__(self) -> None:
        self.warm = asyncio.Event()
        self.error: BaseException | None = None
        self.broken: str | None = None
        self.ran = 0
        self.started = self.stopped = False
        #: Whether it does not heed that its start is cancelled.
        self.deaf = False
        #: What its stop raises.
        self.worse: Exception | None = None

    @property
    def slots(self) -> int:
        return 0 if self.broken else 1

    async def start(self) -> None:
        self.started = True
        try:
            await self.warm.wait()
        except asyncio.CancelledError:
            if not self.deaf:
                raise
        if self.error is not None:
            raise self.error

    async def run(self, claim: Claim) -> Outcome:
        self.ran += 1
        return Returned()

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        return False

    async def stop(self) -> None:
        self.stopped = True
        if self.worse is not None:
            raise self.worse


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    async with Chancy(dsn, queues=[Queue(name="async", executor="async")], pool_size=3) as made:
        await made.delete_queue("default")
        yield made


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> list[Stub]:
    """The executors of process queues, in the order in which they were made."""
    made: list[Stub] = []

    def make(name: str, setup: ExecutorSetup) -> Executor:
        if name != "process":
            return make_executor(name, setup)
        made.append(Stub())
        return made[-1]

    monkeypatch.setattr(serving, "make_executor", make)
    return made


async def broken(chancy: Chancy) -> dict[str, str]:
    (one,) = await chancy.get_workers()
    return dict(one.broken)


def worker_served(worker: Worker, *names: str) -> Callable[[], Coroutine[Any, Any, bool]]:
    """Whether a worker serves these queues, and has announced it."""

    async def announced() -> bool:
        (one,) = await worker.broker.workers()
        return one.queues == worker.queues == names

    return announced


async def test_a_queue_whose_children_cannot_start_is_shown_until_they_can(
    chancy: Chancy,
    dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    monkeypatch.setenv(reporting.OBSTACLE, str(obstacle))
    options = ProcessOptions(initializer="tests.integration.progress_jobs.initialize")
    await chancy.declare(Queue(name="bad", concurrency=1, options=options))
    async with Worker(chancy) as worker:
        await (await chancy.push(jobs.note.job(value=1))).wait(30)
        held = await chancy.push(jobs.pid_of_sync.job().with_queue("bad"))

        async def shown() -> bool:
            return "the obstacle is there" in (await broken(chancy)).get("bad", "")

        await eventually(shown)
        await eventually(worker_served(worker, "async"))
        assert await held.status() is State.PENDING
        listed = await asyncio.to_thread(inside, "queue", "list", "--json", dsn=dsn)
        bad = next(one for one in listed.json if one["name"] == "bad")
        assert bad["broken"][0]["worker"] == str(worker.worker_id)
        assert "the obstacle is there" in bad["broken"][0]["why"]
        table = await asyncio.to_thread(inside, "queue", "list", dsn=dsn)
        assert "broken on 1 worker" in table.out
        assert "the obstacle is there" in table.err
        row = (await asyncio.to_thread(inside, "worker", "list", "--json", dsn=dsn)).json[0]
        assert set(row["broken"]) == {"bad"}
        assert caplog.text.count("queue_broken queue=bad") == 1

        obstacle.unlink()
        assert (await held.wait(30)).state is State.SUCCEEDED
        await eventually(worker_served(worker, "async", "bad"))
        assert await broken(chancy) == {}
    assert caplog.text.count("queue_recovered queue=bad") == 1


async def test_a_slow_warm_up_holds_up_no_other_queue(
    chancy: Chancy, stubs: list[Stub], caplog: pytest.LogCaptureFixture
) -> None:
    await chancy.declare(Queue(name="slow"))
    worker = Worker(chancy)
    starting = asyncio.create_task(worker.start())
    try:
        await (await chancy.push(jobs.note.job(value=1))).wait(30)
        waits = await chancy.push(jobs.pid_of_sync.job().with_queue("slow"))
        assert not starting.done()
        assert worker.queues == ("async",)
        stubs[0].warm.set()
        await starting
        assert (await waits.wait(30)).state is State.SUCCEEDED
        assert stubs[0].ran == 1
        await eventually(worker_served(worker, "async", "slow"))
    finally:
        await worker.stop()


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_queue_that_changes_or_goes_while_it_warms_up(
    chancy: Chancy, stubs: list[Stub], deaf: bool
) -> None:
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        await chancy.declare(Queue(name="slow"))
        await eventually(lambda: len(stubs) == 1 and stubs[0].started)
        stubs[0].deaf = deaf
        await chancy.declare(Queue(name="slow", concurrency=7), upsert=True)
        await eventually(lambda: len(stubs) == 2 and stubs[1].started)
        await eventually(lambda: stubs[0].stopped)
        stubs[0].warm.set()
        assert "slow" not in worker.queues
        stubs[1].warm.set()
        await eventually(worker_served(worker, "async", "slow"))
        await chancy.declare(Queue(name="other"))
        await eventually(lambda: len(stubs) == 3 and stubs[2].started)
        await chancy.delete_queue("other")
        await eventually(lambda: stubs[2].stopped)
        assert not stubs[1].stopped
    assert all(stub.stopped for stub in stubs)


async def test_a_start_that_is_cancelled_from_within_is_tried_again(
    chancy: Chancy, stubs: list[Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.worker.worker._QUEUES_EVERY_S", 0.2)
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        await chancy.declare(Queue(name="slow"))
        await eventually(lambda: len(stubs) == 1 and stubs[0].started)
        stubs[0].error = asyncio.CancelledError()
        stubs[0].warm.set()
        await eventually(lambda: len(stubs) == 2 and stubs[1].started)
        stubs[1].warm.set()
        await eventually(worker_served(worker, "async", "slow"))


@pytest.mark.chaos
async def test_an_executor_that_fails_to_start_and_one_that_breaks_later(
    chancy: Chancy, stubs: list[Stub], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        await chancy.declare(Queue(name="bad"))
        await eventually(lambda: len(stubs) == 1)
        stubs[0].error = OSError("no more processes")
        stubs[0].warm.set()
        await eventually(lambda: gives(broken(chancy), {"bad": "OSError: no more processes"}))
        assert stubs[0].stopped
        assert caplog.text.count("queue_broken queue=bad") == 1
        await eventually(lambda: len(stubs) == 2, timeout=10)  # it is tried again by itself
        stubs[1].warm.set()
        await eventually(worker_served(worker, "async", "bad"))
        assert "queue_recovered queue=bad" in caplog.text
        stubs[1].broken = "every child dies"
        await eventually(lambda: gives(broken(chancy), {"bad": "every child dies"}), timeout=2)
        assert worker.queues == ("async",)
        held = await chancy.push(jobs.pid_of_sync.job().with_queue("bad"))
        stubs[1].broken = None
        await held.wait(30)
        assert stubs[1].ran == 1


async def test_a_worker_ends_although_an_executor_fails_to(
    chancy: Chancy,
    stubs: list[Stub],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it has run is settled, it does not beat on, and its row is gone."""
    await chancy.declare(Queue(name="bad"))
    worker = Worker(chancy)
    starting = asyncio.create_task(worker.start())
    await eventually(lambda: stubs)
    stubs[0].worse = OSError("too many open files")
    stubs[0].warm.set()
    await starting
    running = await chancy.push(jobs.note.job(value=1))
    await eventually(lambda: jobs.noted)
    unregister = chancy.broker.unregister

    async def fail(worker_id: UUID) -> None:
        await unregister(worker_id)
        raise RuntimeError("and then that")

    monkeypatch.setattr(chancy.broker, "unregister", fail)
    with pytest.raises(OSError, match="too many open files"):
        await worker.stop()
    assert await running.status() is State.SUCCEEDED
    assert await chancy.get_workers() == []
    names = {thread.name for thread in threading.enumerate()}
    assert "chancy heartbeat" not in names
    tasks = {task.get_name() for task in asyncio.all_tasks()}
    assert not [name for name in tasks if name.startswith("chancy ")]
    assert "stopping_failed error=RuntimeError: and then that" in caplog.text
