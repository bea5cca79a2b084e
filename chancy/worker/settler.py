"""Writes settlements to a broker in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from operator import attrgetter
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.clock import Backoff, Clock
from chancy.errors import BrokerError, RowsLocked

logger = logging.getLogger("chancy.worker")

#: Writes settlements; returns the job ids of the stale ones.
Settle = Callable[[Sequence[Settlement]], Awaitable[frozenset[UUID]]]

#: Settlements of one call of the broker, at most.
BATCH = 1_000
#: Characters of the results, meta and failures of one call, unless it is a single larger one.
BATCH_SIZE = 8_000_000
#: Settlements that may wait before claiming stops, and characters of them.
MOST_WAITING = 5_000
MOST_WAITING_SIZE = 64_000_000
#: Seconds for which settlements without urgency are gathered. With jobs of 5 ms on two processes a
#: transaction for each outcome takes a sixth of the processor time.
_GATHER_S = 0.025
#: Failures in a row after which a batch is halved: it may be too large for a timeout of the server.
_HALVED_AFTER = 2
#: Seconds after which settlements of rows that another transaction has locked are tried again, at
#: first and at most. A broker may wait for the locks each time.
_BLOCKED_S, _BLOCKED_MOST_S = 1.0, 10.0

_failure, _result, _meta = map(attrgetter, ("failure", "result", "meta"))


class Settler:
    """Writes settlements as fast as the store accepts them: settlements that arrive during one
    write go out with the next. Batches grow with the load, and a single settlement does not wait,
    unless its job was one of a backlog: then for 25 ms at most, for those of the next jobs.

    No settlement is dropped: while the store is unavailable they stay in memory, and claiming
    stops.

    :param on_stale: called with the job ids whose lease was lost.
    :param prepare: turns a batch into the settlements to write.
    """

    def __init__(
        self,
        settle: Settle,
        clock: Clock,
        *,
        on_stale: Callable[[frozenset[UUID]], None],
        prepare: Callable[[list[Settlement]], list[Settlement]] = list,
    ) -> None:
        self._settle = settle
        self._clock = clock
        self._on_stale = on_stale
        self._prepare = prepare
        self._waiting: list[Settlement] = []
        self._waiting_size = 0
        self._most = BATCH
        self._writing: list[Settlement] = []
        #: Settlements of rows that other transactions have locked, or that the server refuses.
        self._blocked: list[Settlement] = []
        self._blocked_size = 0
        self._unblocking = Backoff(base_s=_BLOCKED_S, cap_s=_BLOCKED_MOST_S)
        self._wake = asyncio.Event()
        #: Wakes it for settlements without urgency.
        self._timer: asyncio.TimerHandle | None = None
        #: Called once the settlement of a job is stored, by job.
        self._callbacks: dict[UUID, Callable[[], None]] = {}
        #: Set while more may be claimed: the store accepts settlements, and few are waiting.
        self.open = asyncio.Event()
        self.open.set()
        #: Set while nothing waits and nothing is being written.
        self.empty = asyncio.Event()
        self.empty.set()
        #: Number of settlements that the store has accepted.
        self.settled = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._writing) + len(self._blocked)

    @property
    def ids(self) -> set[UUID]:
        """Ids of the jobs whose settlement the store has not confirmed."""
        unsettled = chain(self._waiting, self._writing, self._blocked)
        return {settlement.id for settlement in unsettled}

    def add(
        self,
        settlement: Settlement,
        on_stored: Callable[[], None] | None = None,
        *,
        urgent: bool = True,
    ) -> None:
        """Queue a settlement; it is written soon.

        :param on_stored: called once it is stored, or found stale.
        :param urgent: False to wait a little for further ones.
        """
        if on_stored is not None:
            self._callbacks[settlement.id] = on_stored
        waiting = self._waiting
        waiting.append(settlement)
        if settlement.result or settlement.failure or settlement.meta:
            self._waiting_size += _size(settlement)
        if not self._wake.is_set():
            self.empty.clear()
            if urgent or len(waiting) >= BATCH or self._waiting_size >= BATCH_SIZE:
                self._wake.set()
            elif self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._wake.set)
        # The property `_few_wait` takes 0.1 µs.
        if len(waiting) > MOST_WAITING or self._waiting_size > MOST_WAITING_SIZE:
            self.open.clear()

    @property
    def _few_wait(self) -> bool:
        size = self._waiting_size + self._blocked_size
        return len(self._waiting) + len(self._blocked) <= MOST_WAITING and size <= MOST_WAITING_SIZE

    async def serve(self) -> None:
        """Write settlements until cancelled. An interrupted batch is kept for the next run."""
        while True:
            if not self._writing:
                await self._wake.wait()
                self._writing = self._take()
            await self._write()
            if self._few_wait:
                self.open.set()
            if not self._waiting and not self._blocked:
                self._unblocking.reset()
                self.empty.set()

    async def flush(self, timeout_s: float) -> None:
        """Wait until all settlements are written, at most ``timeout_s`` seconds. The rest is
        abandoned and logged."""
        self._unblocking.reset()
        self._unblock()
        if self._waiting:
            self._wake.set()
        if not await self._clock.wait(self.empty, timeout_s):
            logger.error("settlements_abandoned count=%d: the jobs will run again", len(self))

    def _take(self) -> list[Settlement]:
        """The next settlements that wait, prepared to be written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken = self._prepare(self._waiting[:BATCH])
        del self._waiting[:BATCH]
        self._waiting_size = sum(map(_size, self._waiting))
        if not self._waiting:
            self._wake.clear()
        return taken

    async def _write(self) -> None:
        backoff = Backoff(base_s=0.1, cap_s=5.0)
        while self._writing:
            batch = self._writing[: _fitting(self._writing, self._most)]
            blocked: frozenset[UUID] = frozenset()
            try:
                stale = await self._settle(batch)
            except RowsLocked as error:
                stale, blocked = error.stale, error.ids
                logger.warning("settlements_blocked jobs=%d error=%s", len(blocked), error)
            except BrokerError as error:
                self.open.clear()
                pause = backoff.next_s()
                if backoff.failures >= _HALVED_AFTER:
                    self._most = max(1, len(batch) // 2)
                if len(batch) == 1:
                    # Its row may be what is refused: all others are tried before it again.
                    self._writing = [*self._writing[1:], *self._take(), *batch]
                logger.warning(
                    "settling_postponed settlements=%d next_try_s=%.1f error=%s",
                    len(self),
                    pause,
                    error,
                )
                await self._clock.sleep(pause)
                continue
            backoff.reset()
            self._most = min(BATCH, 2 * self._most)
            del self._writing[: len(batch)]
            if blocked:
                batch = self._block(batch, blocked)
            self.settled += len(batch) - len(stale)
            if self._callbacks:
                self._call_back(batch)
            if stale:
                self._on_stale(stale)

    def _block(self, batch: list[Settlement], ids: frozenset[UUID]) -> list[Settlement]:
        """Keep these settlements for a later batch; returns the others."""
        if not self._blocked:
            asyncio.get_running_loop().call_later(self._unblocking.next_s(), self._unblock)
        blocked = [settlement for settlement in batch if settlement.id in ids]
        self._blocked += blocked
        self._blocked_size += sum(map(_size, blocked))
        if not self._few_wait:
            self.open.clear()
        return [settlement for settlement in batch if settlement.id not in ids]

    def _unblock(self) -> None:
        """Try blocked settlements again."""
        blocked, self._blocked = self._blocked, []
        self._blocked_size = 0
        for settlement in blocked:
            self.add(settlement)

    def _call_back(self, batch: Sequence[Settlement]) -> None:
        found = {self._callbacks.pop(settlement.id, None) for settlement in batch}
        for callback in found:
            if callback is not None:
                callback()


def _fitting(settlements: Sequence[Settlement], most: int) -> int:
    """How many of the first settlements make a batch: at least one."""
    batch = settlements[:most]
    # The usual case, without a loop in Python: 0.1 µs a job instead of 0.3.
    size = sum(map(len, chain(filter(None, map(_result, batch)), filter(None, map(_meta, batch)))))
    if size <= BATCH_SIZE and not any(map(_failure, batch)):
        return len(batch)
    size = 0
    for count, settlement in enumerate(batch):
        size += _size(settlement)
        if size > BATCH_SIZE:
            return max(1, count)
    return len(batch)


def _size(settlement: Settlement) -> int:
    """The approximate number of characters of a settlement that are stored."""
    size = len(settlement.result or "") + len(settlement.meta or "")
    if (failure := settlement.failure) is not None:
        causes = (message for _, message in failure.causes)
        size += sum(map(len, (failure.message, failure.trace, *failure.notes, *causes)))
    return size
