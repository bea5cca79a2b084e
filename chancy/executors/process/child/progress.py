"""What jobs say of their progress in a child, on its way to the line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

from chancy.context.context import AttemptInfo, Progress
from chancy.executors.process.call import ChildCall

#: Of each job one word goes out in so many seconds.
INTERVAL_S = 0.05
#: Jobs of which anything is kept. More are only those that threads speak of which outlived them.
_MOST = 1_000


class _ProgressUpdate:
    __slots__ = ("call", "last", "sent_at")

    def __init__(self, call: ChildCall) -> None:
        self.call = call
        self.last: Progress | None = None
        self.sent_at = 0.0


class ProgressBuffer:
    """Lets the first word of a job out at once, and then the last of every interval: what a job
    says last always gets out.

    :param report: sends a word to the parent. Called from any thread.
    """

    def __init__(self, report: Callable[[ChildCall, Progress], None]) -> None:
        self._report = report
        self._lock = threading.RLock()
        self._words: dict[int, _ProgressUpdate] = {}
        self._timer: threading.Timer | None = None

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        """Take a word. From any thread."""
        call = cast("ChildCall", attempt)
        now = time.monotonic()
        with self._lock:
            word = self._words.get(call.number)
            if word is None:
                if len(self._words) >= _MOST:
                    self._words.clear()
                word = self._words[call.number] = _ProgressUpdate(call)
            if now < word.sent_at + INTERVAL_S:
                word.last = progress
                self._flush_later()
                return
            word.last, word.sent_at = None, now
        self._report(call, progress)

    def end(self, call: ChildCall) -> None:
        """A job has ended: let out what it said last."""
        if not self._words:
            return
        with self._lock:
            word = self._words.pop(call.number, None)
        if word is not None and word.last is not None:
            self._report(call, word.last)

    def _flush_later(self) -> None:
        if self._timer is None or not self._timer.is_alive():
            self._timer = threading.Timer(INTERVAL_S, self._flush)
            self._timer.daemon = True
            self._timer.start()

    def _flush(self) -> None:
        with self._lock:
            self._timer = None
            due = [word for word in self._words.values() if word.last is not None]
            last = [(word.call, word.last) for word in due]
            for word in due:
                word.last, word.sent_at = None, time.monotonic()
        for call, progress in last:
            if progress is not None:
                self._report(call, progress)
