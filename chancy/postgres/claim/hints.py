"""Position hints: where in a queue the next claim starts.

A claim that always starts at the front walks over the index entries of every job that was claimed
since the oldest open snapshot: 128 buffers become 3,570 at 200,000 dead entries. So in each
priority with a hint a claim starts behind the hint, the last position that it claimed there. The
priorities without a hint are read from their front, and those between two hints in one scan. If
that is slow, dead entries are in the way: every priority that the claim has read to its end gets a
hint.

Jobs before a hint (a producer that drew its position early and committed late, a claim that was
rolled back, a job that was released) are found by occasional scans of everything from the front.
Hints live in the memory of this process: a wrong hint can delay jobs, but not lose them.

Of two concurrent pushes the one with the later position may commit first. So a worker that keeps
up starts where its hints were `_TRAIL_S` ago; otherwise one job in a hundred would wait for the
next scan from the front (at 5,000 a second a p99 of 47 ms instead of 5). A worker with a backlog
starts at its hints, and never passes its own dead entries twice.

While scans from the front are slow, and therefore rare, pushes that were committed later than that
are found by short scans in between, from a position up to which all pushes have been committed and
a complete scan has found what was pending.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from chancy.attempt.claim import Claim
from chancy.job.fields import PRIORITIES
from chancy.postgres.front_scans import FrontScans

#: Seconds, up to twice as many, after which a hint is used by a worker that keeps up.
_TRAIL_S = 0.05
#: Two claims in a row that take longer, in addition to so much for each job, probably pass dead
#: entries.
_DRAG_S, _JOB_S = 0.003, 0.00003
#: Number of hints that cost nothing: a hint takes a claim 2 µs.
_FEW = 16
#: Maximum number of hints.
_MOST = 1_000
#: Seconds between samples of the transactions in progress, while they are needed.
_SAMPLE_S = 0.5
#: Less than every priority, and less than every position.
_LOWEST: Final = -(2**15) - 1
_FRONT: Final = -(2**63)

#: Priorities, highest first, and the position in each behind which a claim starts.
Hints = tuple[list[int], list[int]]


class CommittedPosition:
    """Follows the pushes that are in progress.

    A push draws its position first, and gets its transaction id when it inserts its row. So a
    position is safe once all transactions have ended whose ids were assigned by the sample after
    the one that saw it. A push that takes longer between the two is found by a scan from the front.

    ``position``: no push of this or an earlier position can still be committed.
    """

    def __init__(self) -> None:
        self.position = _FRONT
        self._next_at = -math.inf
        self._drawn: int | None = None
        self._awaited: tuple[int, int] | None = None

    def due(self, now: float) -> bool:
        """Whether the next sample is due."""
        return now >= self._next_at

    def sample(self, drawn: int, oldest: int, following: int, *, now: float) -> None:
        """Note a sample.

        :param drawn: the last position that was drawn.
        :param oldest: the id of the oldest transaction in progress; the one after the last if none
            is. Those that only read have no id.
        :param following: the id of the next transaction.
        """
        if self._awaited is not None and oldest >= self._awaited[1]:
            self.position, self._awaited = max(self._awaited[0], self.position), None
        if self._awaited is None and self._drawn is not None:
            self._awaited = self._drawn, following
        self._drawn, self._next_at = drawn, now + _SAMPLE_S


class ClaimHints:
    """The last claimed position in each priority of one queue."""

    def __init__(self) -> None:
        self._front_scans = FrontScans()
        self._short_scans = FrontScans()
        self._commits = CommittedPosition()
        #: Start of short scans: no job up to it is pending unless it was released.
        self._settled = _FRONT
        # The committed position when the last scan was planned, and whether and when it was short.
        self._committed = _FRONT
        self._short = False
        self._planned_at = 0.0
        self._hints: dict[int, int] = {}
        #: The last position that was drawn, as far as known.
        self._last = _FRONT
        # Snapshots of the hints and the last position, the newer first: `_TRAIL_S` or more apart.
        self._marked: tuple[dict[int, int], int] = {}, _FRONT
        self._before: tuple[dict[int, int], int] = {}, _FRONT
        self._marked_at = 0.0
        self._behind = False
        self._dragged = False
        #: Whether the last position is needed for hints of priorities without jobs.
        self.needs_last = False

    def plan(self, now: float, *, thorough: bool) -> Hints | None:
        """The start positions of a claim; None: the front of every priority.

        :param thorough: scan from the front.
        """
        if now - self._marked_at >= _TRAIL_S:
            self._before, self._marked_at = self._marked, now
            self._marked = dict(self._hints), self._last
        self._committed, self._planned_at, self._short = self._commits.position, now, False
        if thorough or self._front_scans.due(now):
            return None
        self._short = (
            self._settled != _FRONT and self._front_scans.slow and self._short_scans.due(now)
        )
        priorities = sorted(self._hints, reverse=True)
        return priorities, [self._start(priority) for priority in priorities]

    def _start(self, priority: int) -> int:
        hint = self._hints[priority]
        if self._short:
            return min(hint, self._settled)
        return hint if self._behind else min(self._before[0].get(priority, hint), hint)

    def sample_due(self, now: float) -> bool:
        """Whether `sample` should be called before the next claim."""
        return self.needs_last or (self._front_scans.slow and self._commits.due(now))

    def sample(self, drawn: int, oldest: int, following: int, *, now: float) -> None:
        """Note the last position that was drawn; see `CommittedPosition.sample`."""
        self.learn_last(drawn)
        if not self._commits.due(now):  # the last position may be asked for more often
            return
        unknown = self._commits.position == _FRONT
        self._commits.sample(drawn, oldest, following, now=now)
        if unknown and self._commits.position != _FRONT:
            self._front_scans.hasten()  # short scans begin after it

    def learn_last(self, position: int) -> None:
        """Note the last position that was drawn: new hints of priorities without jobs go there."""
        self._last, self.needs_last = max(position, self._last), False

    def learn(self, claims: Sequence[Claim], *, full: bool, took_s: float) -> None:
        """Advance the hints after a claim that started at them.

        :param claims: highest priority first.
        :param full: whether there may be more jobs to claim.
        :param took_s: duration of the claim in seconds.
        """
        self._behind = full
        if self._short:
            self._short_scans.ended(self._planned_at + took_s, took_s=took_s)
            if not full:
                self._settled = self._committed
            else:
                for priority in [one for one in self._hints if one <= claims[-1].priority]:
                    self._hints[priority] = min(self._hints[priority], self._settled)
        self._advance(claims, full, took_s)

    def learn_front(
        self, claims: Sequence[Claim], *, full: bool, now: float, took_s: float
    ) -> None:
        """Set the hints after a scan from the front, and schedule the next one."""
        self._front_scans.ended(now, took_s=took_s)
        if len(self._hints) > _FEW and not _drags(claims, took_s):
            self._hints.clear()
        if full:
            # In these priorities there may be more jobs before the old hints.
            for priority in [one for one in self._hints if one <= claims[-1].priority]:
                del self._hints[priority]
        else:
            self._settled = self._committed
        self._advance(claims, full, took_s)

    def front_failed(self, *, now: float, took_s: float) -> None:
        """Schedule the next scan from the front after one that failed, perhaps at a timeout."""
        self._front_scans.ended(now, took_s=took_s)

    def _advance(self, claims: Sequence[Claim], full: bool, took_s: float) -> None:
        for claim in claims:
            if claim.position > self._hints.get(claim.priority, _FRONT):
                self._hints[claim.priority] = claim.position
        if len(self._hints) > _MOST:
            self._hints.clear()
        self._last = max((self._last, *self._hints.values()))
        before, self._dragged = self._dragged, _drags(claims, took_s)
        if not (before and self._dragged):
            return
        # Claims of jobs return positions as well.
        self.needs_last = not claims
        # The last position known a while ago: jobs up to it have been committed since, or are late.
        position = self._before[1]
        if position == _FRONT:
            return
        read_above = claims[-1].priority if full else _LOWEST
        for priority in {*PRIORITIES, *self._hints}:
            if priority > read_above:
                self._hints[priority] = max(position, self._hints.get(priority, _FRONT))


def _drags(claims: Sequence[Claim], took_s: float) -> bool:
    return took_s > _DRAG_S + len(claims) * _JOB_S
