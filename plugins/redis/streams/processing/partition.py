"""A partition: a partition while this worker owns it, between the fetcher and the processor."""

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

#: Seconds for which acknowledgements wait for others to go along.
FLUSH_S = 0.005
#: Bytes of a partition that wait in memory, by the mean of its events; one event at least, and as
#: many as a batch takes.
PARTITION_BYTES = 4 * 1024 * 1024


class OwnedPartition(Generic[R]):
    """What is known of an owned partition, and the events of it that wait in memory.

    The processor takes from ``buffer`` and adds to ``acked``, in the loop or in a thread: both
    are deques, so neither needs a lock. All else belongs to the loop.

    :ivar deadline: when the lease ends at the latest, on this machine's monotonic clock: from
        then on nothing more is handed out. Reads and acknowledgements are checked by Redis.
    :ivar taken: events that the processor has and has not acknowledged.
    :ivar finished: how many events the processor is done with.
    :ivar cursor: the id behind which pending entries are read; None: new ones.
    :ivar last: the id of the last entry that was read.
    :ivar inherited: a former owner had what is read by the cursor.
    :ivar more: there may be something to read.
    :ivar mean: bytes of an event, of those that came of late; 0 before the first one.
    :ivar given: it is being given back on purpose, or was: from then on nothing is acknowledged.
    :ivar fetching: an exchange is under way; ``still`` is set otherwise.
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
        self.more = True
        self.fetching = False
        self.still = asyncio.Event()
        self.still.set()
        self.flush = False
        self.closing = False
        self.lost = self.given = False
        self._loss_unreported = threading.Lock()
        self.starving = False
        #: What its policy has halted it by.
        self.halted = ""
        #: Asks the fetcher to look at this partition; of the fetcher, in the loop.
        self.poke: Callable[[OwnedPartition[R]], None] = _no_fetcher
        #: Set when nothing more is handed out.
        self.ended = asyncio.Event()
        #: Set when the partition was given back, or that has failed.
        self.returned = asyncio.Event()
        #: Told the deadline whenever it changes, 0 when it is over; from any thread.
        self.mirror: Callable[[float], None] = _no_mirror
        self._arrived = asyncio.Event()
        self._asked = False
        self._flushing = False
        self._loop = loop

    # For the processor's side, in the loop or in a thread

    @property
    def over(self) -> bool:
        """Whether nothing more may be handed out."""
        return self.closing or time.monotonic() >= self.deadline

    def finish(self) -> None:
        """Acknowledge all that was taken. Called when the processor asks for more."""
        self.finish_some(len(self.taken))

    def finish_some(self, count: int) -> None:
        """Acknowledge the first ones of those that were taken."""
        taken, acked = self.taken, self.acked
        if self.given:
            return  # a thread that was too late: the next owner has them
        for _ in range(count):
            acked.append(taken.popleft().xid)
        self.finished += count
        # Behind the append, and undone before they are passed on: from a thread, a look whether
        # there were some before could see those that are just being taken, and ask nobody.
        if count and not self._flushing:
            self._flushing = True
            self._loop.call_soon_threadsafe(self._flush_soon)
        if len(self.buffer) <= self.low and not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self._ask)

    def put_back(self) -> None:
        """Let what was taken come again, first and in order."""
        self.buffer.extendleft(reversed(self.taken))
        self.taken.clear()

    async def filled(self, wanted: int = 1, timeout_s: float | None = None) -> bool:
        """Wait until so many events are there, at most so long; False if there will be no more."""
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
        """Let at least so many events wait in memory: as many as a batch needs."""
        with self._resizing:
            self._batch = max(self._batch, wanted)
            self._resize()

    # For the fetcher's side, in the loop

    @property
    def room(self) -> int:
        """How many events are wanted."""
        have = len(self.buffer)
        return self.prefetch - have if have <= self.low else 0

    def weigh(self, mean: float) -> None:
        """Let fewer events wait in memory if they are large.

        :param mean: bytes of each one of those that have come.
        """
        # Up at once and down by and by: too few cost a round trip, too many cost memory.
        self.mean = max(mean, (self.mean + mean) / 2)
        with self._resizing:
            self._resize()

    def _resize(self) -> None:
        most = max(
            self._batch, min(self._most, int(PARTITION_BYTES / self.mean) if self.mean else 1 << 30)
        )
        low = max(most // 2, self._batch - 1)
        if (most, low) != (self.prefetch, self.low):
            self.prefetch, self.low = most, low

    def start_exchange(self) -> None:
        """An exchange begins."""
        self.fetching = True
        self.still.clear()

    async def hold(self) -> None:
        """Begin when no exchange is under way: none runs beside what follows."""
        while self.fetching:
            # The fetcher may begin the next one before this is resumed.
            await self.still.wait()
        self.start_exchange()

    def end_exchange(self) -> None:
        """It has ended."""
        self.fetching = False
        self.still.set()

    def arrive(self) -> None:
        """Wake the processor: something has come, or the partition closes."""
        self._asked = False
        self._arrived.set()

    def close(self) -> None:
        """Hand out nothing more; what is being worked on may end."""
        self.closing = True
        self.ended.set()
        self.mirror(0.0)
        self._arrived.set()

    def extended(self, deadline: float) -> None:
        """The lease ends later. From any thread."""
        if not self.lost:
            self.deadline = max(self.deadline, deadline)
            if not self.closing:
                self.mirror(self.deadline)
            if self.closing:
                self.mirror(0.0)  # it was closed meanwhile

    def lose(self) -> None:
        """Another owns the partition now, or may."""
        self.lost = True
        self.deadline = 0.0
        self.close()

    def first_loss_report(self) -> bool:
        """Whether to say that it is lost: once, to who asks first. From any thread."""
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

    def _ask(self) -> None:
        self.poke(self)


def report_loss(processor: str, partition: OwnedPartition[R], why: str) -> None:
    """Say that a partition is lost, and why; once for each partition. From any thread.

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
    """Nobody fetches yet."""


def _no_mirror(_: float) -> None:
    """Nobody else has to know."""
