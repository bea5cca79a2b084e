"""How many calls to hand to a child at once: a matter of how long the last ones took. Pure."""

from __future__ import annotations

#: A child has calls in hand for so many seconds of work, at the pace just seen.
_AHEAD_S = 0.01
#: The most calls that a child has in hand, however short they are. Two children on two cores run
#: 60,000 no-ops a second with 32, 75,000 with 64, and no more with 128.
MAX_DEPTH = 64
#: Calls seen before anything is made of their times.
_FIRST = 4


class Pace:
    """Follows how long calls take: longer ones at once, shorter ones by and by.

    ``depth``: calls to have in a child's hand, that which runs included. 1 as long as calls take
    10 ms or more, or nothing is known.
    """

    __slots__ = ("_seen", "_typical_s", "depth")

    def __init__(self) -> None:
        self._seen = 0
        self._typical_s = 0.0
        self.depth = 1

    def saw(self, elapsed_s: float) -> None:
        """One call took so many seconds."""
        typical_s = self._typical_s
        if elapsed_s > typical_s:
            self._typical_s = elapsed_s
        else:
            self._typical_s = typical_s + (elapsed_s - typical_s) / 8
        if self._seen < _FIRST:
            self._seen += 1

    def set(self) -> None:
        """Say the depth anew; once for many calls seen."""
        if self._seen < _FIRST:
            return
        depth = int(_AHEAD_S / self._typical_s) if self._typical_s > 0 else MAX_DEPTH
        self.depth = min(MAX_DEPTH, max(1, depth))
