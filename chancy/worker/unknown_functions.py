"""The functions of jobs in a queue that a worker does not know.

A worker sets such jobs aside: they wait for a worker that knows their function, and cost the others
no further claim. Each worker announces the functions that it does not know. Once none of the live
workers of the queue may know one, and for long enough, its jobs fail.

A job whose arguments have a later version is set aside as well, but it alone: the other jobs of its
function run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Raised, SetAside
from chancy.broker.values import MOST_SET_ASIDE, WorkerRecord
from chancy.clock import Clock
from chancy.errors import UnknownFunction
from chancy.executors.imports import needs_import
from chancy.job.registry import Registry
from chancy.text import shown

logger = logging.getLogger("chancy.worker")

UNKNOWN_FUNCTION = "chancy.errors.UnknownFunction"
UNKNOWN_VERSION = "chancy.errors.UnknownVersion"
#: Seconds until a function is looked up again: its module may be importable by then.
_LOOK_UP_S = 15.0
_LONGEST_LOOK_UP_S = 600.0
#: Seconds after which a function is dropped of which no job has been met.
_DROP_AFTER_S = 600.0
#: Most seconds between two checks whether other workers may know the functions.
_CHECK_EVERY_S = 30.0


def look_up(registry: Registry, path: str) -> None:
    """Raise `UnknownFunction` if this worker does not know a function.

    Imports nothing, since that would block the event loop: one that may be imported counts as known
    until an executor has imported its module.
    """
    if needs_import(path):
        registry.check_allowed(path)
    else:
        registry.find(path)


@dataclass(slots=True)
class _Unknown:
    """A function that this worker does not know."""

    why: str
    #: Since when no live worker of the queue has known it, as far as this worker has observed.
    since: float
    met_at: float
    pause_s: float
    look_up_at: float
    #: Whether its jobs fail: no worker has known it for too long.
    overdue: bool = False


@dataclass(slots=True)
class _Later:
    """Jobs of a function that were set aside for the version of their arguments."""

    pause_s: float
    look_up_at: float


class UnknownFunctions:
    """The functions of jobs in one queue that this worker does not know; usually none.

    :param find: returns the function of a path; raises `UnknownFunction`.
    :param after_s: seconds without a live worker that may know a function after which its jobs
        fail.
    """

    def __init__(
        self, queue: str, find: Callable[[str], object], clock: Clock, *, after_s: float
    ) -> None:
        self._queue = queue
        self._find = find
        self._clock = clock
        self._after_s = after_s
        self._unknown: dict[str, _Unknown] = {}
        self._tried: dict[str, _Unknown] = {}
        self._later: dict[str, _Later] = {}
        self._logged: set[str] = set()
        self._check_at = 0.0
        #: The unknown functions. Empty in the normal case, so a check costs nothing.
        self.names: Mapping[str, object] = MappingProxyType(self._unknown)
        #: Functions that were unknown and can be found now: their next job shows whether the
        #: executor can run them.
        self.tried: Mapping[str, object] = MappingProxyType(self._tried)

    def knows(self, func: str) -> bool:
        """Whether jobs of a function that were set aside may be claimed here.

        Looks the function up, but one that is unknown only at growing intervals. Jobs of an overdue
        function may be claimed, to fail.
        """
        now = self._clock.monotonic()
        unknown = self._unknown.get(func)
        if unknown is not None:
            unknown.met_at = now
            if unknown.overdue or now < unknown.look_up_at:
                return unknown.overdue
        elif len(self._unknown) >= MOST_SET_ASIDE:
            return False
        later = self._later.get(func)
        if later is not None and now < later.look_up_at:
            return False
        try:
            self._find(func)
        except UnknownFunction as error:
            self._add(func, str(error))
            return False
        if unknown is not None:
            self._tried[func] = self._unknown.pop(func)
        return True

    def outcome_of(self, claim: Claim) -> Outcome:
        """The outcome of a job of one of these functions, which is not run."""
        unknown = self._unknown[claim.func]
        unknown.met_at = self._clock.monotonic()
        if not unknown.overdue:
            return SetAside(unknown.why)
        why = f"{unknown.why}; no live worker has known the function for {self._after_s:g} s"
        return Raised(Failure.named(UNKNOWN_FUNCTION, why))

    def changed(self, claim: Claim, outcome: Outcome) -> Outcome:
        """The outcome of a job that was run: if its function was unknown, it is set aside."""
        func = claim.func
        if isinstance(outcome, Raised) and outcome.failure.is_a(UNKNOWN_VERSION):
            self._tried.pop(func, None)
            self._wait(func, outcome.failure.message)
            return SetAside(outcome.failure.message)
        if not (isinstance(outcome, Raised) and outcome.failure.is_a(UNKNOWN_FUNCTION)):
            self._tried.pop(func, None)
            return outcome
        if func in self._unknown:
            return self.outcome_of(claim)
        if len(self._unknown) >= MOST_SET_ASIDE:
            return SetAside(outcome.failure.message)
        self._add(func, outcome.failure.message)
        return self.outcome_of(claim)

    def check_due(self) -> bool:
        """Whether `check` is due, which needs the workers."""
        return bool(self._unknown) and self._clock.monotonic() >= self._check_at

    def check(self, workers: Iterable[WorkerRecord], own_id: UUID, timeout_s: float) -> bool:
        """Find the functions that no live worker may know for too long; whether there are any.

        :param timeout_s: seconds without a heartbeat after which a worker is presumed dead.
        """
        now = self._clock.monotonic()
        self._check_at = now + min(_CHECK_EVERY_S, self._after_s / 10)
        serving = [
            worker
            for worker in workers
            if worker.id != own_id
            and worker.heartbeat_age_s <= timeout_s
            and self._queue in worker.queues
        ]
        for func, unknown in list(self._unknown.items()):
            if now - unknown.met_at > _DROP_AFTER_S:
                del self._unknown[func]
            elif any(func not in worker.unknown for worker in serving):
                unknown.since, unknown.overdue = now, False
            elif not unknown.overdue and now - unknown.since >= self._after_s:
                unknown.overdue = True
                logger.error(
                    "function_overdue queue=%s func=%s after_s=%g: no live worker knows it, so its "
                    "jobs fail",
                    self._queue,
                    shown(func),
                    self._after_s,
                )
        return any(unknown.overdue for unknown in self._unknown.values())

    def _wait(self, func: str, why: str) -> None:
        """Stop claiming set-aside jobs of a function for a while, longer after each vain try."""
        now = self._clock.monotonic()
        later = self._later.get(func)
        if later is None or now - later.look_up_at > _DROP_AFTER_S:
            if len(self._later) >= MOST_SET_ASIDE:
                del self._later[next(iter(self._later))]
            self._later[func] = _Later(_LOOK_UP_S, now + _LOOK_UP_S)
            logger.warning(
                "version_unknown queue=%s func=%s: the job waits for a worker that knows its "
                "version: %s",
                self._queue,
                shown(func),
                why,
            )
        elif now >= later.look_up_at:
            later.pause_s = min(2 * later.pause_s, _LONGEST_LOOK_UP_S)
            later.look_up_at = now + later.pause_s

    def _add(self, func: str, why: str) -> None:
        now = self._clock.monotonic()
        unknown = self._unknown.get(func) or self._tried.pop(func, None)
        if unknown is None:
            unknown = _Unknown(why, now, now, _LOOK_UP_S, now + _LOOK_UP_S)
        else:
            unknown.pause_s = min(2 * unknown.pause_s, _LONGEST_LOOK_UP_S)
            unknown.look_up_at = now + unknown.pause_s
        self._unknown[func] = unknown
        if func not in self._logged:
            if len(self._logged) < MOST_SET_ASIDE:
                self._logged.add(func)
            logger.warning(
                "function_unknown queue=%s func=%s: its jobs wait for a worker that knows it: %s",
                self._queue,
                shown(func),
                why,
            )
