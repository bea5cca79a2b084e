"""Runs a coroutine as the main program until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: A terminal and the parent process may each send the same signal.
_SAME_S = 1.0


def run_until_signalled(serve: Callable[[], Coroutine[Any, Any, None]], *, signals: int) -> None:
    """Run `serve`, and cancel it at each signal.

    :param signals: how many are handled. The next one, at least a second later, ends the process at
        once.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(serve())
        numbers = itertools.count(1)

        def stop() -> None:
            number = next(numbers)
            if number <= signals:
                serving.cancel()
            if number == signals:
                _end_at_the_next()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        asyncio.run(main())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_at_the_next() -> None:
    last = time.monotonic()

    def end(number: int, frame: object) -> None:
        if time.monotonic() - last >= _SAME_S:
            os._exit(128 + number)

    for number in _SIGNALS:
        # In place of that of the loop, which the program may block. To remove that one first would
        # leave the default for a moment, in which another signal ends the process.
        signal.signal(number, end)
