"""Rate limit for the progress of the job in an executor process."""

from __future__ import annotations

import threading
import time

from chancy.context.context import AttemptInfo, Progress
from chancy.executors.process import protocol as frames
from chancy.executors.process.call import ChildCall
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.protocol import packed

#: Minimum seconds between two progress frames of one job.
INTERVAL_S = 0.05


class ProgressBuffer:
    """Sends the first progress of a job at once, and then the latest of every interval. The last
    progress of a job is always sent. Reports of threads that outlive their job are dropped."""

    def __init__(self, connection: ChildConnection) -> None:
        self._connection = connection
        # Reentrant: a signal handler of the job may report, too.
        self._lock = threading.RLock()
        self._call: ChildCall | None = None
        #: The progress to send when the interval is over.
        self._last: Progress | None = None
        self._sent_at = 0.0
        self._timer: threading.Timer | None = None

    def begin(self, call: ChildCall) -> None:
        """Send the progress of this job from now on."""
        self._call, self._sent_at = call, 0.0

    def report(self, attempt: AttemptInfo, progress: Progress) -> None:
        """Report progress. From any thread."""
        if self._connection.forked or self._connection.sending:
            # A thread of the parent may have held the lock, or one may that waits for this frame.
            return
        with self._lock:
            if attempt is not self._call:
                return
            self._last = progress
            if time.monotonic() >= self._sent_at + INTERVAL_S:
                self._send()
            elif self._timer is None or not self._timer.is_alive():
                self._timer = threading.Timer(INTERVAL_S, self._flush)
                self._timer.daemon = True
                self._timer.start()

    def end(self) -> None:
        """Send the last progress of the job, which has ended."""
        with self._lock:
            self._send()
            self._call = None

    def _flush(self) -> None:
        with self._lock:
            self._timer = None
            self._send()

    def _send(self) -> None:
        last, self._last = self._last, None
        if last is not None and self._call is not None:
            self._sent_at = time.monotonic()
            text = last.text.encode()
            self._connection.send(packed(frames.PROGRESS, self._call.number, last.fraction, text))
