"""SIGTERM and SIGINT: once to end in good order, twice to end now."""

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

_BY_ITSELF: Mapping[int, _Handler] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


class Signals:
    """Calls back for signals. Only the main thread can receive them.

    These are not the handlers of an event loop: a copy of the process that a job makes by forking
    would hand its own signals to this one, whose descriptors it shares.

    :param asked: called in the event loop, with True from the second signal on.
    :param stop: ends what is to end, and calls `remove`.
    """

    def __init__(
        self, asked: Callable[[bool], None], stop: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._asked = asked
        self._stop = stop
        self._end: asyncio.Task[None] | None = None
        self._count = 0
        self._before: dict[int, _Handler] = {}
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        # Whether somebody waits for signals, or will. If not, they are only held up.
        self._awaited = False
        #: Set when what is to end has begun.
        self.begun = asyncio.Event()

    def hold_up(self) -> None:
        """Catch SIGTERM where it would kill the process, which it does after `remove` instead."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._catch(signal.SIGTERM)

    def install(self) -> None:
        """Catch them for somebody who waits."""
        self._awaited = True
        for number in _SIGNALS:
            self._catch(number)

    def remove(self) -> None:
        """Let handle them who did before; and let the process end that a held up one would have."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        held_up = self._count > 0 and not self._awaited
        self._before.clear()
        self.begun.clear()
        self._end = None
        self._count, self._awaited = 0, False
        if held_up:
            signal.raise_signal(signal.SIGTERM)

    def _catch(self, number: signal.Signals) -> None:
        if number in self._before or threading.current_thread() is not threading.main_thread():
            return
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._before[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None or self._loop.is_closed() or self._pid != os.getpid():
            # A loop that was left with its worker running, or a copy of the process.
            signal.signal(number, _BY_ITSELF[number])
            signal.raise_signal(number)
        else:
            self._count += 1
            self._loop.call_soon_threadsafe(self._received, number, self._count)

    def _received(self, number: int, count: int) -> None:
        if self._before:
            logger.info("signal_received signal=%s count=%d", signal.Signals(number).name, count)
            self._asked(count > 1)
            if not self._awaited and self._end is None:
                self._end = asyncio.create_task(self._end_unasked(), name="chancy end by a signal")

    async def _end_unasked(self) -> None:
        """End what nobody ends who waits for the signal: that is about to kill the process."""
        await self.begun.wait()
        await self._stop()
