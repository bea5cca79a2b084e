"""Starts of jobs that have crashed before are stored before the jobs run."""

from __future__ import annotations

import asyncio

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released
from chancy.errors import BrokerUnavailable, LeaseLost, StatementFailed
from chancy.worker import start_recorder
from chancy.worker.start_recorder import GROUPS, StartRecorder
from tests.support.claims import claimed
from tests.support.waiting import eventually


class Store:
    """Stores starts when the test lets it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked: list[Claim] = []
        self.error: Exception | None = None

    async def __call__(self, claim: Claim, meta: str) -> None:
        self.asked.append(claim)
        await self.open.wait()
        if self.error is not None:
            raise self.error


def turn() -> asyncio.Future[Outcome | None]:
    return asyncio.get_running_loop().create_future()


async def test_a_job_starts_only_after_the_one_before_it_has_started() -> None:
    store = Store()
    store.open.set()
    recorder = StartRecorder(store)
    turns = [turn() for _ in range(GROUPS)]
    for one in turns:
        recorder.add(claimed(crashes=1), one)
    for number, one in enumerate(turns, 1):
        await one
        assert len(store.asked) == number, "no later start has been stored"
    await recorder.stop()


async def test_many_jobs_start_in_groups() -> None:
    store = Store()
    recorder = StartRecorder(store)
    turns = [turn() for _ in range(10 * GROUPS)]
    for one in turns:
        recorder.add(claimed(crashes=1), one)
    await eventually(lambda: len(store.asked) == 10)
    store.open.set()
    await asyncio.gather(*turns)
    await recorder.stop()


@pytest.mark.parametrize(
    "error", [LeaseLost("gone"), BrokerUnavailable("stopping"), RuntimeError("of a plugin")]
)
async def test_a_job_whose_start_is_not_stored_does_not_run(error: Exception) -> None:
    store = Store()
    store.error = error
    store.open.set()
    recorder = StartRecorder(store)
    one = turn()
    recorder.add(claimed(crashes=1), one)
    assert isinstance(await one, Released)
    await recorder.stop()


async def test_a_job_whose_start_the_store_refuses_runs() -> None:
    store = Store()
    store.error = StatementFailed("it would again")
    store.open.set()
    recorder = StartRecorder(store)
    one = turn()
    recorder.add(claimed(crashes=1), one)
    assert await one is None
    await recorder.stop()


async def test_a_job_that_is_stopped_while_it_waits_holds_no_other_up() -> None:
    store = Store()
    recorder = StartRecorder(store)
    first, stopped, last = turn(), turn(), turn()
    for one in (first, stopped, last):
        recorder.add(claimed(crashes=1), one)
    await eventually(lambda: len(store.asked) == 1)
    stopped.set_result(Released("stop"))
    store.open.set()
    assert await first is None
    assert await last is None
    assert len(store.asked) == 2
    await recorder.stop()


async def test_a_start_that_cannot_be_stored_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_recorder, "LATE_S", 0.02)
    free, locked = asyncio.Event(), claimed(crashes=1)

    async def store(claim: Claim, meta: str) -> None:
        if claim is locked:
            await free.wait()

    recorder = StartRecorder(store)
    late, others = turn(), [turn() for _ in range(3)]
    recorder.add(locked, late)
    for one in others:
        recorder.add(claimed(crashes=1), one)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*others) == [None] * 3
        assert not late.done()
        again = turn()
        recorder.add(claimed(crashes=1), again)
        assert await again is None
        free.set()
        assert await late is None
    await recorder.stop()


async def test_few_jobs_start_together_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_recorder, "LATE_S", 0.001)
    store = Store()
    recorder = StartRecorder(store, pause_s=0.001)
    turns = [turn() for _ in range(GROUPS)]
    for one in turns:
        recorder.add(claimed(crashes=1), one)
    await eventually(lambda: len(store.asked) == start_recorder.MOST_LATE)
    await asyncio.sleep(0.05)  # nothing tells that no further one is asked
    assert len(store.asked) == start_recorder.MOST_LATE
    store.open.set()
    await asyncio.gather(*turns)
    await recorder.stop()


async def test_stopping_leaves_no_start_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_recorder, "LATE_S", 0.001)
    store = Store()
    recorder = StartRecorder(store)
    recorder.add(claimed(crashes=1), turn())
    await eventually(lambda: len(store.asked) == 1)
    await recorder.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("chancy")]
