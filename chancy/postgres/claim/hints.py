"""How far the claims of one queue have looked.

A claim that always starts at the front of a lane walks over the index entries of every job that
was claimed since the oldest open snapshot: 128 buffers become 3,570 at 200,000 dead entries. So a
claim starts behind the last position it got. What is left of that place (a producer that took its
position early and committed late, a claim that was rolled back, a job that came back) is found by
looking from the front now and then. The hint is memory of this process: it can lose time, not
jobs.

Of two pushes of one moment the one with the later position may commit first. So a worker that
keeps up starts where its hints were a moment ago; otherwise one job in a hundred would wait for
the next look from the front (at 5,000 a second a p99 of 47 ms instead of 5). A worker that works
off a backlog starts at its hints, and passes none of its own dead entries twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chancy.attempt.claim import Claim

#: A look from the front may take this part of the time, at most.
_SHARE = 1 / 50
#: Looks that take longer than this may take a smaller part, the smaller the longer they take: a
#: fiftieth of the time in looks of 30 ms is what the slowest hundredth of all jobs would wait for.
_QUICK_S = 0.01
_LEAST_S = 0.02
_MOST_S = 15.0
#: Looks from the front in a row that found a lane empty, after which it is forgotten.
_FORGET = 3
#: Seconds for which a hint is not trusted yet; up to twice as long.
_TRAIL_S = 0.05
#: Before every position.
_FRONT: Final = -(2**63)

Hints = tuple[list[int], list[int]]


class ClaimHints:
    """The lanes (priorities) of one queue that hold jobs, and the last position seen in each."""

    def __init__(self) -> None:
        self._hints: dict[int, int] = {}
        self._empty: dict[int, int] = {}
        self._front_at = 0.0
        self._took_s = 0.0
        # The hints of the last two looks at the watch.
        self._marked: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._marked_at = 0.0
        self._behind = False

    def plan(self, now: float, *, thorough: bool) -> Hints | None:
        """The lanes to look at, highest first, and where to begin; None: all, from the front."""
        if thorough or now >= self._front_at or not self._hints:
            return None
        self._mark(now)
        lanes = sorted(self._hints, reverse=True)
        return lanes, [self._start(lane) for lane in lanes]

    def _mark(self, now: float) -> None:
        if now - self._marked_at >= _TRAIL_S:
            self._before, self._marked, self._marked_at = self._marked, dict(self._hints), now

    def _start(self, lane: int) -> int:
        hint = self._hints[lane]
        return hint if self._behind else min(self._before.get(lane, hint), hint)

    def learn(self, claims: Sequence[Claim], *, limit: int) -> None:
        """Remember what a claim behind the hints got."""
        self._behind = len(claims) >= limit
        for claim in claims:
            if claim.position > self._hints.get(claim.priority, _FRONT):
                self._hints[claim.priority] = claim.position

    def learn_front(
        self, claims: Sequence[Claim], *, limit: int, now: float, took_s: float
    ) -> None:
        """Remember what a look from the front got."""
        # One that was slow by chance, on a busy machine, must not put the next one far off.
        usual_s, self._took_s = min(took_s, self._took_s), took_s
        pause_s = usual_s / _SHARE * max(1.0, usual_s / _QUICK_S)
        self._front_at = now + min(max(pause_s, _LEAST_S), _MOST_S)
        reached: dict[int, int] = {}
        for claim in claims:
            reached[claim.priority] = max(claim.position, reached.get(claim.priority, _FRONT))
        full = len(claims) >= limit
        for lane, position in reached.items():
            # Where the batch was filled, more may stand between its end and the old hint.
            old = self._hints.get(lane, position)
            self._hints[lane] = position if full else max(position, old)
            self._empty.pop(lane, None)
        if not full:
            for lane in [lane for lane in self._hints if lane not in reached]:
                self._empty[lane] = self._empty.get(lane, 0) + 1
                if self._empty[lane] >= _FORGET and claims:
                    del self._hints[lane], self._empty[lane]
