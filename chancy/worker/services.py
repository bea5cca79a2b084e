"""Long-running loops of a worker, restarted when they fail."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from chancy.clock import Backoff, Clock, is_being_cancelled
from chancy.containment import HookFailed
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.worker.shutdown import tear_down

logger = logging.getLogger("chancy.worker")

Loop = Callable[[], Awaitable[None]]

#: The longest pause after a failure.
_LONGEST_S = 10.0
#: A loop that has run for this many seconds has recovered: its next failure resets the back-off.
_RECOVERED_AFTER_S = _LONGEST_S


class ServiceLoops:
    """Runs loops concurrently until they are stopped.

    A loop that raises is restarted after a back-off. A loop that returns is finished.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, loop: Loop) -> None:
        if name in self._tasks:
            raise RuntimeError(f"the service {name!r} is already running")
        self._tasks[name] = asyncio.create_task(self._run(name, loop), name=f"chancy {name}")

    def runs(self, name: str) -> bool:
        """Whether a loop runs. Other code may have cancelled it: `asyncio.run` cancels all tasks
        when the event loop is stopped."""
        task = self._tasks.get(name)
        return task is not None and not task.done() and not task.cancelling()

    async def stop(self, *names: str) -> None:
        """Cancel loops in order, and wait until they have ended. Unknown names are ignored."""
        await tear_down(*(functools.partial(self._stop, name) for name in names))

    async def stop_all(self) -> None:
        """Stop every loop, most recently started first; also those that start meanwhile."""
        while self._tasks:
            await self.stop(*reversed(self._tasks))

    async def _stop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])

    async def _run(self, name: str, loop: Loop) -> None:
        backoff = Backoff(base_s=0.2, cap_s=_LONGEST_S)
        failures = 0
        while True:
            began = self._clock.monotonic()
            try:
                await loop()
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                if name not in self._tasks:
                    # It failed while it was being stopped: do not restart it.
                    logger.warning("worker_loop_stop_failed name=%s error=%s", name, error)
                    return
                if self._clock.monotonic() - began > _RECOVERED_AFTER_S:
                    backoff.reset()
                failures += 1
                pause = backoff.next_s()
                if not isinstance(error, HookFailed):  # which is logged already
                    values = (name, failures, pause, type(error).__name__, error)
                    # No trace is logged for a lock that is held, or for an outage.
                    if isinstance(error, StatementFailed) and error.retryable:
                        logger.warning(
                            "worker_loop_failed name=%s failures=%d next_try_s=%.1f error=%s: %s",
                            *values,
                        )
                    else:
                        logger.error(
                            "worker_loop_failed name=%s failures=%d next_try_s=%.1f error=%s: %s",
                            *values,
                            exc_info=not isinstance(error, BrokerUnavailable),
                        )
                await self._clock.sleep(pause)
            else:
                return
