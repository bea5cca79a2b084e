"""Backpressure: the sends of one process that wait for room in a partition queue up in order."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Self

from chancy.plugins.redis.streams.producing.batch import Part

#: Seconds between two attempts to find room: doubled from the first value up to the last.
FIRST_LOOK_S, LAST_LOOK_S = 0.005, 0.25


class Backpressure:
    """The sends that wait for room in each partition of a stream, for all loops and threads.

    The queues are deques and each change is one atomic operation, so they need no lock.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[SendWait]] = {}

    def waited(self, partition: int) -> bool:
        """Return whether a send waits for room in a partition."""
        return bool(self._lines.get(partition))

    def line(self, partition: int) -> deque[SendWait]:
        """Return the queue of sends that wait for a partition, first one first."""
        return self._lines.setdefault(partition, deque())


class SendWait:
    """One send, with its place in the queue of each partition in which it waits for room.

    :param timeout_s: seconds after which it gives up, and is skipped.
    :param wake: called from any thread when the send may be the first in a queue.
    :param over: whether the send can never be woken because its loop is closed: it is skipped.
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
        # Partitions in which it has not been first in the queue yet.
        self._behind: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave(self.parts)

    @property
    def parts(self) -> Sequence[Part]:
        """The parts that wait for room."""
        return list(self._parts.values())

    @property
    def refused(self) -> Sequence[Part]:
        """The waiting parts that were first in their queue and found no room."""
        return [part for part in self.parts if part.partition not in self._behind]

    @property
    def left_s(self) -> float:
        """Seconds until it gives up."""
        return self._until - time.monotonic()

    def pause_s(self) -> float:
        """Return the seconds until the next attempt, unless it is woken before."""
        look_s, self._look_s = self._look_s, min(LAST_LOOK_S, self._look_s * 2)
        return max(0.0, min(self.left_s, look_s * random.uniform(0.5, 1.0)))

    def free(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts whose partitions have an empty queue; queue the others."""
        self.join([part for part in parts if self._backpressure.waited(part.partition)])
        self._behind = {*self._parts}
        return [part for part in parts if part.partition not in self._parts]

    def join(self, parts: Collection[Part]) -> None:
        """Append this send to the queues of these parts."""
        for part in parts:
            self._parts[part.partition] = part
            self._backpressure.line(part.partition).append(self)

    def first(self) -> list[Part]:
        """Return the parts that are first in their queue."""
        found = [part for part in self._parts.values() if self._leads(part.partition)]
        self._behind.difference_update(part.partition for part in found)
        return found

    def leave(self, parts: Collection[Part], *, but: Collection[Part] = ()) -> None:
        """Leave the queues of these parts, and wake the sends that are first then.

        :param but: parts that stay in their queue.
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
        """Wake the send, which may be first in a queue. From any thread."""
        self._look_s = FIRST_LOOK_S
        with suppress(RuntimeError):  # its loop is closed: it is skipped later
            self._wake()

    def _leads(self, partition: int) -> bool:
        line = self._backpressure.line(partition)
        for send in line.copy():
            if send is self:
                return True
            if send.left_s > 0 and not send.over():
                return False
            # It is about to give up, or its loop is closed: skip it.
            _remove(line, send)
        return False


def _remove(line: deque[SendWait], send: SendWait) -> None:
    with suppress(ValueError):  # the send behind it has already removed it
        line.remove(send)
