"""What running jobs say, on its way to the worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, cast
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.context.context import CURRENT, AttemptInfo, JobContext, Progress
from chancy.errors import BrokerUnavailable, JobError
from chancy.executors.base import AttemptCallbacks

logger = logging.getLogger("chancy.executors")

#: Of each job at most one word is handed on in so many seconds.
INTERVAL_S = 0.05

#: Seconds between looks whether a job that waits for a step to be stored is to end.
_LOOK_S = 0.5

_Run = tuple[UUID, UUID]


class _JobReport:
    """What one job has said and nobody has heard yet: the last word only."""

    __slots__ = ("busy", "claim", "last")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.last: Progress | None = None
        #: Whether the loop is going to look at it.
        self.busy = False


class WorkerWrite:
    """Something that the worker stores, for a job in any thread; see `PendingWrite`.

    :param thread: that of the worker's loop.
    """

    def __init__(self, thread: int) -> None:
        self._future: Future[None] = Future()
        self._thread = thread

    def wait(self, check: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            raise JobError("sync_step() in the event loop that stores the step: use await step(…)")
        while True:
            try:
                return self._future.result(_LOOK_S)
            except TimeoutError:
                check()

    def __await__(self) -> Generator[Any, Any, None]:
        return asyncio.wrap_future(self._future).__await__()

    def settle(self, error: BaseException | None) -> None:
        """Say that it is stored, or why not."""
        if not self._future.set_running_or_notify_cancel():
            return  # the job has been cancelled in the meantime
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)


class Reporter:
    """The `AttemptHost` of the contexts of one executor: hands reports of its jobs to the worker,
    in its loop.

    Of the progress it keeps one word for each running job, however fast they come: the last one,
    which is never lost.

    :param ties: what takes it.
    :param max_payload: bytes that an encoded result, and all steps together, may have.
    """

    def __init__(self, ties: AttemptCallbacks, max_payload: int) -> None:
        self._report = ties.report
        self._keep = ties.keep
        self._completing = ties.completing
        self.completion = ties.completion
        self.max_payload = max_payload
        self._keeping: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        #: The jobs that have said something lately; empty if there is nothing to `end`.
        self.lines: dict[_Run, _JobReport] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say which loop the worker has. Called in it, before any job runs."""
        self._loop = loop
        self._thread = threading.get_ident()

    def context_of(self, claim: Claim) -> JobContext:
        """The context of an attempt: the one that `around` hooks have seen, or a new one."""
        job = CURRENT.get(None)
        if job is None or not job.bind(claim, self):
            job = JobContext(claim, self)
        return job

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        """Take a word. From any thread."""
        claim = cast("Claim", attempt)
        run = claim.id, claim.lease
        with self._lock:
            line = self.lines.get(run)
            if line is None:
                line = self.lines[run] = _JobReport(claim)
            line.last = progress
            waits, line.busy = line.busy, True
        if not waits and not self._in_loop(self._tell, line):
            with self._lock:  # nobody listens any more
                self.lines.pop(run, None)

    def keep(self, attempt: AttemptInfo, meta: str) -> WorkerWrite:
        """See `AttemptHost.keep`. From any thread."""
        kept = WorkerWrite(self._thread)
        if not self._in_loop(self._begin_to_keep, cast("Claim", attempt), meta, kept):
            kept.settle(BrokerUnavailable("the worker has stopped: the step was not stored"))
        return kept

    def completing(self, attempt: AttemptInfo) -> None:
        """See `AttemptHost.completing`. From any thread."""
        self._in_loop(self._completing, cast("Claim", attempt))

    def _in_loop(self, call: Callable[..., object], *args: object) -> bool:
        """Make a call in the loop: now, if this is its thread. False if the loop is closed."""
        if threading.get_ident() == self._thread:
            call(*args)
            return True
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return False
        return self._loop is not None

    def _begin_to_keep(self, claim: Claim, meta: str, kept: WorkerWrite) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._keep_it(claim, meta, kept), name="chancy step")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _keep_it(self, claim: Claim, meta: str, kept: WorkerWrite) -> None:
        try:
            await self._keep(claim, meta)
        except asyncio.CancelledError:
            kept.settle(BrokerUnavailable("the worker stops: the step may not have been stored"))
            raise
        except BaseException as error:
            kept.settle(error)
        else:
            kept.settle(None)

    def end(self, claim: Claim) -> None:
        """Hand on what an attempt said last, now that it has ended. In the loop."""
        with self._lock:
            line = self.lines.pop((claim.id, claim.lease), None)
            last = None
            if line is not None:
                last, line.last = line.last, None
        if last is not None:
            self._hand_on(claim, last)

    def _tell(self, line: _JobReport) -> None:
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
