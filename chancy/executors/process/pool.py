"""The children of a process executor: so many of them at all times."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from chancy.executors.process.child_handle import RECYCLED, STOPPED, ChildProcess

logger = logging.getLogger("chancy.executors.process")

#: Seconds before a child is started again that died before it was ready: the first, and the most.
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
#: Seconds that a child may take to be ready, its initializer included.
BOOT_S = 60.0
#: Seconds that idle children have to end when the executor stops.
STOP_GRACE_S = 2.0


class ChildPool:
    """Starts children, replaces those that end, and relieves those that are spent.

    :param make: makes a child of a number, not started yet. Raises OSError if it cannot.
    :param changed: called when there are other children that can take calls.
    :param start: starts it, with a path to look for modules. Raises OSError if it cannot.
    :param sys_path: where children look for modules; None takes ``sys.path`` as it is at start.
    """

    def __init__(
        self,
        size: int,
        make: Callable[[int], ChildProcess],
        changed: Callable[[], None],
        *,
        start: Callable[[ChildProcess, Sequence[str]], None],
        sys_path: Sequence[str] | None,
    ) -> None:
        self._size = size
        self._make = make
        self._changed = changed
        self._start = start
        self._sys_path = sys_path
        self._living: set[ChildProcess] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._why: str | None = None
        # Numbers without a child that takes calls, and without one that will in a moment.
        self._failing = set(range(1, size + 1))
        #: Those that can take calls.
        self.ready: list[ChildProcess] = []

    @property
    def broken(self) -> str | None:
        """Why no child can take calls; None if one can, or will in a moment."""
        return self._why if len(self._failing) == self._size else None

    def count_slots(self) -> int:
        """How many calls they may have in hand, together with those that are to come at once."""
        slots = 0
        able: list[ChildProcess] = []
        for child in self.ready:
            child.counted = depth = child.depth
            slots += depth
            if depth:
                able.append(child)
        if len(able) + len(self._failing) != self._size:
            numbers = self._failing.union(child.number for child in able)
            slots += self._size - len(numbers)
        return slots

    async def start(self) -> None:
        """Start the children side by side; returns once each is ready, or has failed once."""
        path = sys.path if self._sys_path is None else self._sys_path
        self._sys_path = [entry or os.getcwd() for entry in path]
        loop = asyncio.get_running_loop()
        tried: list[asyncio.Future[None]] = []
        for number in range(1, self._size + 1):
            tried.append(loop.create_future())
            keeper = self._keep(number, tried[-1])
            self._keepers.append(asyncio.create_task(keeper, name=f"chancy-child-{number}"))
        await asyncio.gather(*tried)

    async def stop(self) -> None:
        """End the children: idle ones by themselves, others by force after a grace."""
        self._stop.set()
        for child in list(self._living):
            child.hang_up(STOP_GRACE_S)
        await asyncio.gather(*self._keepers)
        await asyncio.gather(*(child.gone for child in self._living))
        self._keepers.clear()

    async def _keep(self, number: int, tried: asyncio.Future[None]) -> None:
        """Have a child with this number at all times."""
        delay_s = FIRST_DELAY_S
        predecessor: ChildProcess | None = None
        while not self._stop.is_set():
            child = await self._begin(number)
            if not tried.done():
                tried.set_result(None)
            if self._stop.is_set():
                return
            why: str | None = None
            if isinstance(child, ChildProcess):
                delay_s = FIRST_DELAY_S
                self._take_on(child, predecessor)
                predecessor = child
                await child.spent
                if child.gone.done() and child.idle_all_its_life:
                    why = f"{child.gone.result()} before it ran anything"
            else:
                why = child
                logger.error(
                    "child %d %s before it was ready: the next try is in %g s", number, why, delay_s
                )
            if why is not None:
                self._why = f"child {number} {why}"
                if all(child.number != number for child in self.ready):
                    self._failing.add(number)
                self._changed()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), delay_s)
                delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def _begin(self, number: int) -> ChildProcess | str:
        """Start a child. Returns it once it is ready, or why it is not."""
        try:
            # Without descriptors it cannot even be made.
            child = self._make(number)
            self._start(child, self._sys_path or ())
        except Exception as error:
            return f"could not be started: {error}"
        self._living.add(child)
        if self._stop.is_set():
            child.hang_up(STOP_GRACE_S)
        _, waiting = await asyncio.wait([child.ready], timeout=BOOT_S)
        if waiting:
            child.kill(f"was killed because it took longer than {BOOT_S:g} s")
        why = await child.ready
        if why is None:
            return child
        await child.gone
        self._living.discard(child)
        return why

    def _take_on(self, child: ChildProcess, predecessor: ChildProcess | None) -> None:
        self.ready.append(child)
        self._failing.discard(child.number)
        child.gone.add_done_callback(lambda gone: self._dismiss(child, gone.result()))
        if predecessor is not None:
            predecessor.leave()
        self._changed()

    def _dismiss(self, child: ChildProcess, how: str) -> None:
        self.ready.remove(child)
        self._living.discard(child)
        if not self._stop.is_set():
            planned = how in (STOPPED, RECYCLED)
            level = logging.INFO if planned else logging.WARNING
            logger.log(level, "child %d %s: it is replaced", child.number, how)
            self._changed()
