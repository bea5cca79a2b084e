"""Words of running jobs are written together, the last one of each, and never block anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import cast
from uuid import UUID

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Cancelled, Outcome
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import Broker
from chancy.clock import SystemClock
from chancy.context.context import Progress
from chancy.errors import BrokerUnavailable, RowsLocked, StatementFailed
from chancy.states import State
from chancy.worker import meta_writer as notes
from chancy.worker.meta_writer import MetaWriter
from tests.support.claims import claimed
from tests.support.waiting import eventually


class Store:
    """Takes notes as a broker does."""

    def __init__(self) -> None:
        self.calls: list[list[Note]] = []
        self.stale: frozenset[UUID] = frozenset()
        self.locked: frozenset[UUID] = frozenset()
        self.refused: frozenset[UUID] = frozenset()
        self.away = False
        self.open = asyncio.Event()
        self.open.set()

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        self.calls.append(list(notes))
        await self.open.wait()
        if self.away:
            raise BrokerUnavailable("away")
        for note in notes:
            if note.id in self.refused:
                note.on_refused(StatementFailed("no such character"))
        if self.locked:
            raise RowsLocked(self.locked, self.stale)
        return self.stale


class Interrupts(list[tuple[Claim, Outcome]]):
    def __call__(self, claim: Claim, outcome: Outcome) -> bool:
        self.append((claim, outcome))
        return True


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MetaWriter]:
    monkeypatch.setattr(notes, "EVERY_S", 0.05)
    made = MetaWriter(cast("Broker", store), SystemClock())
    task = asyncio.create_task(made.serve())
    yield made
    task.cancel()
    await asyncio.wait([task])


def ended(one: Claim, meta: str | None = None) -> Settlement:
    return Settlement(one.id, one.lease, State.SUCCEEDED, meta=meta)


def fractions(notes: Sequence[Note]) -> dict[UUID, float]:
    return {note.id: json.loads(note.meta)["progress"]["fraction"] for note in notes}


async def test_the_last_word_of_each_is_written_with_those_of_the_others(
    kept: MetaWriter, store: Store
) -> None:
    one, other = claimed(), claimed()
    kept.report(one, Progress(0.1), Interrupts())
    await eventually(lambda: len(store.calls) == 1)
    for n in range(100):
        kept.report(one, Progress(n / 100), Interrupts())
        kept.report(other, Progress(n / 200), Interrupts())
    await eventually(lambda: len(store.calls) == 2)
    assert [fractions(call) for call in store.calls] == [
        {one.id: 0.1},
        {one.id: 0.99, other.id: 99 / 200},
    ]


async def test_the_last_progress_is_kept_while_the_store_is_unavailable(
    kept: MetaWriter, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.away = True
    one = claimed()
    kept.report(one, Progress(0.1), Interrupts())
    await eventually(lambda: len(store.calls) >= 2)
    kept.report(one, Progress(0.2), Interrupts())
    store.away = False
    await eventually(lambda: fractions(store.calls[-1]) == {one.id: 0.2})
    assert "meta_update_retried notes=1" in caplog.text
    assert kept.with_progress([ended(one)]) == [ended(one)]


async def test_a_word_that_may_not_be_written_goes_out_with_the_settlement(
    kept: MetaWriter, store: Store
) -> None:
    store.open.clear()
    early, late, quiet = claimed(), claimed(), claimed()
    kept.report(early, Progress(0.5), Interrupts())
    await eventually(lambda: len(store.calls) == 1)
    kept.report(late, Progress(0.7), Interrupts())
    batch = [ended(early, '{"other": 1}'), ended(late), ended(quiet)]
    joined = kept.with_progress(batch)
    metas = [json.loads(one.meta or "{}") for one in joined]
    assert metas[0]["other"] == 1
    assert [meta.get("progress", {}).get("fraction") for meta in metas] == [0.5, 0.7, None]
    assert kept.with_progress(batch) == batch, "said once"


async def test_a_lost_lease_stops_the_job_unless_it_has_ended(
    kept: MetaWriter, store: Store
) -> None:
    store.open.clear()
    lost, done = claimed(), claimed()
    interrupts = Interrupts()
    kept.report(lost, Progress(0.5), interrupts)
    kept.report(done, Progress(0.5), interrupts)
    await eventually(lambda: len(store.calls) == 1)
    kept.with_progress([ended(done)])
    store.stale = frozenset({lost.id, done.id})
    store.open.set()
    await eventually(lambda: interrupts)
    ((told, outcome),) = interrupts
    assert told is lost
    assert isinstance(outcome, Cancelled)
    assert "lost its lease" in outcome.why
    assert kept.with_progress([ended(lost)]) == [ended(lost)]


async def test_what_is_locked_is_written_later(kept: MetaWriter, store: Store) -> None:
    one, other, gone = claimed(), claimed(), claimed()
    stopped = Interrupts()
    store.locked, store.stale = frozenset([one.id]), frozenset([gone.id])
    for each in (one, other, gone):
        kept.report(each, Progress(0.5, ""), stopped)
    await eventually(lambda: len(store.calls) > 1)
    store.locked = store.stale = frozenset()
    assert [each for each, _ in stopped] == [gone]
    assert all(fractions(call) == {one.id: 0.5} for call in store.calls[1:])
