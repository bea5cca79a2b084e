"""An executor process, from the side of the worker."""

from __future__ import annotations

import asyncio
import json
import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from chancy.attempt.failure import Failure
from chancy.attempt.outcome import (
    Lost,
    MemoryExceeded,
    Outcome,
    Raised,
    Released,
    Returned,
    TimedOut,
)
from chancy.errors import LeaseLost
from chancy.executors.imports import IMPORT_S, import_timeout
from chancy.executors.invocation import reason_of
from chancy.executors.process import answer as answers
from chancy.executors.process import memory
from chancy.executors.process import protocol as frames
from chancy.executors.process.call import ProcessAttempt
from chancy.executors.process.logs import log_levels
from chancy.executors.process.prefetch import LATE_S, Prefetch
from chancy.executors.process.protocol import Frame, GarbledFrame, packed
from chancy.executors.process.settings import ChildKind
from chancy.executors.process.spawn import ChildSpawn
from chancy.queue.executor_options import ProcessOptions

#: Seconds between two memory checks while a job with a memory limit runs.
MEMORY_CHECK_S = 0.05
#: Minimum seconds between two memory checks after jobs.
_MEMORY_CHECK_AFTER_S = 0.1
#: Share of its maximum number of jobs after which the successor of an executor process is started.
_NEARLY = 0.8
#: Calls in a row that an executor process may leave unread before it is killed.
_MOST_MISSED = 100
#: Descriptions of intended exits.
STOPPED = "was killed to stop its job"
RECYCLED = "was recycled"


