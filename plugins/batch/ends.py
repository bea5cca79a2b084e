"""The ends of jobs of batches: which settlements are of these, and how they are told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt import Claim, Settlement
from chancy.plugins.batch.store import statement
from chancy.states import State

#: The key of a job's meta that says in which batch it is.
KEY = "batch"
#: How the meta of a job of a batch looks, as jsonb is written.
_MARK = f'"{KEY}": {{"id": "'
#: The meta of one that says nothing else, in front of the id and behind it.
_FRONT, _BACK = f"{{{_MARK}", '"}}'
_PLAIN = len(_FRONT) + 36 + len(_BACK)
#: Jobs of which this process has seen an attempt end, and not yet what was made of it; at most.
MAX_NOTED = 20_000
#: Of those that were told, two batches of the broker.
MAX_TOLD = 2_000
_WELL = int(State.SUCCEEDED)


class Place(NamedTuple):
    """In which batch a job is.

    :param root: it is the replay of the dead letter of this job.
    """

    batch: UUID
    root: UUID | None


class End(NamedTuple):
    """How a job of a batch ended.

    :param state: a final one.
    """

    place: Place
    job: UUID
    state: int


@lru_cache(maxsize=1_000)
def _first(text: str) -> Place:
    return Place(UUID(text), None)


def place_of(meta: str | None) -> Place | None:
    """In which batch the job with this meta is; None if in none, or if that says nonsense."""
    if meta is None or _MARK not in meta:
        return None
    try:
        if len(meta) == _PLAIN and meta.startswith(_FRONT):
            return _first(meta[len(_FRONT) : -len(_BACK)])
        data = json.loads(meta)
        batch, letters = data[KEY]["id"], data.get("dead_letters")
        if isinstance(letters, dict):
            return Place(UUID(batch), UUID(letters["replay_of"]))
        return _first(batch)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class Noted(NamedTuple):
    """An attempt that has ended: when, by the clock of this process."""

    place: Place
    at: float


class Notes:
    """The jobs of batches whose attempts have ended in this process, until they are settled.

    A settlement does not say in which batch its job is, and the claim does. So plain jobs cost a
    look at their meta, and no question to the database. What is left here after a while was settled
    without being told, or goes on: the plugin's service looks at it.
    """

    def __init__(self) -> None:
        self._noted: dict[UUID, Noted] = {}
        # Those that were told last: a batch is told again if its answer was lost.
        self._told: dict[UUID, Noted] = {}
        #: How those were to be settled of which the hook failed to tell.
        self.failed: dict[UUID, int] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, claim: Claim, at: float) -> None:
        """Take note of an attempt that has ended. The oldest is given up when there are too many:
        the sweep finds it."""
        place = place_of(claim.meta)
        if place is not None:
            self._noted[claim.id] = Noted(place, at)
            if len(self._noted) > MAX_NOTED:
                self.forget([next(iter(self._noted))])

    def __contains__(self, id: UUID) -> bool:
        """Whether a job of a batch has ended an attempt here, a while ago at most."""
        return id in self._noted or id in self._told

    def ends(self, batch: Iterable[Settlement]) -> list[End]:
        """The ends of jobs of batches among settlements."""
        noted, told = self._noted, self._told
        found: list[End] = []
        for one in batch:
            known = noted.get(one.id) or told.get(one.id)
            if known is not None:
                found.append(End(known.place, one.id, int(one.state)))
        return found

    def told(self, ends: Iterable[End]) -> None:
        """These were written, if their transaction is committed."""
        for end in ends:
            noted = self._noted.pop(end.job, None)
            if noted is not None:
                self._told[end.job] = noted
                if self.failed:
                    self.failed.pop(end.job, None)
        while len(self._told) > MAX_TOLD:
            self._told.pop(next(iter(self._told)))

    def not_told(self, ends: Iterable[End]) -> None:
        """These could not be written; whether they were settled is to be seen."""
        self.failed.update((end.job, end.state) for end in ends if end.job in self._noted)

    def forget(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self._noted.pop(id, None)
            self.failed.pop(id, None)

    def older(self, than: float) -> dict[UUID, Place]:
        """Those that were noted before."""
        return {id: one.place for id, one in self._noted.items() if one.at < than}


def _order(end: End) -> tuple[int, int]:
    return end.place.batch.int, end.job.int


def settling(schema: str, ends: Sequence[End]) -> tuple[Any, ...]:
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
