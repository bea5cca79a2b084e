"""What jobs wait to have stored is stored together, in order, and for as long as it takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import cast
from uuid import UUID, uuid4

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note
from chancy.broker.contract import Broker
from chancy.clock import SystemClock
from chancy.errors import BrokerUnavailable, LeaseLost, StatementFailed
from chancy.worker import checkpoint_writer
from chancy.worker.checkpoint_writer import CheckpointWriter
from tests.support.claims import claimed
from tests.support.waiting import eventually
from tests.unit.worker.test_meta_writer import Store


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def keeper(store: Store) -> AsyncIterator[CheckpointWriter]:
    made = CheckpointWriter(cast("Broker", store), SystemClock())
    task = asyncio.create_task(made.serve())
    yield made
    task.cancel()
    await asyncio.wait([task])


def keep(keeper: CheckpointWriter, one: Claim, number: int) -> asyncio.Task[None]:
    return asyncio.ensure_future(keeper.store(one, json.dumps({"checkpoints": number})))


def stored(notes: Sequence[Note]) -> dict[UUID, int]:
    return {note.id: json.loads(note.meta)["checkpoints"] for note in notes}


async def test_values_that_arrive_during_a_write_are_written_by_the_next(
    keeper: CheckpointWriter, store: Store
) -> None:
    one, other = claimed(), claimed()
    store.open.clear()
    first = keep(keeper, one, 1)
    await eventually(lambda: store.calls)
    rest = [keep(keeper, one, 2), keep(keeper, other, 3), keep(keeper, one, 4)]
    await asyncio.sleep(0)
    assert not first.done()
    store.open.set()
    await asyncio.gather(first, *rest)
    # The last of an attempt holds all that the ones before it held.
    assert [stored(call) for call in store.calls] == [{one.id: 1}, {one.id: 4, other.id: 3}]


async def test_large_checkpoints_are_written_a_few_at_a_time(
    keeper: CheckpointWriter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "CHUNK_SIZE", 1_000)
    store.open.clear()
    first = keep(keeper, claimed(), 1)
    await eventually(lambda: store.calls)
    rest = [keep(keeper, claimed(), 10**digits) for digits in (2_000, 500, 400, 300)]
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(first, *rest)
    digits = [[len(str(value)) - 1 for value in stored(call).values()] for call in store.calls[1:]]
    assert digits == [[2_000], [500, 400], [300]]


async def test_a_wait_continues_while_the_store_is_unavailable(
    keeper: CheckpointWriter, store: Store
) -> None:
    one, other = claimed(), claimed()
    store.away = True
    first = keep(keeper, one, 1)
    await eventually(lambda: len(store.calls) >= 2)
    second, third = keep(keeper, one, 2), keep(keeper, other, 3)
    await eventually(lambda: len(store.calls) >= 3)
    assert not first.done()
    store.away = False
    await asyncio.gather(first, second, third)
    assert stored(store.calls[-1]) == {one.id: 2, other.id: 3}


async def test_only_jobs_with_a_lost_lease_are_notified(
    keeper: CheckpointWriter, store: Store
) -> None:
    one, other = claimed(), claimed()
    store.stale = frozenset({one.id})
    lost, good = keep(keeper, one, 1), keep(keeper, other, 2)
    await good
    with pytest.raises(LeaseLost, match=str(one.id)):
        await lost


async def test_a_checkpoint_that_the_store_refuses_fails_alone(
    keeper: CheckpointWriter, store: Store
) -> None:
    one, other = claimed(), claimed()
    store.refused = frozenset({one.id})
    bad, good = keep(keeper, one, 1), keep(keeper, other, 2)
    await good
    with pytest.raises(StatementFailed, match="no such character"):
        await bad


async def test_two_attempts_at_one_job_are_stored_apart(
    keeper: CheckpointWriter, store: Store
) -> None:
    """The answer tells only the job; one of them has lost its lease."""
    one = claimed()
    zombie = one._replace(lease=uuid4())
    await asyncio.gather(keep(keeper, zombie, 1), keep(keeper, one, 2))
    assert [[note.lease for note in call] for call in store.calls] == [[zombie.lease], [one.lease]]


async def test_a_waiting_caller_is_notified_at_the_end(store: Store) -> None:
    keeper = CheckpointWriter(cast("Broker", store), SystemClock())
    store.open.clear()
    serving = asyncio.create_task(keeper.serve())
    waiting = [keep(keeper, claimed(), 1)]
    await eventually(lambda: store.calls)
    waiting.append(keep(keeper, claimed(), 2))
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])
    keeper.close()
    waiting.append(keep(keeper, claimed(), 3))
    for one in waiting:
        with pytest.raises(BrokerUnavailable, match="the worker is stopping"):
            await one


async def test_what_is_locked_is_written_later(
    keeper: CheckpointWriter,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(checkpoint_writer, "_LOCKED_S", 0.02)
    one, other, gone = claimed(), claimed(), claimed()
    store.locked, store.stale = frozenset([one.id]), frozenset([gone.id])
    waiting, stored_, lost = (keep(keeper, each, 1) for each in (one, other, gone))
    await stored_
    with pytest.raises(LeaseLost):
        await lost
    await eventually(lambda: len(store.calls) > 3)
    assert not waiting.done()
    store.locked = store.stale = frozenset()
    await waiting
    assert all(stored(call) == {one.id: 1} for call in store.calls[1:])
    assert caplog.text.count("checkpoints_blocked jobs=1 error=") == 1
    store.locked = frozenset([one.id])
    again = keep(keeper, one, 2)
    await eventually(lambda: caplog.text.count("checkpoints_blocked") == 2)
    store.locked = frozenset()
    await again
