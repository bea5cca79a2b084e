"""Waiting for jobs that may be in one broker or another."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob
from chancy.clock import SystemClock
from chancy.errors import BrokerUnavailable, JobError, StatementFailed, WaitTimeout
from chancy.job.definition import QueuedJob
from chancy.routing.members import BrokerSet
from chancy.routing.waiter import RoutedWaiter
from chancy.states import State
from chancy.testing.memory import MemoryBroker
from tests.support.two_brokers import FailingBroker, TwoBrokers
from tests.support.waiting import eventually


@pytest.fixture
def two() -> TwoBrokers:
    return TwoBrokers()


@pytest.fixture
async def planes(two: TwoBrokers) -> AsyncIterator[BrokerSet]:
    made = BrokerSet(MemoryBroker(), {"memory": FailingBroker(two)}, SystemClock())
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def waits(planes: BrokerSet) -> AsyncIterator[RoutedWaiter]:
    async def broker_of(queue: str) -> tuple[str, Broker]:
        name = "postgres" if queue == "stays" else "memory"
        return name, planes.all[name]

    made = RoutedWaiter(planes, SystemClock(), broker_of)
    yield made
    await made.close()


def job(queue: str = "q") -> PreparedJob:
    return PreparedJob(uuid.uuid4(), queue, 0, "a.b", "{}", None, None, 1, None)


@pytest.mark.parametrize("name", ["postgres", "memory"])
async def test_a_job_that_is_nowhere_yet_is_waited_for(
    planes: BrokerSet, waits: RoutedWaiter, name: str
) -> None:
    wanted = job()
    waiting = asyncio.create_task(waits.wait(wanted.id, 10))
    await asyncio.sleep(0.05)
    await planes.all[name].push([wanted])
    await planes.all[name].cancel([wanted.id])
    assert (await waiting).state is State.CANCELLED


@pytest.mark.parametrize("pushed", [False, True])
async def test_a_stored_job_that_no_broker_has_is_gone(
    planes: BrokerSet, waits: RoutedWaiter, pushed: bool
) -> None:
    wanted = job()
    if pushed:
        planes.pushed("memory", [wanted.id])
    with pytest.raises(JobError, match=f"job {wanted.id} is gone"):
        await asyncio.wait_for(waits.wait(wanted.id, None, stored=True), 10)


async def test_a_stored_job_may_be_in_a_broker_that_is_away(
    planes: BrokerSet, waits: RoutedWaiter, two: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.routing.waiter._RETRY_S", 0.01)
    wanted = job()
    await planes.all["memory"].push([wanted])
    await planes.all["memory"].cancel([wanted.id])
    two.away = True
    waiting = asyncio.create_task(waits.wait(wanted.id, 30, stored=True))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    two.away = False
    assert (await waiting).state is State.CANCELLED


async def test_jobs_removed_from_their_broker_are_found_in_the_history(
    planes: BrokerSet, waits: RoutedWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.routing.waiter._RECHECK_S", 0.01)
    wanted = job()
    planes.pushed("memory", [wanted.id])
    waiting = asyncio.create_task(waits.wait(wanted.id, 10))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await planes.all["postgres"].push([wanted])
    await planes.all["postgres"].cancel([wanted.id])
    assert (await waiting).state is State.CANCELLED


async def test_jobs_lost_by_their_broker_are_found_in_the_history(
    planes: BrokerSet, waits: RoutedWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.results.waiter.CompletionWaiter.listening_s", 0.01)
    wanted, lost = job(), job()
    await planes.all["memory"].push([wanted, lost])
    planes.pushed("memory", [wanted.id, lost.id])
    get, seen = planes.all["memory"].get, set[uuid.UUID]()

    async def forgetful(ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, QueuedJob]:
        first = [id for id in ids if id not in seen]
        seen.update(ids)
        return await get(first)

    monkeypatch.setattr(planes.all["memory"], "get", forgetful)
    await planes.all["postgres"].push([wanted])
    await planes.all["postgres"].cancel([wanted.id])
    assert (await waits.wait(wanted.id, 10)).state is State.CANCELLED
    with pytest.raises(JobError, match="does not keep finished jobs"):
        await waits.wait(lost.id, 10)


async def test_a_job_that_moves_away_and_comes_back_is_waited_for(
    planes: BrokerSet, waits: RoutedWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job that is adopted, runs, and is archived between two polls of the history."""
    monkeypatch.setattr("chancy.results.waiter.CompletionWaiter.listening_s", 0.01)
    wanted = job()
    await planes.all["postgres"].push([wanted])
    get = planes.all["postgres"].get
    away = asyncio.Event()

    async def gone_once(ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, QueuedJob]:
        if away.is_set():
            return await get(ids)
        away.set()
        return {}

    waiting = asyncio.create_task(waits.wait(wanted.id, 10))
    inner = waits._waiters["postgres"]
    await eventually(lambda: wanted.id in inner._wanted and bool(inner._wanted[wanted.id].found))
    monkeypatch.setattr(planes.all["postgres"], "get", gone_once)
    await eventually(away.is_set)
    await planes.all["postgres"].cancel([wanted.id])
    assert (await waiting).state is State.CANCELLED


