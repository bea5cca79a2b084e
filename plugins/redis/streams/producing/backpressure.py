"""Turns: sends of one process that wait for room in a partition wait one behind the other."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Self

from chancy.plugins.redis.streams.producing.batch import Part

#: Seconds between two looks for room: they double from the first to the last.
FIRST_LOOK_S, LAST_LOOK_S = 0.005, 0.25


class Backpressure:
    """Who waits for room in which partition of a stream, for all loops and threads.

    The lines are deques, and each change of one is a single step of it: they need no lock.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[SendWait]] = {}

    def waited(self, partition: int) -> bool:
        """Whether somebody waits for room there."""
        return bool(self._lines.get(partition))

    def line(self, partition: int) -> deque[SendWait]:
        """Those that wait there, the first one first."""
        return self._lines.setdefault(partition, deque())


class SendWait:
    """One send, with its place in the line of each partition in which it waits for room.

    :param timeout_s: seconds after which it gives up, and is passed over.
    :param wake: is told that a turn may have come; by any thread.
    :param over: whether it can never be woken again, as its loop is closed: it is passed over.
    """

    def __init__(
        self,
        backpressure: Backpressure,
        timeout_s: float,
        wake: Callable[[], object],
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._backpressure = backpressure
        self._until = time.monotonic() + timeout_s
        self._wake = wake
        self._look_s = FIRST_LOOK_S
        self.over = over
        self._parts: dict[int, Part] = {}
        # Those for which it has only stood in line yet.
        self._behind: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave(self.parts)

    @property
    def parts(self) -> Sequence[Part]:
        """What waits."""
        return list(self._parts.values())

    @property
    def refused(self) -> Sequence[Part]:
        """Of what waits that for which there was no room when its turn had come."""
        return [part for part in self.parts if part.partition not in self._behind]

    @property
    def left_s(self) -> float:
        """Seconds until it gives up."""
        return self._until - time.monotonic()

    def pause_s(self) -> float:
        """Seconds until the next look for room, unless it is woken before."""
        look_s, self._look_s = self._look_s, min(LAST_LOOK_S, self._look_s * 2)
        return max(0.0, min(self.left_s, look_s * random.uniform(0.5, 1.0)))

    def free(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Those for which nobody waits. The others get in line."""
        self.join([part for part in parts if self._backpressure.waited(part.partition)])
        self._behind = {*self._parts}
        return [part for part in parts if part.partition not in self._parts]

    def join(self, parts: Collection[Part]) -> None:
        """Get in line for these parts, behind those that are there."""
        for part in parts:
            self._parts[part.partition] = part
            self._backpressure.line(part.partition).append(self)

    def first(self) -> list[Part]:
        """The parts before which nobody waits."""
        found = [part for part in self._parts.values() if self._leads(part.partition)]
        self._behind.difference_update(part.partition for part in found)
        return found

    def leave(self, parts: Collection[Part], *, but: Collection[Part] = ()) -> None:
        """Get out of line with these parts, and let those go on that wait behind them.

        :param but: those of them that stay.
        """
        stay = {part.partition for part in but}
        for part in parts:
            if part.partition not in stay:
                del self._parts[part.partition]
                line = self._backpressure.line(part.partition)
                _remove(line, self)
                with suppress(IndexError):
                    line[0].notify()

    def notify(self) -> None:
        """Say that a turn of it may have come. From any thread."""
        self._look_s = FIRST_LOOK_S
        with suppress(RuntimeError):  # its loop is closed: it is passed over when its time comes
            self._wake()

    def _leads(self, partition: int) -> bool:
        line = self._backpressure.line(partition)
        for one in line.copy():
            if one is self:
                return True
            if one.left_s > 0 and not one.over():
                return False
            # It is about to give up, or its loop is closed: nobody shall wait for it.
            _remove(line, one)
        return False


def _remove(line: deque[SendWait], one: SendWait) -> None:
    with suppress(ValueError):  # whoever was behind it has done so
        line.remove(one)
