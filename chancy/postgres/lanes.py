"""How far the claims of one queue have looked.

A claim that always starts at the front of a lane walks over the index entries of every job that
was claimed since the oldest open snapshot: 128 buffers become 3,570 at 200,000 dead entries. So a
claim starts behind the last position it got. What is left of that place (a producer that took its
position early and committed late, a claim that was rolled back, a job that came back) is found by
looking from the front now and then. The hint is memory of this process: it can lose time, not
jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chancy.attempt import Claim

#: A look from the front may take this part of the time, at most.
_SHARE = 1 / 50
_LEAST_S = 0.02
_MOST_S = 15.0
#: Looks from the front in a row that found a lane empty, after which it is forgotten.
_FORGET = 3
#: Before every position.
_FRONT: Final = -(2**63)

Hints = tuple[list[int], list[int]]


class Lanes:
    """The lanes (priorities) of one queue that hold jobs, and the last position seen in each."""

    def __init__(self) -> None:
        self._hints: dict[int, int] = {}
        self._empty: dict[int, int] = {}
        self._front_at = 0.0

    def plan(self, now: float, *, thorough: bool) -> Hints | None:
        """The lanes to look at, highest first, and where to begin; None: all, from the front."""
        if thorough or now >= self._front_at or not self._hints:
            return None
        lanes = sorted(self._hints, reverse=True)
        return lanes, [self._hints[lane] for lane in lanes]

    def learn(self, claims: Sequence[Claim]) -> None:
        """Remember what a claim behind the hints got."""
        for claim in claims:
            if claim.position > self._hints.get(claim.priority, _FRONT):
                self._hints[claim.priority] = claim.position

    def learn_front(
        self, claims: Sequence[Claim], *, limit: int, now: float, took_s: float
    ) -> None:
        """Remember what a look from the front got."""
        self._front_at = now + min(max(took_s / _SHARE, _LEAST_S), _MOST_S)
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
