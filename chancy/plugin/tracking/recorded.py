"""Keeps outcomes of jobs that ended in this process until the tables of a plugin have them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from chancy.attempt.settlement import Settlement

#: The maximum outcomes of one statement.
BATCH = 500
#: The maximum attempts that are recorded while their settlement is pending.
MAX_RECORDED = 20_000
#: The maximum reported outcomes that are kept: two batches of the broker.
MAX_REPORTED = 2_000
#: The maximum characters of results that the hook failed to report; the oldest are dropped first.
MAX_UNREPORTED = 64 * 1024**2


class JobOutcome(Protocol):
    """The outcome of a job of a group."""

    @property
    def job(self) -> UUID: ...

    @property
    def group(self) -> UUID: ...


R = TypeVar("R")
E = TypeVar("E", bound=JobOutcome)


class RecordedOutcomes(ABC, Generic[R, E]):
    """Attempts of tracked jobs that have ended in this process and are not settled yet.

    A settlement does not name the batch or step of its job; the claim does, as a reference ``R``.
    So a plain job costs only a lookup in its meta, and no query. An attempt that stays here for a
    while was settled without being reported, or continues: the plugin's service checks it.
    """

    def __init__(self) -> None:
        self._recorded: dict[UUID, R] = {}
        # Attempts that were recorded before the service checked last.
        self._aged: dict[UUID, R] = {}
        # The outcomes reported last, in two generations: a batch is reported again if its reply
        # was lost. Whole generations are dropped: deleting one by one from the front of a dict
        # takes 4 µs each.
        self._reported: dict[UUID, R] = {}
        self._reported_before: dict[UUID, R] = {}
        # Outcomes that the hook failed to report.
        self._unreported: dict[UUID, E] = {}
        self._unreported_size = 0

    @abstractmethod
    def _outcome(self, ref: R, settlement: Settlement) -> E: ...

    def _size(self, outcome: E) -> int:
        """The characters of a result."""
        return 0

    def __len__(self) -> int:
        return len(self._recorded) + len(self._aged)

    def record(self, id: UUID, ref: R) -> None:
        """Record an attempt that has ended. Over the limit, the older ones are dropped: the sweep
        finds them."""
        self._recorded[id] = ref
        if len(self._recorded) >= MAX_RECORDED:
            self._aged, self._recorded = self._recorded, {}

    def __contains__(self, id: UUID) -> bool:
        """Whether a job is tracked and has a recent attempt in this process."""
        # Empty ones first, because the hash of an id takes longer than all of these.
        return bool(
            (self._recorded and id in self._recorded)
            or (self._aged and id in self._aged)
            or (self._reported and id in self._reported)
            or (self._reported_before and id in self._reported_before)
        )

    def _ref(self, id: UUID) -> R | None:
        return (
            self._recorded.get(id)
            or self._aged.get(id)
            or self._reported.get(id)
            or self._reported_before.get(id)
        )

    def outcomes_of(self, batch: Iterable[Settlement]) -> list[E]:
        """The outcomes of tracked jobs among settlements."""
        return [
            self._outcome(ref, settlement)
            for settlement in batch
            if (ref := self._ref(settlement.id)) is not None
        ]

    def mark_reported(self, outcomes: Iterable[E]) -> None:
        """Mark outcomes as written, provided that their transaction commits."""
        recorded, aged, reported = self._recorded, self._aged, self._reported
        for outcome in outcomes:
            id = outcome.job
            ref = recorded.pop(id, None)
            if ref is None and aged:
                ref = aged.pop(id, None)
            if ref is not None:
                reported[id] = ref
            if self._unreported:
                self._drop_unreported(id)
        if len(reported) > MAX_REPORTED:
            self._reported_before, self._reported = reported, {}

    def mark_unreported(self, outcomes: Iterable[E]) -> None:
        """Keep outcomes that could not be written; whether their jobs were settled is unknown.

        In a queue without history, the tables have no trace of jobs that succeeded.
        """
        for outcome in outcomes:
            id = outcome.job
            # One of them was reported before, if the commit failed then.
            ref = self._reported.pop(id, None) or self._reported_before.pop(id, None)
            if ref is not None:
                self._recorded[id] = ref
            if id in self._recorded or id in self._aged:
                self._drop_unreported(id)
                self._unreported[id] = outcome
                self._unreported_size += self._size(outcome)
        while self._unreported_size > MAX_UNREPORTED or len(self._unreported) > MAX_RECORDED:
            self._drop_unreported(next(iter(self._unreported)))

    @property
    def has_unreported(self) -> bool:
        """Whether the hook failed to report outcomes."""
        return bool(self._unreported)

    def unreported(self, id: UUID) -> E | None:
        """The outcome of a job that the hook failed to report."""
        return self._unreported.get(id)

    def _drop_unreported(self, id: UUID) -> None:
        outcome = self._unreported.pop(id, None)
        if outcome is not None:
            self._unreported_size -= self._size(outcome)

    def discard(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self._recorded.pop(id, None)
            self._aged.pop(id, None)
            self._drop_unreported(id)

    def age(self, most: int) -> dict[UUID, R]:
        """Up to `most` attempts that were recorded before the previous call, least recently
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
