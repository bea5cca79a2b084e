"""What running jobs say of their progress, on its way to the worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import cast
from uuid import UUID

from chancy.attempt import Claim
from chancy.context import CURRENT, Attempt, JobContext, Progress
from chancy.executors.base import Report

logger = logging.getLogger(__name__)

#: Of each job at most one word is handed on in so many seconds.
INTERVAL_S = 0.05

_Run = tuple[UUID, UUID]


class _Line:
    """What one job has said and nobody has heard yet: the last word only."""

    __slots__ = ("busy", "claim", "last")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.last: Progress | None = None
        #: Whether the loop is going to look at it.
        self.busy = False


class Reporter:
    """Hands the progress of the jobs of one executor to the worker, in its loop.

    It keeps one word for each running job, however fast they come: the last one, which is never
    lost.

    :param report: what takes it.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        #: The jobs that have said something lately; empty if there is nothing to `end`.
        self.lines: dict[_Run, _Line] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say which loop the worker has. Called in it, before any job runs."""
        self._loop = loop
        self._thread = threading.get_ident()

    def context_of(self, claim: Claim) -> JobContext:
        """The context of an attempt: the one that `around` hooks have seen, or a new one."""
        job = CURRENT.get(None)
        if job is None or not job.bind(claim, self.say):
            job = JobContext(claim, self.say)
        return job

    def say(self, attempt: Attempt, progress: Progress) -> None:
        """Take a word. From any thread."""
        claim = cast("Claim", attempt)
        run = claim.id, claim.lease
        with self._lock:
            line = self.lines.get(run)
            if line is None:
                line = self.lines[run] = _Line(claim)
            line.last = progress
            waits, line.busy = line.busy, True
        if waits or self._loop is None:
            return
        if threading.get_ident() == self._thread:
            self._tell(line)
            return
        try:
            self._loop.call_soon_threadsafe(self._tell, line)
        except RuntimeError:  # the loop is closed: nobody listens any more
            with self._lock:
                self.lines.pop(run, None)

    def end(self, claim: Claim) -> None:
        """Hand on what an attempt said last, now that it has ended. In the loop."""
        with self._lock:
            line = self.lines.pop((claim.id, claim.lease), None)
            last = None
            if line is not None:
                last, line.last = line.last, None
        if last is not None:
            self._hand_on(claim, last)

    def _tell(self, line: _Line) -> None:
        with self._lock:
            last, line.last = line.last, None
            if last is None:
                # Nothing new for a while: the next word comes at once again.
                line.busy = False
                run = line.claim.id, line.claim.lease
                if self.lines.get(run) is line:
                    del self.lines[run]
                return
        self._hand_on(line.claim, last)
        assert self._loop is not None
        self._loop.call_later(INTERVAL_S, self._tell, line)

    def _hand_on(self, claim: Claim, progress: Progress) -> None:
        try:
            self._report(claim, progress)
        except Exception:
            logger.exception("report_failed job=%s func=%s", claim.id, claim.func)