async def test_a_job_that_moved_to_a_broker_that_is_away_is_not_gone(
    planes: BrokerSet, waits: RoutedWaiter, two: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job that was pushed within a transaction, adopted by Redis, and lost from view there."""
    monkeypatch.setattr("chancy.results.waiter.CompletionWaiter.listening_s", 0.01)
    monkeypatch.setattr("chancy.routing.waiter._RETRY_S", 0.01)
    wanted = job()
    control, other = planes.all["postgres"], planes.all["memory"]
    await control.push([wanted])
    get, asked = control.get, 0

    async def moved(ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, QueuedJob]:
        nonlocal asked
        asked += 1
        return {} if two.away else await get(ids)

    monkeypatch.setattr(control, "get", moved)
    waiting = asyncio.create_task(waits.wait(wanted.id, 30))
    await eventually(lambda: asked > 1)
    await other.push([wanted])
    await other.cancel([wanted.id])
    asked, two.away = 0, True
    await eventually(lambda: asked > 4 or waiting.done())
    assert not waiting.done()
    monkeypatch.setattr(control, "get", lambda ids: asyncio.sleep(0, {}))
    two.away = False
    assert (await waiting).state is State.CANCELLED


async def test_a_job_that_is_gone_from_its_broker_does_not_wait_for_another(
    planes: BrokerSet, waits: RoutedWaiter, two: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job of a queue that does not keep finished jobs."""
    monkeypatch.setattr("chancy.results.waiter.CompletionWaiter.listening_s", 0.01)
    wanted = job("stays")
    control = planes.all["postgres"]
    await control.push([wanted])
    waiting = asyncio.create_task(waits.wait(wanted.id, None))
    inner = waits._waiters["postgres"]
    await eventually(lambda: wanted.id in inner._wanted and bool(inner._wanted[wanted.id].found))
    two.away = True
    monkeypatch.setattr(control, "get", lambda ids: asyncio.sleep(0, {}))
    with pytest.raises(JobError, match="does not keep finished jobs"):
        await asyncio.wait_for(waiting, 10)


async def test_a_job_finishes_while_another_broker_does_not_respond(
    planes: BrokerSet, waits: RoutedWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.routing.waiter._RECHECK_S", 0.01)
    wanted = job()
    await planes.all["memory"].push([wanted])
    waiting = asyncio.create_task(waits.wait(wanted.id, None))
    await eventually(lambda: waits._waiters["memory"]._wanted)
    asked = asyncio.Event()

    async def hang(ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, QueuedJob]:
        asked.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(planes.all["postgres"], "get", hang)
    await asyncio.wait_for(asked.wait(), 10)
    await planes.all["memory"].cancel([wanted.id])
    assert (await asyncio.wait_for(waiting, 10)).state is State.CANCELLED


async def test_many_new_waiters_share_few_queries(
    planes: BrokerSet, waits: RoutedWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [job() for _ in range(2_500)]
    await planes.all["memory"].push(wanted)
    await planes.all["memory"].cancel([one.id for one in wanted])
    looks: list[int] = []
    get = planes.all["memory"].get

    async def counted(ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, QueuedJob]:
        looks.append(len(ids))
        return await get(ids)

    monkeypatch.setattr(planes.all["memory"], "get", counted)
    found = await asyncio.gather(*(waits.wait(one.id, 30) for one in wanted))
    assert all(one.state is State.CANCELLED for one in found)
    assert len(looks) <= 50
    assert max(looks) == 100, "each may have megabytes"


async def test_a_look_that_fails_leaves_the_waiters(
    planes: BrokerSet, waits: RoutedWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.routing.waiter._RECHECK_S", 0.01)
    failed = asyncio.Event()
    wanted = job()
    await planes.all["memory"].push([wanted])
    planes.pushed("memory", [wanted.id])
    get = planes.all["memory"].get
    calls = itertools.count()

    async def full(ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, QueuedJob]:
        if next(calls) == 0:  # the look with which the wait begins
            return await get(ids)
        failed.set()
        raise StatementFailed("OOM", passing=True)

    with monkeypatch.context() as patch:
        patch.setattr(planes.all["memory"], "get", full)
        waiting = asyncio.create_task(waits.wait(wanted.id, 10))
        await asyncio.wait_for(failed.wait(), 10)
    await planes.all["memory"].cancel([wanted.id])
    assert (await waiting).state is State.CANCELLED


async def test_a_waiting_caller_is_notified_at_the_end(
    planes: BrokerSet, waits: RoutedWaiter
) -> None:
    waiting = asyncio.create_task(waits.wait(uuid.uuid4(), 10))
    await asyncio.sleep(0)
    await waits.close()
    with pytest.raises(BrokerUnavailable, match="closed during a wait"):
        await waiting


async def test_a_wait_in_the_pushing_process_respects_its_timeout(
    planes: BrokerSet, waits: RoutedWaiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.routing.waiter._RECHECK_S", 0.01)
    wanted = job()
    await planes.all["memory"].push([wanted])
    planes.pushed("memory", [wanted.id])
    with pytest.raises(WaitTimeout, match=r"is pending after 0\.2 s"):
        await waits.wait(wanted.id, 0.2)


async def test_a_wait_ends_in_time(planes: BrokerSet, waits: RoutedWaiter, two: TwoBrokers) -> None:
    with pytest.raises(WaitTimeout):
        await waits.wait(uuid.uuid4(), 0.1)
    two.away = True
    with pytest.raises(WaitTimeout):
        await waits.wait(uuid.uuid4(), 0.1)


async def test_a_broker_that_comes_back_is_asked_again(
    planes: BrokerSet, waits: RoutedWaiter, two: TwoBrokers
) -> None:
    there = job()
    await planes.all["memory"].push([there])
    await planes.all["memory"].cancel([there.id])
    two.away = True
    waiting = asyncio.create_task(waits.wait(there.id, 10))
    await asyncio.sleep(0.1)
    two.away = False
    assert (await waiting).state is State.CANCELLED


async def test_a_wait_raises_if_the_only_possible_broker_is_unavailable(
    planes: BrokerSet, waits: RoutedWaiter, two: TwoBrokers
) -> None:
    there = job()
    await planes.all["memory"].push([there])
    planes.pushed("memory", [there.id])
    two.away = True
    with pytest.raises(BrokerUnavailable):
        await waits.wait(there.id, 10)


async def test_of_what_is_remembered_there_is_an_end(planes: BrokerSet) -> None:
    ids = [uuid.uuid4() for _ in range(10_001)]
    planes.pushed("memory", ids[:6_000])
    planes.pushed("memory", ids[6_000:])
    planes.leased("memory", ids)
    assert [planes.broker_of_job(id) for id in (ids[0], ids[1])] == [None, "memory"]
    assert [planes.broker_of_lease(id) for id in (ids[0], ids[-1])] == ["postgres", "memory"]
