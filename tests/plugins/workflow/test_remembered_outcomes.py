"""What a worker remembers of steps that have ended in it."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from chancy import Settlement, State
from chancy.attempt.outcome import Returned
from chancy.plugins.batch.outcomes import BatchOutcomes as BatchNotes
from chancy.plugins.batch.outcomes import BatchRef as BatchPlace
from chancy.plugins.batch.outcomes import ref_of as batch_place_of
from chancy.plugins.workflow.outcomes import MAX_RECORDED, StepOutcomes, ref_of
from tests.unit.attempt.test_judge import claimed


def test_notes_are_bounded_and_take_no_nonsense() -> None:
    for meta in (
        None, "{}", '{"workflow": {}}', '{"workflow": {"id": 1, "step": "a", "run": 1}}',
        '{"workflow": {"id": "x", "step": "a", "run": 1}}', '{"workflow": {', '["workflow": {]',
    ):  # fmt: skip
        assert ref_of(meta) is None
    said = {"id": str(UUID(int=5)), "run": 2, "step": 'a "b'}
    good = json.dumps({"workflow": said, "x": 1})
    assert ref_of(good) == (UUID(int=5), 'a "b', 2, False)
    assert MAX_RECORDED == 20_000


def test_ends_that_were_not_told_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.outcomes.MAX_UNREPORTED", 10)
    notes, meta = StepOutcomes(), {"workflow": {"id": str(UUID(int=1)), "step": "a", "run": 1}}
    claims = [claimed(meta=json.dumps(meta)) for _ in range(3)]
    for claim in claims:
        notes.record(claim, Returned("1"), 0)
        settled = Settlement(claim.id, claim.lease, State.SUCCEEDED, result="12345")
        ends = notes.outcomes_of([settled])
        # The commit failed, and so did the hook when the batch was settled again.
        notes.mark_reported(ends)
        assert notes.unreported(claim.id) is None
        notes.mark_unreported(ends)
        assert notes.unreported(claim.id) == ends[0]
    assert len(notes) == 3
    assert [notes.unreported(one.id) is None for one in claims] == [True, False, False]
    notes.discard(one.id for one in claims)
    assert len(notes) == 0
    assert all(notes.unreported(one.id) is None for one in claims)


def test_a_batch_keeps_what_was_told_before_the_commit_failed() -> None:
    notes, id = BatchNotes(), UUID(int=5)
    notes.record(id, BatchPlace(UUID(int=1), None))
    ends = notes.outcomes_of([Settlement(id, UUID(int=6), State.SUCCEEDED)])
    notes.mark_reported(ends)
    assert len(notes) == 0
    notes.mark_unreported(ends)
    assert (len(notes), notes.unreported) == (1, {id: int(State.SUCCEEDED)})


def test_a_batch_waits_for_settlements_of_another_broker_that_are_late() -> None:
    place = {"batch": {"id": str(UUID(int=1))}}
    claims = [claimed(meta=json.dumps(place)) for _ in range(3)]
    ids = [one.id for one in claims]
    notes = BatchNotes()
    for claim in claims:
        found = batch_place_of(claim.meta)
        assert found is not None
        notes.record(claim.id, found)
    assert notes.age(10) == {}
    assert list(notes.age(10)) == ids
    notes.mark_away(ids)
    assert len(notes) == 0

    def told(*states: State) -> list[tuple[UUID, int]]:
        settled = [
            Settlement(claim.id, claim.lease, state)
            for claim, state in zip(claims, states, strict=True)
        ]
        return [(end.job, end.state) for end in notes.settled(settled)]

    assert told(State.SUCCEEDED, State.SCHEDULED, State.FAILED) == [(ids[0], 4), (ids[2], 5)]
    # They were told, and the other one goes on.
    assert told(State.SUCCEEDED, State.SUCCEEDED, State.SUCCEEDED) == []
