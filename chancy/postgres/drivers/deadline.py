"""The time limit of a session's pending call, kept by one timer for many calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic

# A loop that was blocked or a process that was paused finds its deadline passed and the
# answer already in the socket. The answer gets this long to be read before the cut.
_GRACE_S = 0.02


class Deadline:
    """Calls ``expire`` when a call outlives its limit.

    Setting a timer for every statement would cost more than the statement's own bookkeeping.
    Here a call only writes down when it is due; the timer of an earlier call looks at that
    when it fires, and goes on waiting if the time has moved.
    """

    __slots__ = ("_at", "_due", "_expire", "_late", "_loop", "_timer", "passed_s", "seconds")

    def __init__(self, expire: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expire = expire
        self._due = math.inf
        self._at = math.inf
        self._late = False
        self._timer: asyncio.TimerHandle | None = None
        self.seconds = math.inf
        #: The limit that was passed, once one was.
        self.passed_s: float | None = None

    def start(self, seconds: float) -> None:
        """Begin a call that may take this long."""
        self.seconds = seconds
        due = self._due = monotonic() + seconds
        self._late = False
        if due < self._at:
            self._arm(due, seconds)

    def stop(self) -> None:
        """The call has ended."""
        self._due = math.inf

    def cancel(self) -> None:
        """There will be no more calls."""
        self._due = self._at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._at = math.inf
        if self._due == math.inf:
            return
        left_s = self._due - monotonic()
        if left_s > 0:
            self._arm(self._due, left_s)
        elif not self._late:
            self._late = True
            self._arm(self._due, _GRACE_S)
        else:
            self.passed_s = self.seconds
            self._expire()
