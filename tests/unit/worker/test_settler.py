"""Settlements are written in batches of a bounded size, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Settlement
from chancy.errors import BrokerError, BrokerUnavailable, RowsLocked, StatementFailed
from chancy.job.ids import new_id
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.worker import settler as settling
from chancy.worker.settler import BATCH, Settler
from tests.support.waiting import eventually

TIMED_OUT = StatementFailed("canceling statement due to statement timeout", sqlstate="57014")


class Store:
    """Accepts settlements as a broker does, and fails calls of more than ``most``."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.settled: list[UUID] = []
        self.most = BATCH
        self.error: BrokerError = TIMED_OUT
        #: A job whose every outcome is refused.
        self.refused: UUID | None = None

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        self.calls.append(len(settlements))
        await asyncio.sleep(0)
        if len(settlements) > self.most or self.refused in {one.id for one in settlements}:
            raise self.error
        self.settled += [settlement.id for settlement in settlements]
        return frozenset()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def settler(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Settler]:
    monkeypatch.setattr(settling, "BATCH_SIZE", 1_000)
    monkeypatch.setattr(settling, "MOST_WAITING_SIZE", 5_000)
    made = Settler(store.settle, clock, on_stale=lambda _: None)
    task = asyncio.create_task(made.serve())
    yield made
    task.cancel()
    await asyncio.wait([task])


def ended(
    result: str | None = None, *, meta: str | None = None, failure: Failure | None = None
) -> Settlement:
    state = State.SUCCEEDED if failure is None else State.FAILED
    return Settlement(new_id(), new_id(), state, result=result, meta=meta, failure=failure)


def called_again(store: Store, calls: int) -> bool:
    return len(store.calls) > calls


def add(settler: Settler, settlements: Sequence[Settlement]) -> list[UUID]:
    for settlement in settlements:
        settler.add(settlement)
    return [settlement.id for settlement in settlements]


async def test_small_settlements_are_written_together(store: Store, settler: Settler) -> None:
    ids = add(settler, [ended("1") for _ in range(BATCH)])
    await settler.empty.wait()
    assert (store.calls, store.settled) == ([BATCH], ids)


@pytest.mark.parametrize(
    "large",
    [
        {"result": "x" * 400},
        {"meta": "x" * 400},
        {"failure": Failure.named("a.B", "x" * 400)},
        {"failure": Failure(types=("a.B",), message="", trace="x" * 200, notes=("x" * 200,))},
    ],
)
async def test_batches_have_a_bounded_size(
    store: Store, settler: Settler, large: dict[str, Any]
) -> None:
    ids = add(settler, [ended(**large) for _ in range(7)])
    await settler.empty.wait()
    assert (store.calls, store.settled) == ([2, 2, 2, 1], ids)
    assert settler.settled == 7


async def test_a_settlement_larger_than_a_batch_is_written_alone(
    store: Store, settler: Settler
) -> None:
    ids = add(settler, [ended("1"), ended("x" * 5_000), ended("1")])
    await settler.empty.wait()
    assert (store.calls, store.settled) == ([1, 1, 1], ids)


@pytest.mark.parametrize("error", [TIMED_OUT, BrokerUnavailable("no response within 30 s")])
async def test_a_batch_that_fails_twice_is_halved(
    store: Store, settler: Settler, clock: ManualClock, error: BrokerError
) -> None:
    store.most, store.error = 3, error
    ids = add(settler, [ended("1") for _ in range(12)])
    while not settler.empty.is_set():
        clock.advance(5)
        await asyncio.sleep(0)
    assert store.settled == ids
    assert store.calls[:4] == [12, 12, 6, 3]
    assert max(store.calls[4:]) <= 6


async def test_batches_grow_again_after_an_outage(
    store: Store, settler: Settler, clock: ManualClock
) -> None:
    store.most = 0
    ids = add(settler, [ended("1") for _ in range(40)])
    while len(store.calls) < 10:
        clock.advance(5)
        await asyncio.sleep(0)
    store.most = BATCH
    while not settler.empty.is_set():
        clock.advance(5)
        await asyncio.sleep(0)
    assert sorted(store.settled) == sorted(ids)
    assert store.calls[-1] > 1
    ids += add(settler, [ended("1") for _ in range(BATCH)])
    await settler.empty.wait()
    ids += add(settler, [ended("1") for _ in range(BATCH)])
    await settler.empty.wait()
    assert store.calls[-1] == BATCH
    assert sorted(store.settled) == sorted(ids)


async def test_a_refused_settlement_holds_up_no_others(
    store: Store, settler: Settler, clock: ManualClock
) -> None:
    """Also those that come in while it is tried again."""
    first, *others = [ended() for _ in range(10)]
    store.refused = first.id
    wanted = add(settler, [first, *others])[1:]
    while len(store.calls) < 4:
        clock.advance(5)
        await asyncio.sleep(0)
    wanted += add(settler, [ended()])
    for _ in range(500):
        clock.advance(5)
        await asyncio.sleep(0)
    assert sorted(store.settled) == sorted(wanted)
    assert not settler.open.is_set()
    store.refused = None
    for _ in range(10):
        clock.advance(5)
        await asyncio.sleep(0)
    assert sorted(store.settled) == sorted([*wanted, first.id])
    assert settler.open.is_set()


