"""Suspects run apart, a few at a time, and never cost the others their slots."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released, Returned, Snoozed
from chancy.worker import quarantine
from chancy.worker.quarantine import CHILDREN, MOST, QuarantineExecutor
from chancy.worker.start_recorder import StartRecorder
from tests.support.claims import claimed
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a busy machine takes to start a stub."""
    monkeypatch.setattr(quarantine, "PATIENCE_S", 60.0)


class Stub:
    """Runs claims until they are let go."""

    def __init__(self, slots: int = 256) -> None:
        self.slots = slots
        self.broken: str | None = None
        self.ready = asyncio.Event()
        self.running: dict[Claim, asyncio.Future[Outcome]] = {}
        self.most = 0
        self.starts = self.stops = 0
        self.error: Exception | None = None

    async def start(self) -> None:
        self.starts += 1
        await self.ready.wait()
        if self.error is not None:
            raise self.error

    async def run(self, claim: Claim) -> Outcome:
        future = self.running[claim] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.running))
        try:
            outcome: Outcome = await future
            return outcome
        finally:
            del self.running[claim]

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        if claim in self.running:
            self.running[claim].set_result(outcome)
            return True
        return False

    def let_go(self) -> None:
        for future in self.running.values():
            if not future.done():
                future.set_result(Returned())

    async def stop(self) -> None:
        self.stops += 1


class Ward:
    """A quarantine over stubs."""

    def __init__(self, *, slots: int = 256, idle_s: float = 60.0, isolates: bool = True) -> None:
        self.normal = Stub(slots)
        self.lanes: list[Stub] = []
        self.recorded: list[uuid.UUID] = []
        self.quarantine = QuarantineExecutor(
            self.normal,
            StartRecorder(self._record),
            self._make if isolates else None,
            alone_here=True,
            idle_s=idle_s,
        )

    async def _record(self, claim: Claim, meta: str) -> None:
        assert json.loads(meta) == {"started": str(claim.lease)}
        self.recorded.append(claim.id)

    def _make(self) -> Stub:
        self.lanes.append(Stub())
        return self.lanes[-1]

    def run(self, one: Claim) -> asyncio.Task[Outcome]:
        return asyncio.create_task(self.quarantine.run(one))


async def test_only_suspects_run_apart() -> None:
    ward = Ward()
    fresh, suspect = claimed(), claimed(crashes=2)
    first = ward.run(fresh)
    await eventually(lambda: fresh in ward.normal.running)
    assert ward.lanes == [], "nothing is made before it is needed"
    second = ward.run(suspect)
    await eventually(lambda: ward.lanes)
    ward.lanes[0].ready.set()
    await eventually(lambda: suspect in ward.lanes[0].running)
    assert set(ward.normal.running) == {fresh}
    assert not ward.normal.interrupt(suspect, Released("no"))
    assert ward.quarantine.interrupt(suspect, Released("stop"))
    assert ward.quarantine.interrupt(fresh, Released("halt"))
    assert await second == Released("stop")
    assert await first == Released("halt")
    await ward.quarantine.stop()
    assert (ward.normal.stops, ward.lanes[0].stops) == (1, 1)


async def test_a_few_run_at_a_time_and_the_rest_come_back_later() -> None:
    ward = Ward()
    tasks = [ward.run(claimed(crashes=2)) for _ in range(MOST + 10)]
    await eventually(lambda: sum(task.done() for task in tasks) == 10)
    refused = [task.result() for task in tasks if task.done()]
    assert all(isinstance(outcome, Snoozed) for outcome in refused)
    ward.lanes[0].ready.set()
    await eventually(lambda: len(ward.lanes[0].running) == CHILDREN)
    while not all(task.done() for task in tasks):
        ward.lanes[0].let_go()
        await asyncio.sleep(0)
    outcomes = [task.result() for task in tasks]
    assert sum(isinstance(outcome, Returned) for outcome in outcomes) == MOST
    assert ward.lanes[0].most == CHILDREN
    assert len(ward.lanes) == 1
    await ward.quarantine.stop()


@pytest.mark.parametrize(("slots", "held"), [(1, 1), (2, 1), (16, 8)])
async def test_half_of_the_slots_is_left_to_the_others(slots: int, held: int) -> None:
    ward = Ward(slots=slots)
    tasks = [ward.run(claimed(crashes=2)) for _ in range(slots + 1)]
    await eventually(lambda: sum(task.done() for task in tasks) == slots + 1 - held)
    ward.lanes[0].ready.set()
    while not all(task.done() for task in tasks):
        ward.lanes[0].let_go()
        await asyncio.sleep(0)
    await ward.quarantine.stop()