class ChildOwner(Protocol):
    """Callbacks of an executor process. None of them raises."""

    def changed(self, child: ChildProcess) -> None:
        """It has answered or accepts no more calls, so its room may have changed."""

    def withdrawn(self, attempts: Sequence[ProcessAttempt]) -> None:
        """These attempts have not started and must run in another executor process."""

    def check_at(self, at: float) -> None:
        """Call `ChildProcess.check` at this time of the loop, or sooner."""

    def reported(self, attempt: ProcessAttempt | None, frame: Frame) -> None:
        """A job has sent progress, a log record or a completion."""

    def store_requested(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None:
        """A job asks to store a checkpoint. Answer with `ChildProcess.stored`."""


class ChildProcess:
    """One executor process: started, given calls, and watched until it has exited.

    :param number: identifies it in messages; its successor gets the same number.
    """

    def __init__(self, number: int, owner: ChildOwner, options: ProcessOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self.number = number
        #: Gets the callbacks.
        self.owner = owner
        self._lent_at = self._loop.time()
        #: When it, or the one that it replaces, was last given or has answered a call.
        self.used_at = -math.inf
        #: Number of calls that it has answered since it was lent.
        self.answered = 0
        #: Whether the executor that has borrowed it gives it no more calls.
        self.draining = False
        self._options = options
        self._process = ChildSpawn(self._receive, self._on_exit)
        self._prefetch = Prefetch(options.max_jobs)
        self._memory_checked_at = 0.0
        self._retiring = False
        #: Its slots when they were last counted.
        self.counted = 0
        #: Result: None once it accepts calls, or why it never will: how it ended, or the failure of
        #: its initializer.
        self.ready: asyncio.Future[str | Failure | None] = self._loop.create_future()
        #: Done when a successor is needed, at the latest when it has exited.
        self.successor_needed: asyncio.Future[None] = self._loop.create_future()
        #: Result: how the process ended.
        self.exited: asyncio.Future[str] = self._loop.create_future()

    def __str__(self) -> str:
        return f"executor process {self.number} (pid {self._process.pid})"

    def start(self, kind: ChildKind, sys_path: Sequence[str]) -> None:
        """Start the process.

        :raises OSError: the system cannot start it.
        """
        kind = replace(kind, levels=kind.levels or log_levels())
        try:
            self._process.start(kind, sys_path, self._prefetch.far)
        except BaseException:
            self._prefetch.close()
            raise

    def lend(self, owner: ChildOwner) -> None:
        """Give it to another owner, while it holds no calls."""
        self.owner = owner
        self.draining = False
        self._lent_at = self._loop.time()
        self.answered = 0

    @property
    def lent_s(self) -> float:
        """Seconds since it got its present owner."""
        return self._loop.time() - self._lent_at

    def drain(self) -> None:
        """Withdraw the calls that it has not received; its owner gives it no more."""
        self.draining = True
        self.withdraw()

    def withdraw(self) -> None:
        """Withdraw the calls that it has not received."""
        self.owner.withdrawn(self._prefetch.withdraw())

    # Calls

    @property
    def held(self) -> int:
        """Number of calls that it holds."""
        return len(self._prefetch.attempts)

    @property
    def depth(self) -> int:
        """Maximum number of calls to hold now."""
        return 0 if self._retiring or not self._process.able else self._prefetch.depth

    @property
    def slots(self) -> int:
        """Maximum number of calls to hold now; while it finishes its last ones, their number."""
        return self.depth or self.held

    @property
    def room(self) -> int:
        """Number of calls that it may be given now."""
        return (
            0 if self.draining or self._retiring or not self._process.able else self._prefetch.room
        )

    @property
    def never_used(self) -> bool:
        """Whether it was never given a call, so that no call can have caused its exit."""
        return self._prefetch.given == 0

    @property
    def missed(self) -> int:
        """Number of calls in a row that it did not receive in time although it was idle."""
        return self._prefetch.missed

    def give(self, attempt: ProcessAttempt, now: float) -> bool:
        """Send it a call; False if it cannot accept one now."""
        try:
            if not self._prefetch.give(attempt, now):
                return False
        except OSError as error:
            self.kill(f"was killed because its channel is broken: {error}")
            return False
        attempt.child = self
        self.used_at = now
        most = self._options.max_jobs
        if most is not None and self._prefetch.given >= most * _NEARLY:
            self.request_successor()
        return True

    def interrupt(self, attempt: ProcessAttempt, outcome: Outcome, now: float) -> None:
        """Stop an attempt that it holds. See `Executor.interrupt`."""
        if self._withdraw(attempt):
            attempt.finish(outcome)
            return
        if attempt.interruption is None:
            attempt.interruption = outcome
            attempt.kill_at = now + self._options.grace_s
            why = reason_of(outcome).encode(errors="replace")
            self._process.send(packed(frames.STOP, attempt.number, 0.0, why))
            self._process.signal(signal.SIGURG)
        if isinstance(outcome, Released):
            self.kill(STOPPED)

    def check(self, now: float) -> float:
        """Withdraw late calls, and enforce the limits of jobs.

        :return: when to check again; infinity if there is no need.
        """
        due = self._prefetch.late_at()
        if now >= due:
            due = math.inf
            self.owner.withdrawn(self._prefetch.withdraw_late())
            if self._prefetch.missed > _MOST_MISSED:
                self.kill("was killed because it received no calls")
        running = self._prefetch.running
        return due if running is None else min(due, self._enforce_limits(running, now))

    def _enforce_limits(self, attempt: ProcessAttempt, now: float) -> float:
        """Enforce the limits of an attempt. Returns when to check again."""
        time_s, memory_bytes = attempt.limits
        importing = attempt.import_until
        due = math.inf if attempt.kill_at is None else attempt.kill_at
        # The executor process enforces the time limit more exactly; this applies if it fails to, as
        # when the job has used its timer.
        over_at = math.inf
        if importing is not None:
            over_at = importing
        elif time_s is not None:
            over_at = attempt.started_at + time_s + LATE_S
            if now >= over_at and not attempt.late:
                attempt.late = True
                self._process.send(packed(frames.STOP, attempt.number, 1.0))
                self._process.signal(signal.SIGURG)
            if attempt.late:
                over_at += self._options.grace_s
        outcome: Outcome
        if now >= due:
            outcome = attempt.interruption or Released("it was stopped")
        elif importing is not None and now >= importing:
            outcome = Raised(Failure.of(import_timeout(attempt.claim.func)))
        elif now >= over_at:
            outcome = TimedOut(time_s or 0.0, now - attempt.started_at)
        elif memory_bytes is None:
            return min(due, over_at)
        elif (memory.resident(self._process.pid) or 0) <= memory_bytes:
            return min(due, over_at, now + MEMORY_CHECK_S)
        else:
            outcome = MemoryExceeded(memory_bytes, now - attempt.started_at)
        if not self._withdraw(attempt):
            attempt.interruption = attempt.interruption or outcome
            self.kill(STOPPED)
        return math.inf

    def _withdraw(self, attempt: ProcessAttempt) -> bool:
        """Withdraw all unreceived calls. Returns whether this attempt was among them."""
        withdrawn = self._prefetch.withdraw()
        self.owner.withdrawn(withdrawn)
        return attempt in withdrawn

    # Exit

    def kill(self, how: str | None = None) -> None:
        """Kill the process. ``how`` is reported instead of the signal."""
        self._process.kill(how)

    def retire(self) -> None:
        """Let it exit once its running jobs have ended; it gets no more calls."""
        if not self._retiring:
            self._retiring = True
            self.withdraw()
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._retiring and self._process.able and not self._prefetch.attempts:
            self.close(self._options.grace_s, RECYCLED)

    def close(self, grace_s: float, how: str | None = None) -> None:
        """Ask it to exit when idle; it is killed if it takes longer than ``grace_s``."""
        self._retiring = True
        self._prefetch.close()
        self._process.close(grace_s, how)

    def request_successor(self) -> None:
        if not self.successor_needed.done():
            self.successor_needed.set_result(None)

    def _on_exit(self, how: str) -> None:
        running, unread = self._prefetch.dissolve()
        owner = self.owner  # which gives it back
        owner.withdrawn(unread)
        owner.changed(self)
        if running is not None:
            lost = Lost(f"{self} {how}", self._loop.time() - running.started_at)
            running.finish(running.interruption or lost)
        if not self.ready.done():
            self.ready.set_result(how)
        self.request_successor()
        self.exited.set_result(how)

    # Frames

    def _receive(self, received: list[Frame]) -> None:
        answered = 0
        for frame in received:
            kind, number, elapsed_s, _ = frame
            if kind == frames.RETURNED_NONE:  # most of them
                self._prefetch.answer(number, Returned(None, elapsed_s))
            elif (outcome := self._handle(frame, self._prefetch.attempts.get(number))) is not None:
                self._prefetch.answer(number, outcome)
            else:
                continue
            answered += 1
        if answered:
            self.answered += answered
            self.used_at = now = self._loop.time()
            self._prefetch.advance(now)
            self._check_memory(now)
            self._close_if_idle()
            self.owner.changed(self)

    def _handle(self, frame: Frame, attempt: ProcessAttempt | None) -> Outcome | None:
        """Handle a frame; returns the outcome if it is a reply."""
        kind, number, _, body = frame
        if attempt is not None and (outcome := answers.outcome_of(frame, attempt)) is not None:
            if kind == frames.MEMORY:
                self.request_successor()
                self.retire()
            return outcome
        if attempt is not None and kind == frames.FETCH and attempt.body is not None:
            self._process.send(packed(frames.BODY, number, 0.0, attempt.body))
        elif kind in (frames.IMPORTING, frames.IMPORTED):
            if attempt is not None:
                self._note_import(attempt, begins=kind == frames.IMPORTING)
        elif kind == frames.READY and not self.ready.done():
            self.ready.set_result(None)
        elif kind == frames.UNREADY and not self.ready.done():
            self.ready.set_result(Failure.from_json(json.loads(body)))
        elif kind == frames.STORE:
            if attempt is not None:
                self.owner.store_requested(self, attempt, frame[2], body.decode())
            else:
                self.stored(number, frame[2], LeaseLost("the attempt has ended"))
        elif kind in (frames.PROGRESS, frames.LOG, frames.COMPLETING):
            self.owner.reported(attempt, frame)
        else:
            raise GarbledFrame(f"unexpected frame {kind!r} of call {number}")
        return None

    def _note_import(self, attempt: ProcessAttempt, *, begins: bool) -> None:
        """Start the limit of the import of a job's module, or then that of the job."""
        now = self._loop.time()
        attempt.import_until = now + IMPORT_S if begins else None
        attempt.started_at = now
        self.owner.check_at(self._enforce_limits(attempt, now))

    def stored(self, number: int, request: float, error: BaseException | None) -> None:
        """Report to a job whether its checkpoint is stored."""
        if self._process.able:
            self._process.send(packed(frames.STORED, number, request, answers.encode_error(error)))
            self._process.signal(signal.SIGURG)

    def _check_memory(self, now: float) -> None:
        """Retire it when it has run its jobs or uses too much memory."""
        if self._prefetch.exhausted and not self._prefetch.attempts:
            self.retire()
        most = self._options.max_memory_bytes
        if most is not None and now >= self._memory_checked_at + _MEMORY_CHECK_AFTER_S:
            self._memory_checked_at = now
            held = memory.resident(self._process.pid) or 0
            if held > most:
                self.request_successor()
            if held > 2 * most:  # do not wait for its successor
                self.retire()
