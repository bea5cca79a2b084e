"""The pool of processes of a process executor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from chancy.executors.process.child_handle import RECYCLED, STOPPED, ChildProcess

logger = logging.getLogger("chancy.executors.process")

#: First and longest pause in seconds before another start, if an executor process dies early.
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
#: Seconds that an executor process may take to be ready, including its initializer.
BOOT_S = 60.0
#: Seconds that idle executor processes have to exit when the executor stops.
STOP_GRACE_S = 2.0


class ChildPool:
    """Keeps a fixed number of executor processes running, and replaces those that exit or retire.

    :param make: creates an executor process with a number, unstarted. May raise OSError.
    :param changed: called when the set of executor processes that accept calls has changed.
    :param start: starts an executor process with a module search path. May raise OSError.
    :param sys_path: module search path; None takes ``sys.path`` at start.
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
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._why: str | None = None
        # Numbers without an executor process that accepts calls or is about to.
        self._failing = set(range(1, size + 1))
        #: Executor processes that accept calls.
        self.ready: list[ChildProcess] = []

    @property
    def broken(self) -> str | None:
        """Why no executor process accepts calls; None if one does or is about to."""
        return self._why if len(self._failing) == self._size else None

    def count_slots(self) -> int:
        """Number of calls that they may hold, including those of processes about to be ready."""
        slots = 0
        accepting: list[ChildProcess] = []
        for child in self.ready:
            child.counted = depth = child.depth
            slots += depth
            if depth:
                accepting.append(child)
        if len(accepting) + len(self._failing) != self._size:
            numbers = self._failing.union(child.number for child in accepting)
            slots += self._size - len(numbers)
        return slots

    async def start(self) -> None:
        """Start the executor processes; returns once each is ready or has failed once."""
        path = sys.path if self._sys_path is None else self._sys_path
        self._sys_path = [entry or os.getcwd() for entry in path]
        loop = asyncio.get_running_loop()
        tried: list[asyncio.Future[None]] = []
        for number in range(1, self._size + 1):
            tried.append(loop.create_future())
            run = self._keep_running(number, tried[-1])
            self._tasks.append(asyncio.create_task(run, name=f"chancy-child-{number}"))
        await asyncio.gather(*tried)

    async def stop(self) -> None:
        """Stop the executor processes: they exit when idle, and are killed after a grace period."""
        self._stop.set()
        for child in list(self._living):
            child.close(STOP_GRACE_S)
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(child.exited for child in self._living))
        self._tasks.clear()

    async def _keep_running(self, number: int, tried: asyncio.Future[None]) -> None:
        """Keep an executor process with this number running."""
        delay_s = FIRST_DELAY_S
        predecessor: ChildProcess | None = None
        while not self._stop.is_set():
            child = await self._start_one(number)
            if not tried.done():
                tried.set_result(None)
            if self._stop.is_set():
                return
            why: str | None = None
            if isinstance(child, ChildProcess):
                delay_s = FIRST_DELAY_S
                self._add(child, predecessor)
                predecessor = child
                await child.successor_needed
                if child.exited.done() and child.never_used:
                    why = f"{child.exited.result()} before it ran anything"
            else:
                why = child
                logger.error(
                    "child %d %s before it was ready: the next try is in %g s", number, why, delay_s
                )
            if why is not None:
                self._why = f"executor process {number} {why}"
                if all(child.number != number for child in self.ready):
                    self._failing.add(number)
                self._changed()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), delay_s)
                delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def _start_one(self, number: int) -> ChildProcess | str:
        """Start an executor process. Returns it once it is ready, or why it is not."""
        try:
            # Without free descriptors it cannot even be created.
            child = self._make(number)
            self._start(child, self._sys_path or ())
        except Exception as error:
            return f"could not be started: {error}"
        self._living.add(child)
        if self._stop.is_set():
            child.close(STOP_GRACE_S)
        _, waiting = await asyncio.wait([child.ready], timeout=BOOT_S)
        if waiting:
            child.kill(f"was killed because its start took longer than {BOOT_S:g} s")
        why = await child.ready
        if why is None:
            return child
        await child.exited
        self._living.discard(child)
        return why

    def _add(self, child: ChildProcess, predecessor: ChildProcess | None) -> None:
        self.ready.append(child)
        self._failing.discard(child.number)
        child.exited.add_done_callback(lambda exited: self._remove(child, exited.result()))
        if predecessor is not None:
            predecessor.retire()
        self._changed()

    def _remove(self, child: ChildProcess, how: str) -> None:
        self.ready.remove(child)
        self._living.discard(child)
        if not self._stop.is_set():
            planned = how in (STOPPED, RECYCLED)
            level = logging.INFO if planned else logging.WARNING
            logger.log(level, "child %d %s: it is replaced", child.number, how)
            self._changed()
