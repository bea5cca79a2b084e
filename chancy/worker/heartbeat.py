"""Heartbeats of a worker: from its event loop, or else from a thread that it cannot block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable

from chancy.broker.contract import Heartbeat
from chancy.checks import check_number
from chancy.clock import Backoff
from chancy.errors import (
    LOCK_NOT_AVAILABLE,
    BrokerError,
    BrokerUnavailable,
    ChancyError,
    ConfigurationError,
    StatementFailed,
)

logger = logging.getLogger("chancy.worker")

#: A heartbeat that fails within this many seconds was refused: the server answered.
_REFUSED_S = 1.0
#: The thread sends a heartbeat when the last one of the event loop is older than so many intervals.
_OVERDUE = 1.25


def check_times(shutdown_timeout_s: float, heartbeat_s: float, heartbeat_timeout_s: float) -> None:
    """Raise `ConfigurationError` for times that a worker cannot use."""
    for name, seconds, least in (
        ("shutdown_timeout_s", shutdown_timeout_s, 0.0),
        ("heartbeat_s", heartbeat_s, math.ulp(0.0)),
        ("heartbeat_timeout_s", heartbeat_timeout_s, math.ulp(0.0)),
    ):
        check_number(seconds, name, whole=False)
        if not least <= seconds < math.inf:
            bound = "0 or more" if least == 0 else "more than 0"
            raise ConfigurationError(f"{name}={seconds:g} must be a number of seconds, {bound}")
    if heartbeat_timeout_s < 2 * heartbeat_s:
        raise ConfigurationError(
            f"heartbeat_timeout_s={heartbeat_timeout_s:g} must be at least twice "
            f"heartbeat_s={heartbeat_s:g}: one late heartbeat would count as a death"
        )


class HeartbeatThread:
    """Sends the heartbeats of a worker whose event loop is late with them, until stopped.

    The event loop calls `beat` at an interval. If it is blocked, or its session is stuck or lost,
    the thread sends heartbeats on a connection of its own, which it closes when the loop is back.

    A job that holds the interpreter's lock for longer than the heartbeat timeout stops it. Such
    jobs belong in the process executor.

    :param timeout_s: seconds without a heartbeat after which a worker is presumed dead.
    :param blocked_s: returns the seconds for which the event loop has been blocked; heartbeats
        report them.
    :param declared_dead: called once, in the loop that the thread was created in, when the store
        has no such worker any more.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        interval_s: float,
        timeout_s: float,
        blocked_s: Callable[[], float],
        declared_dead: Callable[[], None],
    ) -> None:
        self._heartbeat = heartbeat
        self._interval_s = interval_s
        # After an outage of this length, other workers may look dead until they send a heartbeat.
        self._gap_s = max(timeout_s - 1.5 * interval_s, 1.5 * interval_s)
        self._blocked_s = blocked_s
        self._declared_dead = declared_dead
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chancy heartbeat", daemon=True)
        # Start of the last answered heartbeat, and of the first one since, by this machine's clock.
        self._answered_at = time.monotonic()
        self._sent_at: float | None = None
        # Start of the last heartbeat that reached the server, and of the first one of those before
        # it without a gap.
        self._heard_at = self._contact_since = self._answered_at
        #: Start of the last heartbeat of the event loop that was answered.
        self._loop_beat_at = self._answered_at
        self._dead = False

    @property
    def unanswered_s(self) -> float:
        """Seconds since the start of the last answered heartbeat, if one has gone without an answer
        for half an interval; 0 otherwise.

        A refused connection counts as an answer: usually the server is then unavailable to all
        workers, and none of them is declared dead. A statement that fails does not count, nor does
        a connection that a running server refuses, for example because it has too many: the server
        executes those of other workers, which declare this one dead.
        """
        now, sent_at = time.monotonic(), self._sent_at
        if sent_at is None or now - sent_at < min(_REFUSED_S, self._interval_s / 2):
            return 0.0
        return now - self._answered_at

    @property
    def heard_at(self) -> float:
        """Start of the last heartbeat that reached the server, by the monotonic clock."""
        return self._heard_at

    @property
    def contact_s(self) -> float:
        """Seconds for which heartbeats have reached the server without a gap; 0 in an outage."""
        now = time.monotonic()
        return now - self._contact_since if now - self._heard_at <= self._gap_s else 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop and to close its connection. Does not wait."""
        self._stopping.set()

    async def wait_stopped(self, timeout_s: float) -> None:
        """Wait until the connection is closed, at most ``timeout_s`` seconds.

        Uses no thread of the loop's executor: all of them may be busy with jobs that hang.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), timeout_s)

    async def beat(self, send: Callable[[float], Awaitable[bool]]) -> None:
        """Send a heartbeat from the event loop. If it fails, the thread sends one soon.

        :param send: sends it, with the seconds for which the event loop has been blocked.
        """
        began = time.monotonic()
        if self._sent_at is None:
            self._sent_at = began
        try:
            known = await send(self._blocked_s())
        except BrokerError as error:
            if _is_locked(error):
                self._heard(began)
            return
        self._loop_beat_at = began
        self._heard(began)
        if not known:
            self.stop()
            self._report_dead()

    def _heard(self, began: float) -> None:
        """Note a heartbeat that has reached the server."""
        if began - self._heard_at > self._gap_s:
            self._contact_since = began
        self._heard_at = self._answered_at = began
        self._sent_at = None

    def _report_dead(self) -> None:
        if not self._dead:
            self._dead = True
            self._declared_dead()

    def _run(self) -> None:
        backoff = Backoff(base_s=0.2, cap_s=self._interval_s)
        pause, sends = 0.0, False
        try:
            while not self._stopping.wait(pause):
                pause = self._interval_s
                began = time.monotonic()
                due_s = self._loop_beat_at + _OVERDUE * self._interval_s - began
                if due_s > 0:
                    if sends:
                        self._heartbeat.close()
                    pause, sends = due_s, False
                    continue
                sends = True
                if self._sent_at is None:
                    self._sent_at = began
                try:
                    if not self._heartbeat.beat(self._blocked_s()):
                        self._call_in_loop(self._report_dead)
                        return
                    self._heard(began)
                    backoff.reset()
                except ChancyError as error:
                    if _is_locked(error):
                        self._heard(began)
                        # The next transaction that gets the lock is the one that waits for it.
                        backoff.reset()
                    pause = backoff.next_s()
                    away = isinstance(error, BrokerUnavailable) and not error.refused
                    if away and time.monotonic() - began < _REFUSED_S:
                        self._answered_at, self._sent_at = began, None
                    logger.warning("heartbeat_failed next_try_s=%.1f error=%s", pause, error)
                except Exception:
                    pause = backoff.next_s()
                    logger.exception("heartbeat_failed next_try_s=%.1f", pause)
        finally:
            try:
                self._heartbeat.close()
            finally:
                self._call_in_loop(self._stopped.set)

    def _call_in_loop(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(callback)


def _is_locked(error: ChancyError) -> bool:
    """Whether another transaction has locked the worker's row. The worker is still registered then:
    no other transaction can remove the row meanwhile."""
    return isinstance(error, StatementFailed) and error.sqlstate == LOCK_NOT_AVAILABLE
