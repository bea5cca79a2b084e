"""Rate limit for the progress of jobs in an executor process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

from chancy.context.context import AttemptInfo, Progress
from chancy.executors.process.call import ChildCall

#: Minimum seconds between two progress frames of one job.
INTERVAL_S = 0.05
#: Maximum number of jobs to track. Only threads that outlive their jobs can report more.
_MOST = 1_000


class _ProgressUpdate:
    __slots__ = ("call", "last", "sent_at")

    def __init__(self, call: ChildCall) -> None:
        self.call = call
        self.last: Progress | None = None
        self.sent_at = 0.0


class ProgressBuffer:
    """Sends the first progress of a job at once, and then the latest of every interval. The last
    progress of a job is always sent.

    :param report: sends progress to the worker. Called from any thread.
    """

    def __init__(self, report: Callable[[ChildCall, Progress], None]) -> None:
        self._report = report
        self._lock = threading.RLock()
        self._updates: dict[int, _ProgressUpdate] = {}
        self._timer: threading.Timer | None = None

    def report(self, attempt: AttemptInfo, progress: Progress) -> None:
        """Report progress. From any thread."""
        call = cast("ChildCall", attempt)
        now = time.monotonic()
        with self._lock:
            update = self._updates.get(call.number)
            if update is None:
                if len(self._updates) >= _MOST:
                    self._updates.clear()
                update = self._updates[call.number] = _ProgressUpdate(call)
            if now < update.sent_at + INTERVAL_S:
                update.last = progress
                self._flush_later()
                return
            update.last, update.sent_at = None, now
        self._report(call, progress)

    def end(self, call: ChildCall) -> None:
        """Send the last progress of a job that has ended."""
        if not self._updates:
            return
        with self._lock:
            update = self._updates.pop(call.number, None)
        if update is not None and update.last is not None:
            self._report(call, update.last)

    def _flush_later(self) -> None:
        if self._timer is None or not self._timer.is_alive():
            self._timer = threading.Timer(INTERVAL_S, self._flush)
            self._timer.daemon = True
            self._timer.start()

    def _flush(self) -> None:
        with self._lock:
            self._timer = None
            due = [update for update in self._updates.values() if update.last is not None]
            last = [(update.call, update.last) for update in due]
            for update in due:
                update.last, update.sent_at = None, time.monotonic()
        for call, progress in last:
            if progress is not None:
                self._report(call, progress)