async def test_settlements_without_urgency_are_written_after_an_outage(
    store: Store, settler: Settler, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that came in while a single one was tried again."""
    monkeypatch.setattr(settling, "_GATHER_S", 0.01)
    store.most = 0
    ids = add(settler, [ended()])
    await eventually(lambda: len(store.calls) == 1)
    for _ in range(2):
        settler.add(late := ended(), urgent=False)
        ids.append(late.id)
        await asyncio.sleep(0.03)  # lets its timer of 0.01 s fire, which nothing reports
        tried = partial(called_again, store, len(store.calls))
        clock.advance(5)
        await eventually(tried)
    store.most = BATCH
    settler.add(late := ended(), urgent=False)
    ids.append(late.id)

    def written() -> bool:
        clock.advance(5)
        return sorted(store.settled) == sorted(ids)

    await eventually(written)
    await eventually(settler.empty.is_set)


async def test_claiming_stops_while_too_much_waits(store: Store, settler: Settler) -> None:
    await asyncio.sleep(0)
    ids = add(settler, [ended("x" * 900) for _ in range(6)])
    assert not settler.open.is_set()
    await settler.empty.wait()
    assert settler.open.is_set()
    assert store.settled == ids


async def test_an_interrupted_batch_is_written_by_the_next_run(
    store: Store, clock: ManualClock
) -> None:
    settler = Settler(store.settle, clock, on_stale=lambda _: None)
    store.most = 0
    ids = add(settler, [ended("1") for _ in range(3)])
    task = asyncio.create_task(settler.serve())
    await eventually(lambda: bool(store.calls))
    task.cancel()
    await asyncio.wait([task])
    assert settler.ids == set(ids)
    store.most = BATCH
    task = asyncio.create_task(settler.serve())
    await settler.empty.wait()
    assert store.settled == ids
    task.cancel()
    await asyncio.wait([task])


async def test_settlements_without_urgency_are_gathered(
    store: Store, settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_GATHER_S", 0.3)  # more than a busy machine takes to add three
    for _ in range(3):
        settler.add(ended(), urgent=False)
        await asyncio.sleep(0)
    assert store.calls == []
    await settler.empty.wait()
    assert store.calls == [3]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settlements without urgency wait for longer than a test takes."""
    monkeypatch.setattr(settling, "_GATHER_S", 3_600.0)


@pytest.mark.usefixtures("patient")
async def test_an_urgent_settlement_takes_the_others_along(store: Store, settler: Settler) -> None:
    settler.add(ended(), urgent=False)
    settler.add(ended())
    await settler.empty.wait()
    assert store.calls == [2]
    settler.add(ended(), urgent=False)
    assert not settler.empty.is_set()
    settler.add(ended())
    await settler.empty.wait()
    assert store.calls == [2, 2]


@pytest.mark.usefixtures("patient")
async def test_a_full_batch_and_a_flush_do_not_wait(store: Store, settler: Settler) -> None:
    for _ in range(3):  # full by its characters
        settler.add(ended("x" * 400), urgent=False)
    await settler.empty.wait()
    assert store.calls == [2, 1]
    store.calls.clear()
    for _ in range(BATCH):
        settler.add(ended(), urgent=False)
    await settler.empty.wait()
    settler.add(ended(), urgent=False)
    await settler.flush(30)
    assert store.calls == [BATCH, 1]


async def test_settlements_of_locked_rows_are_kept_and_hold_up_no_others(
    settler: Settler, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settler._unblocking.base_s = 0.01
    locked, other, later = ended(), ended(), ended()
    free = asyncio.Event()
    accept = store.settle

    async def settle(settlements: Sequence[Settlement]) -> frozenset[UUID]:
        blocked = {one.id for one in settlements if one is locked and not free.is_set()}
        await accept([one for one in settlements if one.id not in blocked])
        if blocked:
            raise RowsLocked(frozenset(blocked), frozenset())
        return frozenset()

    monkeypatch.setattr(settler, "_settle", settle)
    stored: list[str] = []
    settler.add(locked, partial(stored.append, "locked"))
    settler.add(other, partial(stored.append, "other"))
    await eventually(lambda: stored == ["other"])
    settler.add(later)
    await eventually(lambda: later.id in store.settled)
    assert settler.open.is_set()
    assert settler.ids == {locked.id}
    assert not settler.empty.is_set()
    free.set()
    await eventually(settler.empty.is_set)
    assert stored == ["other", "locked"]
    assert (len(settler), settler.settled) == (0, 3)


async def test_settlements_that_wait_for_their_rows_are_bounded(
    settler: Settler, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "MOST_WAITING", 3)
    settler._unblocking.base_s = settler._unblocking.cap_s = 0.01
    free = asyncio.Event()
    accept = store.settle

    async def settle(settlements: Sequence[Settlement]) -> frozenset[UUID]:
        if not free.is_set():
            raise RowsLocked(frozenset(one.id for one in settlements), frozenset())
        return await accept(settlements)

    monkeypatch.setattr(settler, "_settle", settle)
    for _ in range(3):
        settler.add(ended())
    await eventually(lambda: len(settler._blocked) == 3)
    assert settler.open.is_set()
    settler.add(ended())
    await eventually(lambda: len(settler._blocked) == 4)
    assert not settler.open.is_set()
    free.set()
    await eventually(settler.open.is_set)
    await eventually(settler.empty.is_set)
