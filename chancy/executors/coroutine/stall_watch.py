"""Watches an event loop, and logs the job that blocks it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from contextvars import Context
from time import monotonic
from types import FrameType
from weakref import WeakKeyDictionary

from chancy.context.context import CURRENT, JobContext

logger = logging.getLogger("chancy.executors")

#: Seconds between two ticks of the loop, and between two checks of the ticks.
EVERY_S = 0.25
#: Seconds without a tick after which the loop is reported as blocked; doubles with each report.
BLOCKED_S = 1.0
#: Number of innermost stack frames in the log.
FRAMES = 20

_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


class LoopWatch:
    """A thread that detects when a loop is blocked, and by which job.

    It costs nothing per job: the loop has a timer, and the job is found in the stack.
    """

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopWatch:
        """The shared watch of a loop; each caller must `leave` it. Called in that loop."""
        watch = _watches.get(loop)
        if watch is None:
            watch = _watches[loop] = cls(loop)
        watch._users += 1
        return watch

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._users = 0
        self._watched = threading.get_ident()
        self._ticked_at = monotonic()
        #: Seconds for which the loop has been blocked, as of the last check of the thread.
        self.blocked_s = 0.0
        #: The last tick before the reported block, and the reported job.
        self._reported: tuple[float, str] | None = None
        self._timer = loop.call_later(EVERY_S, self._tick)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="chancy-loop-watch", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop the watch when its last user leaves."""
        self._users -= 1
        if not self._users:
            _watches.pop(self._loop, None)
            self._timer.cancel()
            self._stopped.set()
            self._thread.join(1.0)

    def _tick(self) -> None:
        now = monotonic()
        blocked_s = now - self._ticked_at
        reported, self._reported = self._reported, None
        if reported is not None and reported[0] == self._ticked_at:
            logger.info("loop_unblocked seconds=%.1f %s", blocked_s, reported[1])
        elif blocked_s > EVERY_S + BLOCKED_S:
            logger.warning(
                "loop_blocked seconds=%.1f job=- func=- (no thread ran: a call held the "
                "interpreter's lock, or the process was stopped)",
                blocked_s,
            )
        self._ticked_at = now
        self._timer = self._loop.call_later(EVERY_S, self._tick)

    def _watch(self) -> None:
        checked_at = frozen_at = monotonic()
        ticked_at = self._ticked_at
        after_s = BLOCKED_S
        while not self._stopped.wait(EVERY_S):
            now = monotonic()
            if now - checked_at > BLOCKED_S:
                # This thread did not run either, so the job in the loop is not the cause.
                frozen_at = now
            checked_at = now
            if self._ticked_at != ticked_at or not self._loop.is_running():
                ticked_at = self._ticked_at
                after_s = BLOCKED_S
                self.blocked_s = 0.0
                if self._loop.is_closed():
                    return
                continue
            self.blocked_s = max(0.0, now - max(ticked_at, frozen_at) - EVERY_S)
            if self.blocked_s >= after_s:
                after_s *= 2
                self._report(ticked_at, now - ticked_at)

    def _report(self, ticked_at: float, blocked_s: float) -> None:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001  there is no other way
        job = _job_of(frame)
        fields = "job=- func=-" if job is None else f"job={job.id} func={job.func}"
        if self._ticked_at != ticked_at:
            return  # the loop is running again
        self._reported = ticked_at, fields
        stack = "".join(traceback.format_stack(frame, FRAMES))
        logger.warning("loop_blocked seconds=%.1f %s\n%s", blocked_s, fields, stack)


def _job_of(frame: FrameType | None) -> JobContext | None:
    """The job that a stack belongs to, found through its innermost context."""
    while frame is not None:
        module, found = frame.f_globals.get("__name__", ""), None
        if module.startswith(__package__):
            found = frame.f_locals.get("context")
        elif module == "asyncio.events" and frame.f_code.co_name == "_run":
            # A task that a job has started has inherited its context.
            found = getattr(frame.f_locals.get("self"), "_context", None)
        if isinstance(found, Context) and CURRENT in found:
            return found[CURRENT]
        frame = frame.f_back
    return None
