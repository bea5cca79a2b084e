"""An owned partition: the buffers between the fetcher and the processor."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from chancy.plugins.redis.streams.model.event import Event

R = TypeVar("R")

logger = logging.getLogger("chancy.redis.streams")

#: Seconds for which acknowledgements wait to be sent together.
FLUSH_S = 0.005
#: Maximum bytes of a partition in memory, by the mean of its events; at least one event, and at
#: least one batch.
PARTITION_BYTES = 4 * 1024 * 1024


class OwnedPartition(Generic[R]):
    """The state of an owned partition, and its events that wait in memory.

    The processor takes from ``buffer`` and adds to ``acked``, in the loop or in a thread: both
    are deques, so neither needs a lock. Everything else belongs to the loop.

    :ivar deadline: the earliest possible end of the lease, on this machine's monotonic clock: no
        event is passed to the processor after it. Redis checks reads and acknowledgements itself.
    :ivar taken: events that the processor has taken and not acknowledged.
    :ivar finished: number of events that the processor has finished.
    :ivar cursor: the id after which pending entries are read; None: new entries are read.
    :ivar last: the id of the last entry that was read.
    :ivar confirmed: the last id whose acknowledgement Redis has confirmed; "" before the first.
    :ivar lowered: the first of the entries that came with lower ids than earlier ones, until it is
        acknowledged; "" otherwise.
    :ivar inherited: entries read by the cursor were delivered to a former owner.
    :ivar more: there may be entries to read.
    :ivar mean: mean bytes of recent events; 0 before the first one.
    :ivar releasing: the partition is being released, or was: nothing is acknowledged any more.
    :ivar fetching: an exchange is in flight; ``still`` is set otherwise.
    :ivar exchanges: number of exchanges that were started.
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        deadline: float,
        *,
        prefetch: int,
        pending: int,
        last: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.deadline = deadline
        self.prefetch = prefetch
        self.low = prefetch // 2
        self.mean = 0.0
        self._most = prefetch
        self._batch = 1
        self._resizing = threading.Lock()
        self.buffer: deque[Event[R]] = deque()
        self.taken: deque[Event[R]] = deque()
        self.acked: deque[str] = deque()
        self.finished = 0
        self.cursor: str | None = "0-0" if pending else None
        self.inherited = pending > 0
        self.last = last
        self.confirmed = self.lowered = ""
        self.more = True
        self.fetching = False
        self.exchanges = 0
        self.still = asyncio.Event()
        self.still.set()
        self.flush = False
        self.closing = False
        self.lost = self.releasing = False
        self._loss_unreported = threading.Lock()
        self.starving = False
        #: The error by which its policy halted it.
        self.halted = ""
        #: Requests an exchange from the fetcher; set by the fetcher, called in the loop.
        self.poke: Callable[[OwnedPartition[R]], None] = _no_fetcher
        #: Set when no more events are passed to the processor.
        self.ended = asyncio.Event()
        #: Set when the partition was released, or the release has failed.
        self.returned = asyncio.Event()
        #: Called with the deadline whenever it changes, 0 when the ownership ends; from any thread.
        self.mirror: Callable[[float], None] = no_mirror
        self._arrived = asyncio.Event()
        self._asked = False
        self._flushing = False
        self._loop = loop

    # For the processor's side, in the loop or in a thread

    @property
    def over(self) -> bool:
        """Whether no more events may be passed to the processor."""
        return self.closing or time.monotonic() >= self.deadline

    def finish(self) -> None:
        """Acknowledge all taken events. Called when the processor requests more."""
        self.finish_some(len(self.taken))

    def finish_some(self, count: int) -> None:
        """Acknowledge the first of the taken events."""
        taken, acked = self.taken, self.acked
        if self.releasing:
            return  # a thread was too late: the events belong to the next owner
        for _ in range(count):
            acked.append(taken.popleft().xid)
        self.finished += count
        # Set after the append and cleared before the flush: a thread that checked whether ``acked``
        # was empty could see ids that are just being flushed, and would not schedule a flush.
        if count and not self._flushing:
            self._flushing = True
            self._loop.call_soon_threadsafe(self._flush_soon)
        if len(self.buffer) <= self.low and not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self.poke, self)

    def put_back(self) -> None:
        """Return the taken events to the front of the buffer, in order."""
        self.buffer.extendleft(reversed(self.taken))
        self.taken.clear()

    async def filled(self, wanted: int = 1, timeout_s: float | None = None) -> bool:
        """Wait until enough events are buffered or the timeout; False if the ownership ended."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while len(self.buffer) < wanted and not self.over:
            self._arrived.clear()
            self.starving = not self.buffer
            self.poke(self)
            left = self.deadline - time.monotonic()
            if until is not None:
                left = min(left, until - time.monotonic())
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                continue
        self.starving = False
        return not self.over

    def filled_blocking(self, wanted: int = 1, timeout_s: float | None = None) -> bool:
        """`filled`, for a thread."""
        waiting = asyncio.run_coroutine_threadsafe(self.filled(wanted, timeout_s), self._loop)
        return waiting.result()

    def widen(self, wanted: int) -> None:
        """Raise the buffer size to at least one batch."""
        with self._resizing:
            self._batch = max(self._batch, wanted)
            self._resize()

    # For the fetcher's side, in the loop

    @property
    def room(self) -> int:
        """The number of events to fetch."""
        have = len(self.buffer)
        return self.prefetch - have if have <= self.low else 0

    def weigh(self, mean: float) -> None:
        """Adapt the buffer size to the size of events.

        :param mean: mean bytes of the events just read.
        """
        # Rises at once, falls gradually: fetching too few costs a round trip, too many memory.
        self.mean = max(mean, (self.mean + mean) / 2)
        with self._resizing:
            self._resize()

    def _resize(self) -> None:
        most = max(
            self._batch, min(self._most, int(PARTITION_BYTES / self.mean) if self.mean else 1 << 30)
        )
        self.prefetch, self.low = most, max(most // 2, self._batch - 1)

    def start_exchange(self) -> None:
        """Mark an exchange as in flight."""
        self.fetching = True
        self.exchanges += 1
        self.still.clear()

    async def hold(self) -> None:
        """Wait until no exchange is in flight and block further ones."""
        while self.fetching:
            # The fetcher may start the next exchange before this task resumes.
            await self.still.wait()
        self.start_exchange()

    def end_exchange(self) -> None:
        """Mark the exchange as ended."""
        self.fetching = False
        self.still.set()

    def arrive(self) -> None:
        """Wake the processor: events have arrived, or the partition closes."""
        self._asked = False
        self._arrived.set()

    def close(self) -> None:
        """Pass no more events to the processor; it may finish the current ones."""
        self.closing = True
        self.ended.set()
        self.mirror(0.0)
        self._arrived.set()

    def extended(self, deadline: float) -> None:
        """Extend the deadline. From any thread."""
        if not self.lost:
            self.deadline = max(self.deadline, deadline)
            if not self.closing:
                self.mirror(self.deadline)
            if self.closing:
                self.mirror(0.0)  # it was closed in between

    def lose(self) -> None:
        """Mark the partition as lost: another member owns it, or may."""
        self.lost = True
        self.deadline = 0.0
        self.close()

    def first_loss_report(self) -> bool:
        """Return True for the first caller only, which reports the loss. From any thread."""
        return self._loss_unreported.acquire(blocking=False)

    def _flush_soon(self) -> None:
        if self.starving:
            self._flush()
        else:
            self._loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.flush = True
        self.poke(self)


def report_loss(processor: str, partition: OwnedPartition[R], why: str) -> None:
    """Log that a partition is lost, and why; once for each partition. From any thread.

    :param processor: ``stream/processor``.
    """
    if partition.first_loss_report():
        logger.warning(
            "partition_lost processor=%s partition=%d epoch=%d: %s",
            processor,
            partition.number,
            partition.epoch,
            why,
            extra={"partition": partition.number},
        )


def _no_fetcher(_: OwnedPartition[R]) -> None:
    """No fetcher yet."""


def no_mirror(_: float) -> None:
    """No child process reads the deadline."""
