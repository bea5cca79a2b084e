"""Watches over an event loop: whoever blocks it is named in the log."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextvars import Context
from time import monotonic
from types import FrameType
from weakref import WeakKeyDictionary

from chancy.context.context import CURRENT, JobContext

logger = logging.getLogger("chancy.executors")

#: Seconds between two beats of the loop, and between two looks at them.
EVERY_S = 0.25
#: Seconds without a beat after which the log says so; then after twice as many, and so on.
BLOCKED_S = 1.0
#: The innermost frames of the stack that the log shows.
FRAMES = 20

_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


class LoopWatch:
    """A thread that sees when a loop stands still, and what stands in its way.

    A job pays nothing for it: the loop has a timer, and which job it is, is read from the stack.
    """

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> LoopWatch:
        """The watch of a loop, shared by all who ask; each has to `leave` it. In that loop."""
        watch = _watches.get(loop)
        if watch is None:
            watch = _watches[loop] = cls(loop)
        watch._users += 1
        return watch

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._users = 0
        self._watched = threading.get_ident()
        self._beaten = monotonic()
        #: What the log was told of the beat that it is waiting for.
        self._told: tuple[float, str] | None = None
        self._timer = loop.call_later(EVERY_S, self._beat)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="chancy-loop-watch", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Watch no longer, if nobody else wants it."""
        self._users -= 1
        if not self._users:
            _watches.pop(self._loop, None)
            self._timer.cancel()
            self._ended.set()
            self._thread.join(1.0)

    def _beat(self) -> None:
        now = monotonic()
        blocked_s = now - self._beaten
        told, self._told = self._told, None
        if told is not None and told[0] == self._beaten:
            logger.info("loop_unblocked seconds=%.1f %s", blocked_s, told[1])
        elif blocked_s > EVERY_S + BLOCKED_S:
            logger.warning(
                "loop_blocked seconds=%.1f job=- func=- (no thread ran: a call did not let go of "
                "the interpreter, or the process was stopped)",
                blocked_s,
            )
        self._beaten = now
        self._timer = self._loop.call_later(EVERY_S, self._beat)

    def _watch(self) -> None:
        looked = frozen = monotonic()
        beaten = self._beaten
        after_s = BLOCKED_S
        while not self._ended.wait(EVERY_S):
            now = monotonic()
            if now - looked > BLOCKED_S:
                # This thread did not run either, and what the loop does now is not to blame.
                frozen = now
            looked = now
            if self._beaten != beaten or not self._loop.is_running():
                beaten = self._beaten
                after_s = BLOCKED_S
                if self._loop.is_closed():
                    return
            elif now - max(beaten, frozen) - EVERY_S >= after_s:
                after_s *= 2
                self._tell(beaten, now - beaten)

    def _tell(self, beaten: float, blocked_s: float) -> None:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001  there is no other way
        job = _job_of(frame)
        who = "job=- func=-" if job is None else f"job={job.id} func={job.func}"
        if self._beaten != beaten:
            return  # it goes on meanwhile
        self._told = beaten, who
        stack = "".join(traceback.format_stack(frame, FRAMES))
        logger.warning("loop_blocked seconds=%.1f %s\n%s", blocked_s, who, stack)


def _job_of(frame: FrameType | None) -> JobContext | None:
    """The job that a stack belongs to, by the innermost context that it was entered with."""
    while frame is not None:
        for context in _contexts(frame):
            if CURRENT in context:
                return context[CURRENT]
        frame = frame.f_back
    return None


def _contexts(frame: FrameType) -> Iterator[Context]:
    module = frame.f_globals.get("__name__", "")
    if module.startswith(__package__):
        found = frame.f_locals.get("context")
    elif module == "asyncio.events" and frame.f_code.co_name == "_run":
        # A task that a job has started inherits its context.
        found = getattr(frame.f_locals.get("self"), "_context", None)
    else:
        return
    if isinstance(found, Context):
        yield found
