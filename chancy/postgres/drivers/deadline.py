"""The time limit of a session's pending call: one timer serves many calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from time import monotonic

# After a blocked event loop or a paused process, the deadline has passed but the response may
# already be in the socket. Seconds to read it before the socket is closed.
_GRACE_S = 0.02


class Deadline:
    """Calls ``expire`` when a call exceeds its time limit.

    A timer for every statement would cost more than the rest of the statement's bookkeeping. So a
    call only records its deadline; the timer of an earlier call reads it when it fires, and is
    restarted if the deadline has moved.
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
        #: The limit that was exceeded, or None.
        self.passed_s: float | None = None

    def start(self, seconds: float) -> None:
        """Start the limit of a call."""
        self.seconds = seconds
        due = self._due = monotonic() + seconds
        self._late = False
        if due < self._at:
            self._arm(due, seconds)

    def stop(self) -> None:
        """Stop the limit: the call has ended."""
        self._due = math.inf

    def cancel(self) -> None:
        """Stop the timer for good: there will be no more calls."""
        self._due = self._at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
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
