"""A child of the process executor, as the parent has it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import signal
from collections.abc import Sequence
from typing import Protocol

from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Lost, MemoryExceeded, Outcome, Released, Returned, TimedOut
from chancy.context.host import CompletionRef
from chancy.errors import LeaseLost
from chancy.executors.invocation import reason_of
from chancy.executors.process import answer as answers
from chancy.executors.process import memory
from chancy.executors.process import protocol as frames
from chancy.executors.process.attempt import ProcessAttempt
from chancy.executors.process.prefetch import LATE_S, Prefetch
from chancy.executors.process.protocol import Frame, GarbledFrame, packed
from chancy.executors.process.spawn import ChildSpawn
from chancy.executors.process.terms import ChildSettings
from chancy.queue.executor_options import ProcessOptions

#: Seconds between two looks at what a child holds whose job has a memory limit.
WEIGH_S = 0.05
#: Seconds between two looks at what a child holds after its jobs.
_WEIGH_AFTER_S = 0.1
#: Part of its jobs after which a child's successor is started.
_NEARLY = 0.8
#: Calls that a child may leave unread, one after the other, before it is killed.
_MOST_MISSED = 100
#: How a child ended that we ended.
STOPPED = "was killed to stop its job"
RECYCLED = "was recycled"


class ChildOwner(Protocol):
    """Who a child tells how it is. None of it raises."""

    def changed(self, child: ChildProcess) -> None:
        """It has answered, or takes no more: there may be other room."""

    def bounced(self, attempts: Sequence[ProcessAttempt]) -> None:
        """These have not begun in a child, and never will in this one."""

    def heard(self, attempt: ProcessAttempt | None, frame: Frame) -> None:
        """A job said something."""

    def asked_to_keep(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None:
        """A job wants to have something stored: to be answered by `kept`."""

    def uninitialized(self, child: ChildProcess, failure: Failure) -> None:
        """Its initializer failed, and it ends."""


class ChildProcess:
    """One child: started, given calls, and watched until it is gone.

    :param number: names it in messages; its successor has the same.
    """

    def __init__(self, number: int, owner: ChildOwner, options: ProcessOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self.number = number
        self._owner = owner
        self._options = options
        self._program = ChildSpawn(self._receive, self._ended)
        self._hand = Prefetch(options.jobs_per_child, options.max_jobs)
        self._weighed_at = 0.0
        self._leaving = False
        #: Its depth when the slots were counted.
        self.counted = 0
        #: None once it can take calls, or why it never will.
        self.ready: asyncio.Future[str | None] = self._loop.create_future()
        #: Done when it should have a successor, at the latest when it is gone.
        self.spent: asyncio.Future[None] = self._loop.create_future()
        #: How the process ended.
        self.gone: asyncio.Future[str] = self._loop.create_future()

    def __str__(self) -> str:
        return f"child {self.number} (pid {self._program.pid})"

    def start(
        self, max_payload: int, sys_path: Sequence[str], completion: CompletionRef | None
    ) -> None:
        """Start the process. Raises OSError if the system has no room for it."""
        terms = ChildSettings(
            calls=self._hand.far,
            max_payload=max_payload,
            jobs=self._options.jobs_per_child,
            initializer=self._options.initializer,
            log_level=logging.getLogger().getEffectiveLevel(),
            completion=completion,
        )
        try:
            self._program.start(terms, sys_path)
        except BaseException:
            self._hand.close()
            raise

    # Calls

    @property
    def held(self) -> int:
        """How many calls it has in hand."""
        return len(self._hand.attempts)

    @property
    def depth(self) -> int:
        """How many calls it may have in hand."""
        return 0 if self._leaving or not self._program.able else self._hand.depth

    @property
    def room(self) -> int:
        """How many more calls it may be given now."""
        return 0 if self._leaving or not self._program.able else self._hand.room

    @property
    def idle_all_its_life(self) -> bool:
        """Whether it was never given a call, so that its end cannot be the fault of one."""
        return self._hand.given == 0

    @property
    def missed(self) -> int:
        """How many calls in a row it did not receive in time, although it had nothing to do."""
        return self._hand.missed

    def give(self, attempt: ProcessAttempt, now: float) -> bool:
        """Hand a call over; False if it cannot take one now."""
        try:
            if not self._hand.give(attempt, now):
                return False
        except OSError as error:
            self.kill(f"was killed because its channel is broken: {error}")
            return False
        attempt.child = self
        most = self._options.max_jobs
        if most is not None and self._hand.given >= most * _NEARLY:
            self.spend()
        return True

    def interrupt(self, attempt: ProcessAttempt, outcome: Outcome, now: float) -> None:
        """Stop an attempt that it has in hand. See `Executor.interrupt`."""
        if self._bounce(attempt):
            attempt.end(outcome)
            return
        if attempt.given is None:
            attempt.given = outcome
            attempt.kill_at = now + self._options.grace_s
            why = reason_of(outcome).encode(errors="replace")
            self._program.tell(packed(frames.STOP, attempt.number, 0.0, why))
            self._program.signal(signal.SIGURG)
        if isinstance(outcome, Released):
            self.kill(STOPPED)

    def look(self, now: float) -> float:
        """Do what is due: take calls back, and hold jobs to their limits.

        Returns when to look again; infinity if there is no need.
        """
        due = self._hand.late_at()
        if now >= due:
            due = math.inf
            self._owner.bounced(self._hand.fall_behind())
            if self._hand.missed > _MOST_MISSED:
                self.kill("was killed because it received no calls")
        for attempt in self._hand.begun():
            due = min(due, self._hold(attempt, now))
        return due

    def _hold(self, attempt: ProcessAttempt, now: float) -> float:
        """Hold an attempt to its limits. Returns when to look again."""
        time_s, memory_bytes = attempt.limits
        due = math.inf if attempt.kill_at is None else attempt.kill_at
        # The child knows better when the job began, and stops it; this is for when it does not.
        over_at = math.inf
        if time_s is not None:
            over_at = attempt.began + time_s + self._options.grace_s + LATE_S
        outcome: Outcome
        if now >= due:
            outcome = attempt.given or Released("it was stopped")
        elif now >= over_at:
            outcome = TimedOut(time_s or 0.0, now - attempt.began)
        elif memory_bytes is None:
            return min(due, over_at)
        elif (memory.resident(self._program.pid) or 0) <= memory_bytes:
            return min(due, over_at, now + WEIGH_S)
        else:
            outcome = MemoryExceeded(memory_bytes, now - attempt.began)
        if not self._bounce(attempt):
            attempt.given = attempt.given or outcome
            self.kill(STOPPED)
        return math.inf

    def _bounce(self, attempt: ProcessAttempt) -> bool:
        """Take back what it has not received. Whether this attempt was among it."""
        back = self._hand.take_back()
        self._owner.bounced(back)
        return attempt in back

    # Its end

    def kill(self, how: str | None = None) -> None:
        """End the process at once. ``how`` is reported instead of the signal."""
        self._program.kill(how)

    def leave(self) -> None:
        """Let it go when it has ended what it runs; it is given no more."""
        if not self._leaving:
            self._leaving = True
            self._owner.bounced(self._hand.take_back())
            self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._leaving and self._program.able and not self._hand.attempts:
            self.hang_up(self._options.grace_s, RECYCLED)

    def hang_up(self, grace_s: float, how: str | None = None) -> None:
        """Ask an idle child to end; kill it if it takes longer than this."""
        self._leaving = True
        self._hand.close()
        self._program.hang_up(grace_s, how)

    def spend(self) -> None:
        """Ask for a successor."""
        if not self.spent.done():
            self.spent.set_result(None)

    def _ended(self, how: str) -> None:
        running, unread = self._hand.part()
        self._owner.changed(self)
        self._owner.bounced(unread)
        known = any(attempt.given is not None for attempt in running)
        now = self._loop.time()
        for attempt in running:
            if attempt.given is not None:
                attempt.end(attempt.given)
            elif known:
                attempt.end(Released(f"{self} was killed to stop a job beside it"))
            else:
                attempt.end(Lost(f"{self} {how}", now - attempt.began))
        if not self.ready.done():
            self.ready.set_result(how)
        self.spend()
        self.gone.set_result(how)

    # What it says

    def _receive(self, received: list[Frame]) -> None:
        answered = False
        for frame in received:
            kind, number, elapsed_s, _ = frame
            if kind == frames.RETURNED_NONE:  # most of them
                self._hand.answer(number, Returned(None, elapsed_s))
            elif (outcome := self._hear(frame, self._hand.attempts.get(number))) is not None:
                self._hand.answer(number, outcome)
            else:
                continue
            answered = True
        if answered:
            now = self._loop.time()
            self._hand.go_on(now)
            self._weigh(now)
            self._leave_if_idle()
            self._owner.changed(self)

    def _hear(self, frame: Frame, attempt: ProcessAttempt | None) -> Outcome | None:
        """Take a frame; gives the outcome if it is an answer."""
        kind, number, _, body = frame
        if attempt is not None and (outcome := answers.outcome_of(frame, attempt)) is not None:
            if kind == frames.MEMORY:
                self.spend()
                self.leave()
            return outcome
        if attempt is not None and kind == frames.WANT and attempt.body is not None:
            self._program.tell(packed(frames.BODY, number, 0.0, attempt.body))
        elif kind == frames.READY and not self.ready.done():
            self.ready.set_result(None)
        elif kind == frames.UNREADY and not self.ready.done():
            failure = Failure.from_json(json.loads(body))
            self._owner.uninitialized(self, failure)
            self.ready.set_result(
                f"failed in its initializer: {failure.types[0]}: {failure.message}"
            )
        elif kind == frames.KEEP:
            if attempt is not None:
                self._owner.asked_to_keep(self, attempt, frame[2], body.decode())
            else:
                self.kept(number, frame[2], LeaseLost("the attempt has ended"))
        elif kind in (frames.PROGRESS, frames.LOG, frames.COMPLETING):
            self._owner.heard(attempt, frame)
        else:
            raise GarbledFrame(f"a child does not say {kind!r} of call {number}")
        return None

    def kept(self, number: int, request: float, error: BaseException | None) -> None:
        """Tell a job whether it is stored what it wanted to have stored."""
        if self._program.able:
            self._program.tell(packed(frames.KEPT, number, request, answers.unkept(error)))
            self._program.signal(signal.SIGURG)

    def _weigh(self, now: float) -> None:
        """See whether it has grown too large, or has had its jobs."""
        if self._hand.exhausted and not self._hand.attempts:
            self.leave()
        most = self._options.max_memory_bytes
        if most is not None and now >= self._weighed_at + _WEIGH_AFTER_S:
            self._weighed_at = now
            held = memory.resident(self._program.pid) or 0
            if held > most:
                self.spend()
            if held > 2 * most:  # and it has no successor yet
                self.leave()
