"""Position hints: where in a queue the next claim starts.

A claim that always starts at the front walks over the index entries of every job that was claimed
since the oldest open snapshot: 128 buffers become 3,570 at 200,000 dead entries. So a claim starts
behind the last position that it claimed in each priority. Jobs before that position (a producer
that drew its position early and committed late, a claim that was rolled back, a job that was
released) are found by occasional scans from the front. Hints live in the memory of this process:
a wrong hint can delay jobs, but not lose them.

Of two concurrent pushes the one with the later position may commit first. So a worker that keeps
up starts where its hints were `_TRAIL_S` ago; otherwise one job in a hundred would wait for the
next scan from the front (at 5,000 a second a p99 of 47 ms instead of 5). A worker with a backlog
starts at its hints, and never passes its own dead entries twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chancy.attempt.claim import Claim

#: Scans from the front may take this share of the time, at most.
_SHARE = 1 / 50
#: Seconds above which scans get a smaller share, the smaller the longer they take: with a fiftieth
#: of the time in scans of 30 ms, the slowest hundredth of all jobs would wait for a scan.
_QUICK_S = 0.01
#: Minimum and maximum seconds between scans from the front.
_LEAST_S = 0.02
_MOST_S = 15.0
#: Consecutive scans from the front that found a priority empty, after which its hint is dropped.
_FORGET = 3
#: Seconds, up to twice as many, after which a hint is used by a worker that keeps up.
_TRAIL_S = 0.05
#: Less than every position.
_FRONT: Final = -(2**63)

Hints = tuple[list[int], list[int]]


class ClaimHints:
    """The priorities of one queue that have jobs, and the last claimed position in each."""

    def __init__(self) -> None:
        self._hints: dict[int, int] = {}
        self._empty: dict[int, int] = {}
        self._front_at = 0.0
        self._took_s = 0.0
        # Snapshots of the hints, the newer first: `_TRAIL_S` or more apart.
        self._marked: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self._marked_at = 0.0
        self._behind = False

    def plan(self, now: float, *, thorough: bool) -> Hints | None:
        """The priorities to scan, highest first, and the start positions; None: all of the queue.

        :param thorough: scan from the front.
        """
        if thorough or now >= self._front_at or not self._hints:
            return None
        self._mark(now)
        priorities = sorted(self._hints, reverse=True)
        return priorities, [self._start(priority) for priority in priorities]

    def _mark(self, now: float) -> None:
        if now - self._marked_at >= _TRAIL_S:
            self._before, self._marked, self._marked_at = self._marked, dict(self._hints), now

    def _start(self, priority: int) -> int:
        hint = self._hints[priority]
        return hint if self._behind else min(self._before.get(priority, hint), hint)

    def learn(self, claims: Sequence[Claim], *, limit: int) -> None:
        """Advance the hints after a claim that started at them."""
        self._behind = len(claims) >= limit
        for claim in claims:
            if claim.position > self._hints.get(claim.priority, _FRONT):
                self._hints[claim.priority] = claim.position

    def learn_front(
        self, claims: Sequence[Claim], *, limit: int, now: float, took_s: float
    ) -> None:
        """Set the hints after a scan from the front, and schedule the next one.

        :param took_s: duration of the scan in seconds.
        """
        # A single slow scan, as on a busy machine, must not delay the next one much.
        usual_s, self._took_s = min(took_s, self._took_s), took_s
        pause_s = usual_s / _SHARE * max(1.0, usual_s / _QUICK_S)
        self._front_at = now + min(max(pause_s, _LEAST_S), _MOST_S)
        reached: dict[int, int] = {}
        for claim in claims:
            reached[claim.priority] = max(claim.position, reached.get(claim.priority, _FRONT))
        full = len(claims) >= limit
        for priority, position in reached.items():
            # If the batch was full, more jobs may be between its end and the old hint.
            old = self._hints.get(priority, position)
            self._hints[priority] = position if full else max(position, old)
            self._empty.pop(priority, None)
        if not full:
            for priority in [priority for priority in self._hints if priority not in reached]:
                self._empty[priority] = self._empty.get(priority, 0) + 1
                if self._empty[priority] >= _FORGET and claims:
                    del self._hints[priority], self._empty[priority]