async def test_one_that_waits_can_be_stopped_and_does_not_wait_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ward = Ward()
    stopped, tired = claimed(crashes=2), claimed(crashes=2)
    first = ward.run(stopped)
    await eventually(lambda: ward.lanes and ward.lanes[0].starts == 1)
    monkeypatch.setattr(quarantine, "PATIENCE_S", 0.05)
    second = ward.run(tired)
    await asyncio.sleep(0)
    assert ward.quarantine.interrupt(stopped, Released("stop"))
    assert await first == Released("stop")
    assert isinstance(await second, Snoozed)
    await ward.quarantine.stop()
    assert ward.lanes[0].stops == 1


async def test_the_children_end_when_nothing_has_come_for_a_while() -> None:
    ward = Ward(idle_s=0.02)
    task = ward.run(claimed(crashes=2))
    await eventually(lambda: ward.lanes)
    ward.lanes[0].ready.set()
    await eventually(lambda: ward.lanes[0].running)
    # More than twice the idle time: it is not to be closed, and that cannot be waited for.
    await asyncio.sleep(0.05)
    assert ward.lanes[0].stops == 0, "one is still at work"
    ward.lanes[0].let_go()
    await task
    await eventually(lambda: ward.lanes[0].stops == 1)
    again = ward.run(claimed(crashes=2))
    await eventually(lambda: len(ward.lanes) == 2)
    ward.lanes[1].ready.set()
    await eventually(lambda: ward.lanes[1].running)
    ward.lanes[1].let_go()
    assert isinstance(await again, Returned)
    await ward.quarantine.stop()


async def test_children_that_cannot_be_started_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quarantine, "PATIENCE_S", 0.05)
    ward = Ward()
    task = ward.run(claimed(crashes=2))
    await eventually(lambda: ward.lanes)
    ward.lanes[0].error = OSError("no more processes")
    ward.lanes[0].ready.set()
    assert isinstance(await task, Snoozed)
    await eventually(lambda: "quarantine_failed" in caplog.text)
    monkeypatch.setattr(quarantine, "PATIENCE_S", 60.0)
    again = ward.run(claimed(crashes=2))
    await eventually(lambda: len(ward.lanes) == 2)
    ward.lanes[1].ready.set()
    await eventually(lambda: ward.lanes[1].running)
    ward.lanes[1].let_go()
    assert isinstance(await again, Returned)
    await ward.quarantine.stop()
    assert [lane.stops for lane in ward.lanes] == [1, 1]


async def test_a_queue_is_broken_if_its_executor_is() -> None:
    ward = Ward(slots=3)
    assert (ward.quarantine.slots, ward.quarantine.broken) == (3, None)
    ward.normal.broken, ward.normal.slots = "why", 0
    assert (ward.quarantine.slots, ward.quarantine.broken) == (0, "why")
    ward.normal.ready.set()
    await ward.quarantine.start()
    await ward.quarantine.stop()
    assert (ward.normal.starts, ward.normal.stops) == (1, 1)


async def test_a_job_with_one_crash_runs_as_usual_once_its_start_is_stored() -> None:
    ward = Ward()
    suspect = claimed(crashes=1)
    task = ward.run(suspect)
    await eventually(lambda: suspect in ward.normal.running)
    assert ward.recorded == [suspect.id]
    assert ward.quarantine.interrupt(suspect, Released("stop"))
    assert await task == Released("stop")
    assert ward.lanes == []
    await ward.quarantine.stop()


@pytest.mark.parametrize("broken", [False, True])
async def test_jobs_that_cannot_be_isolated_run_here_one_at_a_time(broken: bool) -> None:
    ward = Ward(isolates=broken)
    suspects = [claimed(crashes=2) for _ in range(3)]
    tasks = [ward.run(suspect) for suspect in suspects]
    if broken:
        await eventually(lambda: ward.lanes)
        ward.lanes[0].broken = "the application cannot be imported"
        ward.lanes[0].ready.set()
    for suspect, task in zip(suspects, tasks, strict=True):
        await eventually(lambda: ward.normal.running)
        assert list(ward.normal.running) == [suspect]
        ward.normal.let_go()
        assert isinstance(await task, Returned)
    assert ward.recorded == [suspect.id for suspect in suspects]
    await ward.quarantine.stop()
