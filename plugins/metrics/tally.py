"""Counts the outcomes of the jobs of one worker."""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import add
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.states import State

#: The places of a histogram: n counts values below 2^(n - 1) milliseconds, the last one the rest.
PLACES = 24
#: The upper bounds of the places in seconds, without the last one: 1 ms to 1.2 hours.
BOUNDS = tuple(2.0**place / 1000 for place in range(PLACES - 1))
#: The maximum pairs of queue and function that are counted separately. Further functions count as
#: `OTHER` of their queue and, above as many of these, as `OTHER` of the queue `OTHER`.
MOST_FUNCTIONS = 1_000
OTHER = "other"

#: Longer waits, such as those of a job that has been due since -infinity, are not added up.
_LONGEST_S = 1e9


@dataclass(slots=True)
class Totals:
    """Outcomes of the jobs of one function in one queue.

    :param cancelled: includes jobs that were cancelled while they waited, which have no times.
    :param expired: jobs that had not started by their ``expires_at``.
    :param wait_s: seconds from when they were due until they were claimed, added up.
    :param run_s: seconds for which they ran, added up.
    :param waits: jobs by waiting time; see `BOUNDS`.
    :param runs: jobs by run time.
    :param ends: jobs by the time from when they were due until they ended: both together.
    """

    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    crashed: int = 0
    rescued: int = 0
    cancelled: int = 0
    expired: int = 0
    snoozed: int = 0
    released: int = 0
    stale: int = 0
    wait_s: float = 0.0
    run_s: float = 0.0
    waits: list[int] = field(default_factory=lambda: [0] * PLACES)
    runs: list[int] = field(default_factory=lambda: [0] * PLACES)
    ends: list[int] = field(default_factory=lambda: [0] * PLACES)

    def add(self, other: Totals) -> None:
        """Add other totals to these."""
        for name in (*COUNTS, "wait_s", "run_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waits = [one + more for one, more in zip(self.waits, other.waits, strict=True)]
        self.runs = [one + more for one, more in zip(self.runs, other.runs, strict=True)]
        self.ends = [one + more for one, more in zip(self.ends, other.ends, strict=True)]


#: The names of the counts of `Totals`.
COUNTS = tuple(one.name for one in fields(Totals) if one.type == "int")
#: Totals by queue and function.
TotalsByFunction = dict[tuple[str, str], Totals]


def bounded(key: tuple[str, str], counted: Mapping[tuple[str, str], object]) -> tuple[str, str]:
    """The queue and function under which a job of ``key`` is counted; see `MOST_FUNCTIONS`."""
    if key in counted or len(counted) < MOST_FUNCTIONS:
        return key
    of_queue = key[0], OTHER
    if of_queue in counted or len(counted) < 2 * MOST_FUNCTIONS:
        return of_queue
    return OTHER, OTHER


class Tally:
    """Counts settlements until `take` is called."""

    def __init__(self) -> None:
        self._totals: TotalsByFunction = {}
        #: The workers of this process. A crash of a job of another one is a rescue.
        self.workers: frozenset[UUID] = frozenset()

    def add(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        """Count settlements that were stored, and stale ones.

        The usual ones, which succeeded, are gathered by function first: 0.2 µs a job in a large
        batch, a fifth of what counting each by itself takes.
        """
        succeeded = State.SUCCEEDED
        queue = func = None
        gathered: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        waits: list[float] = []
        runs: list[float] = []
        for settlement in batch:
            claim = settlement.claim
            if claim is None:
                continue
            if settlement.state is not succeeded:
                self._count_unusual(claim, settlement)
                continue
            if claim.func != func or claim.queue != queue:
                queue, func = claim.queue, claim.func
                waits, runs = gathered.setdefault((queue, func), ([], []))
            waits.append(claim.waited_s or 0.0)
            runs.append(settlement.elapsed_s)
        for key, (waits, runs) in gathered.items():
            totals = self._of(key)
            totals.succeeded += len(runs)
            _add_times(totals, waits, runs)
        for settlement in stale:
            if (claim := settlement.claim) is not None:
                self._of((claim.queue, claim.func)).stale += 1

    def _count_unusual(self, claim: Claim, settlement: Settlement) -> None:
        totals, name = self._of((claim.queue, claim.func)), _name(settlement)
        if name == "crashed" and self.workers and claim.worker_id not in self.workers:
            name = "rescued"
        setattr(totals, name, getattr(totals, name) + 1)
        if name not in ("snoozed", "released"):
            _add_times(totals, [claim.waited_s or 0.0], [settlement.elapsed_s])

    def _of(self, key: tuple[str, str]) -> Totals:
        found = self._totals.get(key)
        if found is None:
            found = self._totals.setdefault(bounded(key, self._totals), Totals())
        return found

    def take(self) -> TotalsByFunction:
        """The totals since the last call."""
        taken, self._totals = self._totals, {}
        return taken

    @property
    def totals(self) -> TotalsByFunction:
        """The totals since the last call of `take`."""
        return dict(self._totals)

    def give(self, totals: TotalsByFunction) -> None:
        """Add totals to these."""
        for key, some in totals.items():
            self._of(key).add(some)


def _add_times(totals: Totals, waits: list[float], runs: list[float]) -> None:
    """Add the times of jobs. Sorts the lists."""
    totals.run_s += sum(runs)
    _add_places(totals.ends, list(map(add, waits, runs)))
    _add_places(totals.runs, runs)
    _add_places(totals.waits, waits)
    totals.wait_s += sum(waits[bisect(waits, 0.0) : bisect_left(waits, _LONGEST_S)])


def _add_places(places: list[int], times: list[float]) -> None:
    """Sort times, and add their numbers to the places of a histogram."""
    times.sort()
    first, end = 0, len(times)
    while first < end:
        place = bisect(BOUNDS, times[first])
        following = bisect_left(times, BOUNDS[place], first) if place < len(BOUNDS) else end
        places[place] += following - first
        first = following


def _name(settlement: Settlement) -> str:
    match settlement.state:
        case State.SUCCEEDED:
            return "succeeded"
        case State.FAILED:
            return "failed"
        case State.CANCELLED:
            return "cancelled"
        case _ if settlement.crashed:
            return "crashed"
        case State.SCHEDULED:
            return "snoozed" if settlement.failure is None else "retried"
        case _:
            return "released"


def quantile(counts: Iterable[int], share: float) -> float | None:
    """The value in seconds below which a share of the values of a histogram lies.

    Interpolates within a place, so it is wrong by at most a factor of two. None without values;
    infinity in the last place.
    """
    places = list(counts)
    wanted = sum(places) * share
    if not wanted:
        return None
    below = 0
    for place, number in enumerate(places):
        if number and below + number >= wanted:
            if place >= len(BOUNDS):
                return math.inf
            low = BOUNDS[place - 1] if place else 0.0
            return low + (BOUNDS[place] - low) * (wanted - below) / number
        below += number
    return None
