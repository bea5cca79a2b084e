"""Saying that the worker lives, from a thread that the event loop cannot hold up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable

from chancy.broker.contract import Heartbeat
from chancy.checks import check_number
from chancy.clock import Backoff
from chancy.errors import ChancyError, ConfigurationError

logger = logging.getLogger("chancy.worker")

#: A beat that fails within so many seconds was refused: somebody answered.
_REFUSED_S = 1.0


def check_times(shutdown_timeout_s: float, heartbeat_s: float, heartbeat_timeout_s: float) -> None:
    """Raise `ConfigurationError` for seconds that a worker cannot keep to."""
    for name, seconds, least in (
        ("shutdown_timeout_s", shutdown_timeout_s, 0.0),
        ("heartbeat_s", heartbeat_s, math.ulp(0.0)),
        ("heartbeat_timeout_s", heartbeat_timeout_s, math.ulp(0.0)),
    ):
        check_number(seconds, name, whole=False)
        if not least <= seconds < math.inf:
            bound = "0 or more" if least == 0 else "more than 0"
            raise ConfigurationError(f"{name}={seconds:g} must be {bound}, and a number of seconds")
    if heartbeat_timeout_s < 2 * heartbeat_s:
        raise ConfigurationError(
            f"heartbeat_timeout_s={heartbeat_timeout_s:g} must be at least twice "
            f"heartbeat_s={heartbeat_s:g}: one late beat would count as a death"
        )


class HeartbeatThread:
    """Beats at an interval until stopped.

    What it cannot survive: a job that holds the interpreter's lock for longer than the heartbeat
    timeout. Such jobs belong into the process executor.

    :param declared_dead: called in the loop that this was made in, once, when the store no longer
        knows the worker.
    """

    def __init__(
        self, pulse: Heartbeat, *, interval_s: float, declared_dead: Callable[[], None]
    ) -> None:
        self._pulse = pulse
        self._interval_s = interval_s
        self._declared_dead = declared_dead
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chancy heartbeat", daemon=True)
        # By this machine's clock, when the last beat that was answered began, and the first one
        # since.
        self._heard_at = time.monotonic()
        self._asked_at: float | None = None

    @property
    def unheard_s(self) -> float:
        """Seconds since the beginning of the last beat that was answered, if one has been without
        an answer for half an interval; 0 otherwise.

        A refusal is an answer: as a rule the server is away then, for others too, and nobody is
        declared dead.
        """
        now, asked_at = time.monotonic(), self._asked_at
        if asked_at is None or now - asked_at < min(_REFUSED_S, self._interval_s / 2):
            return 0.0
        return now - self._heard_at

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it closes its connection. Does not wait."""
        self._stopping.set()

    async def ended(self, timeout_s: float) -> None:
        """Wait at most so long until the connection is closed.

        In no thread of the loop's own: all of them may be in calls of jobs that hang.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)

    def _run(self) -> None:
        backoff = Backoff(base_s=0.2, cap_s=self._interval_s)
        pause = 0.0
        try:
            while not self._stopping.wait(pause):
                pause = self._interval_s
                began = time.monotonic()
                if self._asked_at is None:
                    self._asked_at = began
                try:
                    if not self._pulse.beat():
                        self._tell(self._declared_dead)
                        return
                    self._heard_at, self._asked_at = began, None
                    backoff.reset()
                except ChancyError as error:
                    pause = backoff.next_s()
                    if time.monotonic() - began < _REFUSED_S:
                        self._heard_at, self._asked_at = began, None
                    logger.warning("heartbeat_failed next_try_s=%.1f error=%s", pause, error)
                except Exception:
                    pause = backoff.next_s()
                    self._heard_at, self._asked_at = began, None
                    logger.exception("heartbeat_failed next_try_s=%.1f", pause)
        finally:
            try:
                self._pulse.close()
            finally:
                self._tell(self._ended.set)

    def _tell(self, what: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(what)
