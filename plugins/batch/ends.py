"""The ends of jobs of batches: which settlements are of these, and how they are told."""

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

#: The key of a job's meta that says in which batch it is.
KEY = "batch"
#: How the meta of a job of a batch looks, as jsonb is written, and as Redis has it once it was
#: changed.
_MARK, _DENSE = f'"{KEY}": {{"id": "', f'"{KEY}":{{"id":"'
#: Characters of the meta of one that says nothing else.
_PLAIN = len(f"{{{_MARK}") + 36 + len('"}}')
#: Jobs of which this process has seen an attempt end, and not yet what was made of it; at most.
MAX_NOTED = 20_000
#: Of those that were told, two batches of the broker.
MAX_TOLD = 2_000
_WELL = int(State.SUCCEEDED)


class BatchRef(NamedTuple):
    """In which batch a job is.

    :param root: it is the replay of the dead letter of this job.
    """

    batch: UUID
    root: UUID | None


class BatchJobOutcome(NamedTuple):
    """How a job of a batch ended.

    :param state: a final one.
    """

    place: BatchRef
    job: UUID
    state: int


@lru_cache(maxsize=1_000)
def _first(text: str) -> BatchRef:
    return BatchRef(UUID(text), None)


def place_of(meta: str | None) -> BatchRef | None:
    """In which batch the job with this meta is; None if in none, or if that says nonsense."""
    if meta is None or (_MARK not in meta and _DENSE not in meta):
        return None
    return _plain(meta) if len(meta) == _PLAIN else _parsed(meta)


def _parsed(meta: str) -> BatchRef | None:
    try:
        data = json.loads(meta)
        batch, letters = data[KEY]["id"], data.get("dead_letters")
        if isinstance(letters, dict):
            return BatchRef(UUID(batch), UUID(letters["replay_of"]))
        return _first(batch)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


#: All jobs of a batch that say nothing else have the same meta.
_plain = lru_cache(maxsize=1_000)(_parsed)


class BatchOutcomes:
    """The jobs of batches whose attempts have ended in this process, until they are settled.

    A settlement does not say in which batch its job is, and the claim does. So plain jobs cost a
    look at their meta, and no question to the database. What is left here after a while was settled
    without being told, or goes on: the plugin's service looks at it.
    """

    def __init__(self) -> None:
        self._noted: dict[UUID, BatchRef] = {}
        # Those that were there when the service looked last.
        self._aged: dict[UUID, BatchRef] = {}
        # Those that were told last, and before: a batch is told again if its answer was lost.
        # Whole generations are given up: to take one by one from the front of a dict takes 4 µs.
        self._told: dict[UUID, BatchRef] = {}
        self._before: dict[UUID, BatchRef] = {}
        # Those that were asked after and are in no table: another broker is about to settle them.
        self._away: dict[UUID, BatchRef] = {}
        #: How those were to be settled of which the hook failed to tell.
        self.failed: dict[UUID, int] = {}

    def __len__(self) -> int:
        return len(self._noted) + len(self._aged)

    def note(self, id: UUID, place: BatchRef) -> None:
        """Take note of an attempt that has ended. When there are too many, the older ones are
        given up: the sweep finds them."""
        self._noted[id] = place
        if len(self._noted) >= MAX_NOTED:
            self._aged, self._noted = self._noted, {}
            self.failed.clear()

    def __contains__(self, id: UUID) -> bool:
        """Whether a job of a batch has ended an attempt here, a while ago at most."""
        return id in self._noted or bool(
            (self._aged and id in self._aged)
            or (self._told and id in self._told)
            or (self._before and id in self._before)
        )

    def _place(self, id: UUID) -> BatchRef | None:
        return (
            self._noted.get(id) or self._aged.get(id) or self._told.get(id) or self._before.get(id)
        )

    def ends(self, batch: Iterable[Settlement]) -> list[BatchJobOutcome]:
        """The ends of jobs of batches among settlements."""
        place_of = self._place
        return [
            _end(BatchJobOutcome, (place, one.id, int(one.state)))
            for one in batch
            if (place := place_of(one.id)) is not None
        ]

    def told(self, ends: Iterable[BatchJobOutcome]) -> None:
        """These were written, if their transaction is committed."""
        noted, aged, told = self._noted, self._aged, self._told
        for place, id, _ in ends:
            told[id] = place
            if noted.pop(id, None) is None and aged:
                aged.pop(id, None)
            if self.failed:
                self.failed.pop(id, None)
        if len(told) > MAX_TOLD:
            self._before, self._told = told, {}

    def not_told(self, ends: Iterable[BatchJobOutcome]) -> None:
        """These could not be written; whether they were settled is to be seen."""
        noted, aged = self._noted, self._aged
        for _, id, state in ends:
            # One of them was told before, if the commit failed then.
            place = self._told.pop(id, None) or self._before.pop(id, None)
            if place is not None:
                noted[id] = place
            if id in noted or id in aged:
                self.failed[id] = state

    def settled(self, batch: Iterable[Settlement]) -> list[BatchJobOutcome]:
        """The ends of jobs of batches among settlements that were stored, and that the hook has not
        told: of those that another broker has stored."""
        found: list[BatchJobOutcome] = []
        if not (self._noted or self._aged or self._away):
            return found
        for one in batch:
            place = self._noted.get(one.id) or self._aged.get(one.id) or self._away.get(one.id)
            if place is None:
                continue
            if one.state.final:
                found.append(BatchJobOutcome(place, one.id, int(one.state)))
                self.forget([one.id])
            # Otherwise it goes on. What is asked after is forgotten then.
            self._away.pop(one.id, None)
        return found

    def wait_for(self, ids: Iterable[UUID]) -> None:
        """Ask after these no more: they are in no table, and another broker may settle them yet."""
        for id in ids:
            place = self._noted.pop(id, None) or self._aged.pop(id, None)
            if place is not None:
                self._away[id] = place
        while len(self._away) > MAX_NOTED:
            del self._away[next(iter(self._away))]

    def forget(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self._noted.pop(id, None)
            self._aged.pop(id, None)
            self.failed.pop(id, None)

    def age(self, most: int) -> dict[UUID, BatchRef]:
        """Up to so many of those that were noted before this was called last, those that were given
        the longest ago first.

        They stay until they are told or forgotten.
        """
        given = dict(islice(self._aged.items(), most))
        for id in given:  # to the end
            self._aged[id] = self._aged.pop(id)
        if len(self._aged) + len(self._noted) <= MAX_NOTED:
            self._aged.update(self._noted)
            self._noted = {}
        return given


# Without the constructor of a NamedTuple, as nearly all of them are made in one place.
_end = tuple.__new__


def _order(end: BatchJobOutcome) -> tuple[int, int]:
    return end.place.batch.int, end.job.int


def settling(schema: str, ends: Sequence[BatchJobOutcome]) -> tuple[Any, ...]:
    """The statement, with its parameters, that takes ends, at least one."""
    place = ends[0].place
    # Jobs of one batch share the object, as long as it is remembered.
    if place.root is None and all(one.state == _WELL and one.place is place for one in ends):
        return statement("settle_one", schema), place.batch, [one.job for one in ends]
    those = sorted(ends, key=_order)
    again = any(one.place.root is not None for one in those)
    return (
        statement("settle", schema),
        [one.place.batch for one in those],
        [one.job for one in those],
        [one.state for one in those],
        [one.place.root for one in those] if again else None,
    )
