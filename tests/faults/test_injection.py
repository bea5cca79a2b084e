"""A fault at every single call: whichever fails, and however, the history ends the same way."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence

import pytest

from chancy import Chancy, Queue, Worker
from chancy.executors.base import Executor
from chancy.plugins.recovery import Recovery
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.statements import Statements
from chancy.worker import queue_worker as serving
from chancy.worker import reconciler as holdings
from tests.faults.flaky_driver import (
    CONNECTION_LOST,
    FlakyDriver,
    OneFault,
    RandomFaults,
    Switchboard,
)
from tests.faults.scenario import Scenario
from tests.support.waiting import eventually

#: The server refuses the statement for the moment: a serialization failure, a lock timeout, a
#: statement timeout.
REFUSED = ("40001", "55P03", "57014")
#: The session is lost: the server went read-only, or the line broke.
LOST = ("25006", CONNECTION_LOST)
#: The server does not take the session.
NO_SESSION = ("53300", CONNECTION_LOST)

#: Statements that are made once or twice in a history are struck each time, these only at first.
_OFTEN = ("claim", "promote", "running")
_FIRST = 3


@pytest.fixture(autouse=True)
def no_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was rescued runs here like the rest: the books of a history are in this process, and
    to start children for each of hundreds takes minutes. test_poison has the quarantine."""
    monkeypatch.setattr(serving, "QuarantineExecutor", _undivided)


@pytest.fixture(autouse=True)
def many_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each history is long enough for some."""
    monkeypatch.setattr(holdings, "EVERY_S", 0.1)


def _undivided(executor: Executor, *_: object, alone_here: bool) -> Executor:
    return executor


async def points(dsn: str) -> list[tuple[str, int]]:
    """Every call of an undisturbed history, by kind and number."""
    dry = Scenario(dsn)
    await dry.run()
    dry.check()
    assert dry.stale == 0
    assert dry.switchboard.calls["other"] == 1, "an unknown statement; is it the version's?"
    return [
        (kind, number)
        for kind, count in sorted(dry.switchboard.calls.items())
        # Only asked after slow claims, which are up to the machine's pace.
        if kind != "last_position"
        for number in range(1, min(count, _FIRST if kind in _OFTEN else count) + 1)
    ]


async def run_all(dsns: Sequence[str], faults: Sequence[OneFault]) -> None:
    """Run a history for each fault, and tell all that went wrong."""
    left = list(faults)
    wrong: dict[OneFault, str] = {}

    async def lane(dsn: str) -> None:
        while left:
            fault = left.pop()
            scenario = Scenario(dsn, fault)
            try:
                await scenario.run()
                scenario.check()
                # A job that went back and was claimed again does not know its old lease any more.
                assert scenario.stale == 0 or fault.kind == "requeue"
                # How many calls of a kind there are depends a little on the moment, and so does
                # whether a claim begins behind its hints.
                first = fault.number == 1 and fault.kind != "claim"
                assert fault.struck == 1 or not first, "the fault did not happen"
            except Exception as error:
                wrong[fault] = f"{type(error).__name__}: {error}"

    await asyncio.gather(*(lane(dsn) for dsn in dsns))
    assert wrong == {}
    # The first of most kinds always does; how many more there are is up to the machine's pace.
    struck = sum(fault.struck for fault in faults)
    assert struck > len(faults) / 2, "too few of the faults happened"


def refusals(found: Sequence[tuple[str, int]]) -> list[OneFault]:
    """Faults in which the server refuses a statement."""
    return [
        OneFault(kind, number, code)
        for kind, number in found
        if kind != "connect"
        for code in REFUSED
    ]


def losses(found: Sequence[tuple[str, int]]) -> list[OneFault]:
    """Faults in which the session is lost, or not given, before the statement was run."""
    return [
        OneFault(kind, number, code)
        for kind, number in found
        for code in (NO_SESSION if kind == "connect" else LOST)
    ]


def lost_answers(found: Sequence[tuple[str, int]]) -> list[OneFault]:
    """Faults in which the statement was carried out, and nobody was told."""
    silent = ("connect", "listen", "begin")
    return [
        OneFault(kind, number, CONNECTION_LOST, answered=True)
        for kind, number in found
        if kind not in silent
    ]


async def test_a_crash_and_a_later_failure_are_both_recorded(dsn: str) -> None:
    """As for a job that a failed start of the worker has claimed. The failure begins the count of
    crashes anew."""
    history = Scenario(dsn, stumbles=1)
    await history.run()
    history.check()


async def test_a_lost_answer_changes_nothing(dsns: list[str]) -> None:
    """A third of the calls every day, others each day."""
    faults = lost_answers(await points(dsns[0]))
    random.shuffle(faults)
    await run_all(dsns, faults[: len(faults) // 3])


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_every_fault_at_every_call(dsns: list[str]) -> None:
    found = await points(dsns[0])
    await run_all(dsns, [*refusals(found), *losses(found), *lost_answers(found)])


async def run_random(dsn: str, seed: int) -> int:
    """A history in which every twentieth call fails; returns how many did."""
    faults = RandomFaults(seed, 0.05, (*REFUSED, *LOST))
    scenario = Scenario(dsn, faults, patience=1_000)
    await scenario.run()
    scenario.check()
    return faults.struck


async def test_many_faults_in_one_history(dsns: list[str]) -> None:
    struck = await asyncio.gather(*(run_random(dsn, seed) for seed, dsn in enumerate(dsns)))
    assert sum(struck) > 0, "the faults did not happen"


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_many_faults_in_many_histories(dsns: list[str]) -> None:
    first = int.from_bytes(os.urandom(4))
    rounds = int(os.environ.get("CHANCY_ROUNDS", "100"))
    for seed in range(first, first + rounds, len(dsns)):
        print(f"seeds from {seed}")  # noqa: T201
        struck = await asyncio.gather(*(run_random(dsn, seed + n) for n, dsn in enumerate(dsns)))
        assert sum(struck) > 0, "the faults did not happen"


async def test_an_idle_worker_asks_little(dsn: str) -> None:
    """A loop that spins instead of waiting does nobody's work, at the cost of everybody's."""
    switchboard = Switchboard(Statements("chancy"))
    app = Chancy(
        broker=PostgresBroker(dsn, driver=FlakyDriver(switchboard)),
        queues=[Queue(name="load", executor="async", poll_interval_s=0.5)],
        plugins=[Recovery(sweep_s=0.25)],
        no_default_plugins=True,
    )
    worker = Worker(app, queues=["load"], heartbeat_s=0.2, heartbeat_timeout_s=1.0)
    async with app, worker:
        await eventually(lambda: switchboard.calls["orphans"])
        began, before = time.monotonic(), switchboard.calls.copy()
        await eventually(lambda: switchboard.calls["orphans"] >= before["orphans"] + 4)
        passed_s, made = time.monotonic() - began, switchboard.calls - before
    # The first of the four may have been seen late.
    assert passed_s > 3 * 0.25 * 0.8
    # A poll, a sweep with four looks at the beats, a look at what is due, and ten at what is held a
    # second, each at its pace.
    assert made.total() < 5 + 40 * passed_s, made
