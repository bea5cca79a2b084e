"""Which executor processes of a kind run, and which queues have them, without processes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import uuid4

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released, Returned
from chancy.executors.process import executor as executors
from chancy.executors.process import group as groups
from chancy.executors.process.call import ProcessAttempt
from chancy.executors.process.executor import ProcessExecutor
from chancy.executors.process.group import ChildGroup, ChildPool, ChildUser
from chancy.executors.process.settings import ChildKind
from chancy.executors.setup import ExecutorSetup
from chancy.queue.executor_options import ProcessOptions
from tests.support.waiting import eventually


class Child:
    """An executor process that a test ends."""

    #: Whether those that start now are ready at once.
    prompt = True
    made: list[Child]

    def __init__(self, number: int, owner: Any, options: object) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.owner = number, owner
        self.ready: asyncio.Future[str | None] = loop.create_future()
        self.successor_needed: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[str] = loop.create_future()
        self.depth = 1
        self.lent_s = 60.0
        self.used_at = -math.inf
        self.never_used = True
        self.calls: list[ProcessAttempt] = []
        self.answered = self.counted = self.missed = 0
        self.draining = False
        self.made.append(self)

    def start(self, *settings: object) -> None:
        if self.prompt:
            self.ready.set_result(None)

    def lend(self, owner: Any) -> None:
        self.owner = owner
        self.draining = False

    @property
    def held(self) -> int:
        return len(self.calls)

    @property
    def slots(self) -> int:
        return self.depth or self.held

    @property
    def room(self) -> int:
        return 0 if self.draining else self.depth - self.held

    def give(self, attempt: ProcessAttempt, now: float) -> bool:
        self.calls.append(attempt)
        return True

    def drain(self) -> None:
        self.draining = True
        self.owner.withdrawn(())

    def answer(self) -> None:
        self.answered += 1
        self.calls.pop().finish(Returned())
        self.owner.changed(self)

    def check(self, now: float) -> float:
        return math.inf

    def retire(self) -> None:
        self.close(0.0)

    def kill(self, how: str) -> None:
        while self.calls:
            self.calls.pop().finish(Released(how))
        self.close(0.0, how)

    def close(self, grace_s: float, how: str = "was recycled") -> None:
        self.depth = 0
        if not self.successor_needed.done():
            self.successor_needed.set_result(None)
        if not self.exited.done():
            self.exited.set_result(how)


class User:
    """An executor that has no jobs."""

    weight, borrowed, waits = 1, 0, False

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    def give_back_idle(self) -> None:
        """It has none."""

    def group_changed(self) -> None:
        """Nothing depends on it."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    monkeypatch.setattr(groups, "ChildProcess", Child)
    monkeypatch.setattr(Child, "made", [], raising=False)
    monkeypatch.setattr(Child, "prompt", True)
    monkeypatch.setattr(executors, "_PATIENCE_S", 60.0)
    return Child.made


def group_of(pool: ChildPool) -> ChildGroup:
    return pool.group(ChildKind(options=ProcessOptions(), max_payload=1_000))


async def test_a_successor_whose_place_was_given_up_while_it_started_exits(
    made: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, user = group_of(ChildPool(2)), cast("ChildUser", User(2))
    await group.attach(user)
    first, _ = made
    monkeypatch.setattr(Child, "prompt", False)
    first.successor_needed.set_result(None)
    await eventually(lambda: len(made) == 3)
    assert group.evict(at_once=True)
    assert first.exited.done()
    made[2].ready.set_result(None)
    try:
        await eventually(made[2].exited.done)
        assert group.size == 1
    finally:
        await group.detach(user)


async def test_a_killed_child_that_does_not_exit_delays_no_stop(
    made: list[Child], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example because it reads a file of a server that does not respond."""
    monkeypatch.setattr(groups, "STOP_GRACE_S", 0.0)
    monkeypatch.setattr(groups, "KILLED_S", 0.01)
    group, user = group_of(ChildPool(2)), cast("ChildUser", User(2))
    await group.attach(user)
    stuck, other = made
    monkeypatch.setattr(stuck, "close", lambda grace_s: None)
    async with asyncio.timeout(10):
        await group.detach(user)
    assert f"children_left after_s=0.01: {stuck}" in caplog.text
    assert str(other) not in caplog.text
    Child.close(stuck, 0.0)  # it exits after all
    await eventually(lambda: not any(map(keeps_a_child, asyncio.all_tasks())))


def keeps_a_child(task: asyncio.Task[Any]) -> bool:
    return task.get_name().startswith("chancy-child")


async def test_children_that_die_before_any_job_are_replaced_more_and_more_slowly(
    made: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "FIRST_DELAY_S", 0.01)
    group, user = group_of(ChildPool(1)), cast("ChildUser", User(1))
    await group.attach(user)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        for number in range(7):
            await eventually(lambda: len(made) > number)  # noqa: B023
            made[-1].close(0.0, "exited with status 3")
        # 0.01 + 0.02 + ... + 0.32
        assert loop.time() - began > 0.6
    finally:
        await group.detach(user)


def nothing() -> None:
    """The function of all jobs here."""


@asynccontextmanager
async def queue(pool: ChildPool, concurrency: int = 1) -> AsyncGenerator[ProcessExecutor]:
    made = ProcessExecutor(
        ExecutorSetup(
            concurrency=concurrency,
            find=lambda path: nothing,
            max_payload=1_000,
            options=ProcessOptions(),
            pool=pool,
        )
    )
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def start(it: ProcessExecutor) -> asyncio.Task[Outcome]:
    func = f"{__name__}.nothing"
    claim = Claim(uuid4(), uuid4(), uuid4(), "q", func, None, 1, 3, 0, 0, 0, None)
    return asyncio.create_task(it.run(claim))


async def test_a_child_that_drains_for_a_queue_that_no_longer_waits_gets_jobs_again(
    made: list[Child],
) -> None:
    async with queue(ChildPool(1)) as it:
        [child] = made
        first, second = start(it), start(it)
        await eventually(lambda: child.calls)
        child.drain()
        child.answer()
        assert child.held == 1
        child.answer()
        assert await first == await second == Returned()


async def test_a_child_that_was_just_lent_to_a_queue_is_not_taken_back(made: list[Child]) -> None:
    pool = ChildPool(1)
    async with queue(pool) as busy, queue(pool) as other:
        [child] = made
        jobs = [start(busy), start(busy)]
        await eventually(lambda: child.calls)
        jobs.append(start(other))
        await eventually(lambda: other.waits)
        child.answer()
        await eventually(lambda: child.calls)
        assert child.owner is other
        for _ in range(2):
            await eventually(lambda: child.calls)
            child.answer()
        await asyncio.gather(*jobs)


async def test_slots_that_another_queue_has_taken_are_no_longer_counted(
    made: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_RECOUNT_S", 0.0)
    pool = ChildPool(2)
    async with queue(pool, 2) as first, queue(pool) as second:
        jobs = [start(first)]
        await eventually(lambda: first.borrowed)
        assert first.slots == 2, "an executor process is idle"
        jobs.append(start(second))
        await eventually(lambda: second.borrowed)
        assert first.slots == 1
        for child in made:
            child.answer()
        await asyncio.gather(*jobs)
