"""Outcomes of jobs of batches: found among settlements, and written to the tables of batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.plugins.batch.store import statement
from chancy.states import State

#: The key of a job's meta that names its batch.
KEY = "batch"
#: How the meta of a batch's job begins: as jsonb is printed, and as Redis prints it after a change.
_MARK, _DENSE = f'"{KEY}": {{"id": "', f'"{KEY}":{{"id":"'
#: The length of meta that holds nothing else.
_PLAIN = len(f"{{{_MARK}") + 36 + len('"}}')
#: Attempts that are recorded here while their settlement is pending, at most.
MAX_RECORDED = 20_000
#: Reported outcomes that are remembered: two batches of the broker.
MAX_REPORTED = 2_000
_SUCCEEDED = int(State.SUCCEEDED)


class BatchRef(NamedTuple):
    """The batch that a job belongs to.

    :param root: the job whose dead letter it is a replay of; None if it is not a replay.
    """

    batch: UUID
    root: UUID | None


class BatchJobOutcome(NamedTuple):
    """The outcome of a job of a batch.

    :param state: a final one.
    """

    ref: BatchRef
    job: UUID
    state: int


@lru_cache(maxsize=1_000)
def _first(text: str) -> BatchRef:
    return BatchRef(UUID(text), None)


def ref_of(meta: str | None) -> BatchRef | None:
    """The batch that a job with this meta belongs to; None if none, or if the meta is malformed."""
    if meta is None or (_MARK not in meta and _DENSE not in meta):
        return None
    return _plain(meta) if len(meta) == _PLAIN else _parsed(meta)


def _parsed(meta: str) -> BatchRef | None:
    try:
        data = json.loads(meta)
        batch, dead_letters = data[KEY]["id"], data.get("dead_letters")
        if isinstance(dead_letters, dict):
            return BatchRef(UUID(batch), UUID(dead_letters["replay_of"]))
        return _first(batch)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


#: All jobs of a batch whose meta holds nothing else have the same meta.
_plain = lru_cache(maxsize=1_000)(_parsed)


class BatchOutcomes:
    """Attempts of jobs of batches that have ended in this process and are not settled yet.

    A settlement does not name the batch of its job; the claim does. So a plain job costs a look at
    its meta, and no query. An attempt that stays here for a while was settled without being
    reported, or goes on: the plugin's service checks it.
    """

    def __init__(self) -> None:
        self._recorded: dict[UUID, BatchRef] = {}
        # Attempts that were recorded before the service checked last.
        self._aged: dict[UUID, BatchRef] = {}
        # The outcomes reported last, in two generations: a batch is reported again if its reply
        # was lost. Whole generations are dropped: deleting one by one from the front of a dict
        # takes 4 µs each.
        self._reported: dict[UUID, BatchRef] = {}
        self._reported_before: dict[UUID, BatchRef] = {}
        # Checked attempts whose jobs are in no table: another broker is about to settle them.
        self._away: dict[UUID, BatchRef] = {}
        #: The states of jobs that the hook failed to report.
        self.unreported: dict[UUID, int] = {}

    def __len__(self) -> int:
        return len(self._recorded) + len(self._aged)

    def record(self, id: UUID, ref: BatchRef) -> None:
        """Record an attempt that has ended. Over the limit, the older ones are dropped: the sweep
        finds them."""
        self._recorded[id] = ref
        if len(self._recorded) >= MAX_RECORDED:
            self._aged, self._recorded = self._recorded, {}
            self.unreported.clear()

    def __contains__(self, id: UUID) -> bool:
        """Whether a job belongs to a batch and has a recent attempt in this process."""
        return id in self._recorded or bool(
            (self._aged and id in self._aged)
            or (self._reported and id in self._reported)
            or (self._reported_before and id in self._reported_before)
        )

    def _ref(self, id: UUID) -> BatchRef | None:
        return (
            self._recorded.get(id)
            or self._aged.get(id)
            or self._reported.get(id)
            or self._reported_before.get(id)
        )

    def outcomes_of(self, batch: Iterable[Settlement]) -> list[BatchJobOutcome]:
        """The outcomes of jobs of batches among settlements."""
        ref_of = self._ref
        return [
            _outcome(BatchJobOutcome, (ref, settlement.id, int(settlement.state)))
            for settlement in batch
            if (ref := ref_of(settlement.id)) is not None
        ]

    def mark_reported(self, outcomes: Iterable[BatchJobOutcome]) -> None:
        """Mark outcomes as written, provided that their transaction commits."""
        recorded, aged, reported = self._recorded, self._aged, self._reported
        for ref, id, _ in outcomes:
            reported[id] = ref
            if recorded.pop(id, None) is None and aged:
                aged.pop(id, None)
            if self.unreported:
                self.unreported.pop(id, None)
        if len(reported) > MAX_REPORTED:
            self._reported_before, self._reported = reported, {}

    def mark_unreported(self, outcomes: Iterable[BatchJobOutcome]) -> None:
        """Keep outcomes that could not be written; whether their jobs were settled is unknown."""
        recorded, aged = self._recorded, self._aged
        for _, id, state in outcomes:
            # One of them was reported before, if the commit failed then.
            ref = self._reported.pop(id, None) or self._reported_before.pop(id, None)
            if ref is not None:
                recorded[id] = ref
            if id in recorded or id in aged:
                self.unreported[id] = state

    def settled(self, batch: Iterable[Settlement]) -> list[BatchJobOutcome]:
        """The outcomes of jobs of batches among stored settlements that the hook did not report:
        those stored by another broker."""
        found: list[BatchJobOutcome] = []
        if not (self._recorded or self._aged or self._away):
            return found
        for settlement in batch:
            id = settlement.id
            ref = self._recorded.get(id) or self._aged.get(id) or self._away.get(id)
            if ref is None:
                continue
            if settlement.state.final:
                found.append(BatchJobOutcome(ref, id, int(settlement.state)))
                self.discard([id])
            # A job that goes on is dropped when it is checked.
            self._away.pop(id, None)
        return found

    def mark_away(self, ids: Iterable[UUID]) -> None:
        """Stop checking jobs that are in no table; another broker may still settle them."""
        for id in ids:
            ref = self._recorded.pop(id, None) or self._aged.pop(id, None)
            if ref is not None:
                self._away[id] = ref
        while len(self._away) > MAX_RECORDED:
            del self._away[next(iter(self._away))]

    def discard(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self._recorded.pop(id, None)
            self._aged.pop(id, None)
            self.unreported.pop(id, None)

    def age(self, most: int) -> dict[UUID, BatchRef]:
        """Up to `most` attempts that were recorded before the previous call, the least recently
        returned first.

        They stay until they are reported or discarded.
        """
        found = dict(islice(self._aged.items(), most))
        for id in found:  # move to the end
            self._aged[id] = self._aged.pop(id)
        if len(self._aged) + len(self._recorded) <= MAX_RECORDED:
            self._aged.update(self._recorded)
            self._recorded = {}
        return found


# Bypasses the constructor of the NamedTuple, as nearly all outcomes are made in one place.
_outcome = tuple.__new__


def _order(outcome: BatchJobOutcome) -> tuple[int, int]:
    return outcome.ref.batch.int, outcome.job.int


def settle_statement(schema: str, outcomes: Sequence[BatchJobOutcome]) -> tuple[Any, ...]:
    """The statement, with its parameters, that stores outcomes.

    :param outcomes: at least one.
    """
    ref = outcomes[0].ref
    # Jobs of one batch share the object, as long as it is cached.
    if ref.root is None and all(
        outcome.state == _SUCCEEDED and outcome.ref is ref for outcome in outcomes
    ):
        return statement("settle_one", schema), ref.batch, [outcome.job for outcome in outcomes]
    ordered = sorted(outcomes, key=_order)
    replays = any(outcome.ref.root is not None for outcome in ordered)
    return (
        statement("settle", schema),
        [outcome.ref.batch for outcome in ordered],
        [outcome.job for outcome in ordered],
        [outcome.state for outcome in ordered],
        [outcome.ref.root for outcome in ordered] if replays else None,
    )
