"""Reports of running jobs to the worker: progress, checkpoints and completions."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.context.context import CURRENT, AttemptInfo, JobContext, Progress
from chancy.errors import BrokerUnavailable, JobError
from chancy.executors.base import AttemptCallbacks

logger = logging.getLogger("chancy.executors")

#: Minimum seconds between two reports of one job to the worker.
INTERVAL_S = 0.05

#: Seconds between checks whether a job that waits for a checkpoint has been asked to stop.
_CHECK_S = 0.5

_Run = tuple[UUID, UUID]


@dataclass(slots=True)
class _JobReport:
    """The latest progress of one job that has not been reported yet."""

    claim: Claim
    last: Progress | None = None


class WorkerWrite:
    """A pending write of the worker, for a job in any thread; see `PendingWrite`.

    :param thread: id of the thread of the worker's loop.
    """

    def __init__(self, thread: int) -> None:
        self._future: Future[None] = Future()
        self._thread = thread

    def wait(self, check: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            raise JobError(
                "sync_checkpoint() in the event loop that stores the checkpoint: use "
                "await checkpoint(…)"
            )
        while True:
            try:
                return self._future.result(_CHECK_S)
            except TimeoutError:
                check()

    def __await__(self) -> Generator[Any, Any, None]:
        return asyncio.wrap_future(self._future).__await__()

    def settle(self, error: BaseException | None) -> None:
        """Finish the write: it is stored (None), or it failed."""
        if not self._future.set_running_or_notify_cancel():
            return  # the job has been cancelled
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)


class Reporter:
    """The `AttemptHost` of the contexts of one executor: passes reports of its jobs to the worker,
    in the worker's loop.

    For each running job it holds only the latest progress, however often the job reports. The last
    report of a job is never lost.

    :param callbacks: called with the reports.
    :param max_payload: maximum size in bytes of an encoded result, and of all checkpoints together.
    """

    _loop: asyncio.AbstractEventLoop
    _thread: int

    def __init__(self, callbacks: AttemptCallbacks, max_payload: int) -> None:
        self._report = callbacks.report
        self._store = callbacks.store
        self._completing = callbacks.completing
        self.completion = callbacks.completion
        self.max_payload = max_payload
        self._storing: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        #: Jobs with recent progress: for each, a call of `_flush` is scheduled.
        self._pending: dict[_Run, _JobReport] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the worker's loop. Called in it, before any job runs."""
        self._loop = loop
        self._thread = threading.get_ident()

    def context_of(self, claim: Claim) -> JobContext:
        """The context of an attempt: that of its `around` hooks, or a new one."""
        job = CURRENT.get(None)
        if job is None or not job.bind(claim, self):
            job = JobContext(claim, self)
        return job

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        """Report progress. From any thread."""
        claim = cast("Claim", attempt)
        run = claim.id, claim.lease
        with self._lock:
            pending = self._pending.get(run)
            scheduled = pending is not None
            if pending is None:
                pending = self._pending[run] = _JobReport(claim)
            pending.last = progress
        if not scheduled and not self._in_loop(self._flush, pending):
            with self._lock:  # the loop is closed
                self._pending.pop(run, None)

    def keep(self, attempt: AttemptInfo, meta: str) -> WorkerWrite:
        """See `AttemptHost.keep`. From any thread."""
        write = WorkerWrite(self._thread)
        if not self._in_loop(self._start_to_store, cast("Claim", attempt), meta, write):
            write.settle(BrokerUnavailable("the worker has stopped: the checkpoint was not stored"))
        return write

    def completing(self, attempt: AttemptInfo) -> None:
        """See `AttemptHost.completing`. From any thread."""
        self._in_loop(self._completing, cast("Claim", attempt))

    def _in_loop(self, call: Callable[..., object], *args: object) -> bool:
        """Call in the loop; at once, if this is its thread. False if the loop is closed."""
        if threading.get_ident() == self._thread:
            call(*args)
            return True
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return False
        return True

    def _start_to_store(self, claim: Claim, meta: str, write: WorkerWrite) -> None:
        storing = self._store_meta(claim, meta, write)
        task = self._loop.create_task(storing, name="chancy checkpoint")
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store_meta(self, claim: Claim, meta: str, write: WorkerWrite) -> None:
        try:
            await self._store(claim, meta)
        except asyncio.CancelledError:
            error = BrokerUnavailable(
                "the worker is stopping: the checkpoint may not have been stored"
            )
            write.settle(error)
            raise
        except BaseException as error:
            write.settle(error)
        else:
            write.settle(None)

    def end(self, claim: Claim) -> None:
        """Report the last progress of an attempt that has ended. In the loop."""
        if not self._pending:
            return
        with self._lock:
            pending = self._pending.pop((claim.id, claim.lease), None)
            last = None
            if pending is not None:
                last, pending.last = pending.last, None
        if last is not None:
            self._deliver(claim, last)

    def _flush(self, pending: _JobReport) -> None:
        with self._lock:
            last, pending.last = pending.last, None
            run = pending.claim.id, pending.claim.lease
            if last is None and self._pending.get(run) is pending:
                # No progress during the last interval: report the next one at once.
                del self._pending[run]
        if last is not None:
            self._deliver(pending.claim, last)
            self._loop.call_later(INTERVAL_S, self._flush, pending)

    def _deliver(self, claim: Claim, progress: Progress) -> None:
        try:
            self._report(claim, progress)
        except Exception:
            logger.exception("report_failed job=%s func=%s", claim.id, claim.func)
