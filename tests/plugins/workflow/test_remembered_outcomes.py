"""Outcomes of steps that a worker keeps in memory."""

from __future__ import annotations

from uuid import UUID

import pytest

from chancy import Settlement, State
from chancy.plugins.batch.outcomes import BatchOutcomes as BatchNotes
from chancy.plugins.batch.outcomes import BatchRef as BatchPlace
from chancy.plugins.workflow.outcomes import RecordedAttempt, StepOutcomes, StepRef
from tests.support.claims import claimed


def test_unreported_outcomes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.plugin.tracking.recorded.MAX_UNREPORTED", 10)
    notes, attempt = StepOutcomes(), RecordedAttempt(StepRef(UUID(int=1), "a", 1, False), 0.0)
    claims = [claimed() for _ in range(3)]
    for claim in claims:
        notes.record(claim.id, attempt)
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


def test_a_batch_keeps_reports_from_before_a_failed_commit() -> None:
    notes, id = BatchNotes(), UUID(int=5)
    notes.record(id, BatchPlace(UUID(int=1), None))
    ends = notes.outcomes_of([Settlement(id, UUID(int=6), State.SUCCEEDED)])
    notes.mark_reported(ends)
    assert len(notes) == 0
    notes.mark_unreported(ends)
    assert (len(notes), notes.unreported(id)) == (1, ends[0])
