"""When the next scan of an index starts at its front, where dead entries may be in the way.

The entries of rows that were claimed or promoted stay in the index until no snapshot is older. A
scan that starts behind them takes the same time however many there are, and a scan from the front
finds the rows that were committed late or released before the start.
"""

from __future__ import annotations

#: Scans from the front may take this share of the time, at most.
_SHARE = 1 / 50
#: Seconds above which a scan is slow. Slow scans get a smaller share, the smaller the longer they
#: take: with a fiftieth of the time in scans of 30 ms, the slowest hundredth of all jobs would wait
#: for a scan.
_SLOW_S = 0.01
#: Minimum and maximum seconds between scans from the front.
_LEAST_S = 0.02
_MOST_S = 15.0


class FrontScans:
    """Schedules the scans from the front by the time that they take."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._took_s = 0.0
        #: Whether scans are slow, and therefore rare.
        self.slow = False

    def due(self, now: float) -> bool:
        return now >= self._next_at

    def hasten(self) -> None:
        """Make the next scan due."""
        self._next_at = 0.0

    def ended(self, now: float, *, took_s: float) -> None:
        """Schedule the next scan.

        :param took_s: duration of the scan in seconds.
        """
        # A single slow scan, as on a busy machine, must not delay the next one much.
        usual_s, self._took_s = min(took_s, self._took_s), took_s
        self.slow = usual_s > _SLOW_S
        pause_s = usual_s / _SHARE * max(1.0, usual_s / _SLOW_S)
        self._next_at = now + min(max(pause_s, _LEAST_S), _MOST_S)
