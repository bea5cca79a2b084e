"""What becomes of claims between their arrival and their run."""

from __future__ import annotations

import asyncio

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.judge import judge
from chancy.attempt.outcome import Cancelled, Outcome, Released, Returned
from chancy.attempt.settlement import Settlement
from chancy.clock import SystemClock
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.worker.runner import Runner
from chancy.worker.unknown_functions import UnknownFunctions
from tests.support.claims import claimed
from tests.support.waiting import eventually

UNKNOWN = UnknownFunctions("q", str, SystemClock(), after_s=60.0)


class OneByOne:
    """An executor with one slot, which runs a claim until it is let go."""

    slots = 1
    broken: str | None = None

    def __init__(self) -> None:
        self.ran: list[Claim] = []
        self.go = asyncio.Semaphore(0)

    async def start(self) -> None:
        """Nothing has to be started."""

    async def run(self, claim: Claim) -> Outcome:
        self.ran.append(claim)
        await self.go.acquire()
        return Returned()

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        return False

    async def stop(self) -> None:
        """Nothing has to be ended."""


async def test_a_claim_that_is_asked_to_stop_while_it_waits_never_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "chancy.attempts")
    settled: list[Settlement] = []
    executor = OneByOne()
    runner = Runner(executor, judge, settled.append, SystemClock(), UNKNOWN)
    first, second, third = claims = [claimed() for _ in range(3)]
    asked = Cancelled("somebody asked for it")
    try:
        runner.give(claims)
        await eventually(lambda: executor.ran == [first])
        assert runner.ask_to_stop(second.id, asked) is True
        assert settled == [judge(second, asked)]
        assert f"job_cancelled job={second.id}" in caplog.text
        assert runner.ask_to_stop(second.id, asked) is False, "it is not here any more"
        assert runner.ids == {first.id, third.id}
        executor.go.release()
        await eventually(lambda: executor.ran == [first, third])
        # The last one waits for nothing but its turn, and then there is nothing to run.
        assert not runner.idle.is_set()
        executor.go.release()
        await eventually(runner.idle.is_set)
        assert [one.id for one in settled] == [second.id, first.id, third.id]
    finally:
        await runner.close()


@pytest.mark.parametrize(("prefetch_limit", "wanted"), [(None, True), (0, False)])
async def test_claims_are_held_ahead_as_far_as_is_allowed(
    prefetch_limit: int | None, wanted: bool
) -> None:
    """Jobs that take no time: more of them are worth it."""
    executor, settled, clock = OneByOne(), list[Settlement](), ManualClock()
    runner = Runner(executor, judge, settled.append, clock, UNKNOWN, prefetch_limit)
    try:
        for _ in range(1_000):
            executor.go.release()
        runner.give([claimed() for _ in range(1_000)])
        await eventually(lambda: len(settled) == 1_000)
        clock.advance(0.1)
        assert runner.room > 0
        assert (runner.capacity > 1) is wanted
    finally:
        await runner.close()


async def test_claims_by_rules_are_held_ahead_only_while_there_are_enough() -> None:
    executor, settled, clock = OneByOne(), list[Settlement](), ManualClock()
    runner = Runner(executor, judge, settled.append, clock, UNKNOWN)
    try:
        for _ in range(100):
            executor.go.release()
        runner.give([claimed() for _ in range(100)])
        await eventually(lambda: len(settled) == 100)
        clock.advance(0.1)
        assert runner.room == 1 + 100
        for asked, taken, ahead in ((30, 30, 60), (30, 29, 0), (3, 3, 6), (600, 600, 100)):
            runner.adapt_prefetch(asked, taken)
            assert runner.capacity == 1 + ahead
    finally:
        await runner.close()


async def test_an_executor_without_slots_gets_no_claims_ahead() -> None:
    """It may release each at once, as on a cluster that is lost, which looks like a fast job."""
    executor, settled, clock = OneByOne(), list[Settlement](), ManualClock()
    runner = Runner(executor, judge, settled.append, clock, UNKNOWN)
    try:
        for _ in range(100):
            executor.go.release()
        runner.give([claimed() for _ in range(100)])
        await eventually(lambda: len(settled) == 100)
        clock.advance(0.1)
        assert runner.room == 1 + 100
        executor.slots = 0
        assert runner.room == 0
    finally:
        await runner.close()


async def test_claims_behind_a_slow_job_are_released_after_a_second() -> None:
    executor, settled, clock = OneByOne(), list[Settlement](), ManualClock()
    runner = Runner(executor, judge, settled.append, clock, UNKNOWN)
    claims = [claimed() for _ in range(3)]
    try:
        runner.give(claims)
        await eventually(lambda: executor.ran)
        clock.advance(0.9)
        runner.release_stuck()
        assert settled == []
        clock.advance(0.2)
        runner.release_stuck()
        assert [(one.id, one.state) for one in settled] == [
            (one.id, State.PENDING) for one in claims[1:]
        ]
        assert executor.ran == claims[:1]
    finally:
        await runner.close()


async def test_a_runner_whose_only_claim_is_asked_to_stop_is_idle_and_continues() -> None:
    settled: list[Settlement] = []
    executor = OneByOne()
    runner = Runner(executor, judge, settled.append, SystemClock(), UNKNOWN)
    only, later = claimed(), claimed()
    try:
        runner.give([only])
        # Its consumer has not had a turn of the loop yet.
        assert runner.ask_to_stop(only.id, Cancelled("asked")) is True
        assert runner.idle.is_set()
        runner.give([later])
        executor.go.release()
        await eventually(lambda: len(settled) == 2)
        assert executor.ran == [later]
    finally:
        await runner.close()


async def test_a_running_job_is_released_when_its_consumer_is_stopped() -> None:
    settled: list[Settlement] = []
    executor = OneByOne()
    runner = Runner(executor, judge, settled.append, SystemClock(), UNKNOWN)
    only = claimed()
    runner.give([only])
    await eventually(lambda: executor.ran)
    await runner.close()
    assert settled == [judge(only, Released("the worker stopped before the job ended"))]


async def test_an_outcome_that_cannot_be_settled_stalls_no_other_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor, settled = OneByOne(), list[Settlement]()
    first, *others = claims = [claimed() for _ in range(3)]

    def settle(settlement: Settlement) -> None:
        if settlement.id == first.id:
            raise RuntimeError("no luck")
        settled.append(settlement)

    runner = Runner(executor, judge, settle, SystemClock(), UNKNOWN)
    try:
        for _ in claims:
            executor.go.release()
        runner.give(claims)
        await eventually(runner.idle.is_set, timeout=10)
        assert [one.id for one in settled] == [claim.id for claim in others]
    finally:
        await runner.close()
    assert f"outcome_failed job={first.id}" in caplog.text
