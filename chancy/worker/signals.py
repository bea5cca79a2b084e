"""SIGTERM and SIGINT: once to end in good order, twice to end now."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable

logger = logging.getLogger("chancy.worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Calls back for signals while installed. Only the main thread can receive them.

    :param asked: called with True from the second signal on.
    """

    def __init__(self, asked: Callable[[bool], None]) -> None:
        self._asked = asked
        self._count = 0
        self._installed = False

    def install(self) -> None:
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._received, number)
        self._installed = True

    def remove(self) -> None:
        if not self._installed:
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        self._installed = False

    def _received(self, number: int) -> None:
        self._count += 1
        logger.info("signal_received signal=%s count=%d", signal.Signals(number).name, self._count)
        self._asked(self._count > 1)
