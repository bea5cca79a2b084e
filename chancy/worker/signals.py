"""SIGTERM and SIGINT: the first signal shuts down gracefully, the second at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import Any

logger = logging.getLogger("chancy.worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

_DEFAULTS: Mapping[int, _Handler] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


class Signals:
    """Signal handlers of a worker. Only the main thread can receive signals.

    They are not installed with the event loop: a job that forks shares the loop's descriptors, and
    signals to the copy would reach this process.

    :param on_signal: called in the event loop, with True from the second signal on.
    :param stop: stops the worker, and calls `remove`.
    """

    def __init__(
        self, on_signal: Callable[[bool], None], stop: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._on_signal = on_signal
        self._stop = stop
        self._stop_task: asyncio.Task[None] | None = None
        self._count = 0
        self._previous: dict[int, _Handler] = {}
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        # Whether the application waits for signals. Otherwise SIGTERM is only deferred.
        self._awaited = False
        #: Set when the worker has started.
        self.started = asyncio.Event()

    def defer(self) -> None:
        """Handle SIGTERM if it would kill the process; it then kills it after `remove` instead."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._catch(signal.SIGTERM)

    def install(self) -> None:
        """Handle both signals for an application that waits for them."""
        self._awaited = True
        for number in _SIGNALS:
            self._catch(number)

    def remove(self) -> None:
        """Restore the previous handlers, and raise a deferred SIGTERM again."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
        deferred = self._count > 0 and not self._awaited
        self._previous.clear()
        self.started.clear()
        self._stop_task = None
        self._count, self._awaited = 0, False
        if deferred:
            signal.raise_signal(signal.SIGTERM)

    def _catch(self, number: signal.Signals) -> None:
        if number in self._previous or threading.current_thread() is not threading.main_thread():
            return
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._previous[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None or self._loop.is_closed() or self._pid != os.getpid():
            # The loop was closed while its worker ran, or this is a forked copy of the process.
            signal.signal(number, _DEFAULTS[number])
            signal.raise_signal(number)
        else:
            self._count += 1
            self._loop.call_soon_threadsafe(self._received, number, self._count)

    def request(self) -> None:
        """Shut down as by the first signal. A process that does not wait for signals continues."""
        self._shut_down(False)

    def _received(self, number: int, count: int) -> None:
        if self._previous:
            logger.info("signal_received signal=%s count=%d", signal.Signals(number).name, count)
            self._shut_down(count > 1)

    def _shut_down(self, at_once: bool) -> None:
        self._on_signal(at_once)
        if not self._awaited and self._stop_task is None:
            task = asyncio.create_task(self._stop_unawaited(), name="chancy end by a signal")
            self._stop_task = task

    async def _stop_unawaited(self) -> None:
        """Stop the worker of an application that does not wait for the signal."""
        await self.started.wait()
        await self._stop()
