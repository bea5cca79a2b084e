"""The fetcher: reads and acknowledges events of many owned partitions in one round trip."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.plugins.redis.streams.group.fetch_budget import FetchBudget
from chancy.plugins.redis.streams.group.waiter import Waiter
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.processing.counters import Counters
from chancy.plugins.redis.streams.processing.partition import OwnedPartition, report_loss
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.blocking_reads import entry_order
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply
from chancy.plugins.redis.transport.scripts import ScriptCall

logger = logging.getLogger("chancy.redis.streams")

#: Round trips in flight: while one waits for its reply, the events of another are processed.
_AT_ONCE = 2
#: Maximum acknowledgements of one partition in one script.
_MOST_ACKS = 2_000
#: The position of the acknowledged ids in the arguments of the script.
_IDS_AT = 7


class Fetcher:
    """Fills the buffers of a processor's partitions and sends their acknowledgements."""

    def __init__(
        self,
        link: RedisClient,
        processor: Processor[Any],
        member: str,
        waiter: Waiter,
        counters: Counters,
    ) -> None:
        self._link = link
        self._keys = processor.stream.keys
        self._id = processor.id
        self._group = processor.name
        self._decode = processor.stream.coding.decode
        self._member = member
        self._waiter = waiter
        self._counters = counters
        self._due: dict[OwnedPartition[Any], None] = {}
        self._poked = asyncio.Event()
        self._backoff = Backoff(base_s=0.05, cap_s=2.0)
        self._budget = FetchBudget(link.settings.timeout_s)

    def add(self, partition: OwnedPartition[Any]) -> None:
        """Start fetching for a partition."""
        partition.poke = self.poke
        self.poke(partition)

    def poke(self, partition: OwnedPartition[Any]) -> None:
        """Schedule a partition that needs events or has acknowledged some."""
        self._due[partition] = None
        self._poked.set()

    async def serve(self) -> None:
        """Fetch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(_AT_ONCE):
                group.create_task(self._fetch(), name=f"fetch {number}")

    async def _fetch(self) -> None:
        while True:
            await self._poked.wait()
            partitions = [
                partition
                for partition in self._due
                if not partition.fetching and not partition.lost
            ]
            # A partition whose exchange is in flight is checked again when that ends.
            self._due.clear()
            self._poked.clear()
            partitions = [partition for partition in partitions if self._wants(partition)]
            if partitions:
                await self._exchange_all(partitions)
            elif not self._due:
                self._waiter.check()

    def _wants(self, partition: OwnedPartition[Any]) -> bool:
        if partition.flush and partition.acked:
            return True
        return partition.more and partition.room > 0 and not partition.closing

    async def _exchange_all(self, due: Sequence[OwnedPartition[Any]]) -> None:
        partitions, counts = self._budgeted(due)
        calls = []
        for partition, count in zip(partitions, counts, strict=True):
            partition.start_exchange()
            partition.flush = False
            calls.append(self._exchange(partition, count))
        began = time.monotonic()
        try:
            replies = await self._link.run_many(calls)
        except BrokerError as error:
            replies = [error] * len(partitions)
        except asyncio.CancelledError:
            for partition, call in zip(partitions, calls, strict=True):
                self._resume(partition, call)
            raise
        pause_s = 0.0
        for partition, call, count, reply in zip(partitions, calls, counts, replies, strict=True):
            partition.end_exchange()
            if isinstance(reply, Exception):
                pause_s = self._failed(partition, call, reply) or pause_s
            else:
                self._apply(partition, call, count, reply)
        if pause_s:
            self._budget.late(partitions, counts)
            await asyncio.sleep(pause_s)
        else:
            self._budget.answered(time.monotonic() - began)
            self._backoff.reset()
        for partition in partitions:
            if self._wants(partition):
                self.poke(partition)
        self._waiter.check()

    def _budgeted(
        self, due: Sequence[OwnedPartition[Any]]
    ) -> tuple[list[OwnedPartition[Any]], list[int]]:
        """Return the partitions of one round trip, and how many events to request of each."""
        partitions, counts = [], []
        for partition, count in zip(due, self._budget.share(due), strict=True):
            if count or (partition.flush and partition.acked):
                partitions.append(partition)
                counts.append(count)
            else:
                self.poke(partition)
        return partitions, counts

    def _exchange(self, partition: OwnedPartition[Any], count: int) -> ScriptCall:
        keys = self._keys
        ids = [partition.acked.popleft() for _ in range(min(len(partition.acked), _MOST_ACKS))]
        if partition.acked:
            partition.flush = True
        return ScriptCall(
            "streams.exchange",
            (
                keys.own(partition.number, self._group),
                keys.log(partition.number),
                keys.stat(partition.number),
            ),
            (
                self._group,
                self._member,
                partition.epoch,
                count,
                partition.cursor or ">",
                partition.exchanges,
                self._budget.most_bytes(partition, count),
                *ids,
            ),
        )

    def _apply(
        self, partition: OwnedPartition[Any], call: ScriptCall, count: int, reply: Reply
    ) -> None:
        if reply[0] != b"ok":
            self._counters.fenced += 1
            report_loss(self._id, partition, "a read or an acknowledgement was refused")
            partition.lose()
            return
        ids = call.args[_IDS_AT:]
        if ids:
            self._counters.acked += len(ids)
            if partition.lowered in ids:
                partition.lowered = ""
            if not partition.lowered:
                partition.confirmed = str(ids[-1])
        _, entries, gone, more = reply
        self._counters.gone += len(gone)
        self._counters.read += len(entries)
        number, decode, recovering = partition.number, self._decode, partition.inherited
        if entries:
            self._budget.weigh(partition, entries)
            partition.buffer.extend(
                [
                    Event(number, xid.decode(), fields, recovering, decode, self._group)
                    for xid, fields in entries
                ]
            )
            self._advance(partition, entries[0][0].decode(), entries[-1][0].decode())
        if count:
            self._follow(partition, more == 1, entries, gone)
        if entries:
            partition.arrive()

    def _advance(self, partition: OwnedPartition[Any], first: str, last: str) -> None:
        """Record the ids of the entries that were read."""
        if partition.cursor is not None:
            partition.last = max(partition.last, last, key=entry_order)
            return
        if entry_order(first) <= entry_order(partition.last):
            # A promoted replica lacked the last deliveries, which are repeated, or the last
            # entries, and its clock is behind. Events in hand may have higher ids than these.
            partition.confirmed, partition.lowered = "", first
        partition.last = last

    def _follow(
        self, partition: OwnedPartition[Any], more: bool, entries: Reply, gone: Reply
    ) -> None:
        """Set the position of the next read."""
        if partition.cursor is None:
            partition.more = more
        elif not more:
            # All pending entries have been read.
            partition.cursor, partition.inherited = None, False
        else:
            partition.cursor = max(
                (xid.decode() for xid in (*gone, *(last for last, _ in entries[-1:]))),
                key=entry_order,
            )

    def _failed(self, partition: OwnedPartition[Any], call: ScriptCall, error: Exception) -> float:
        """Handle a missing reply or an error. Entries that Redis may have delivered are pending."""
        self._resume(partition, call)
        if not (isinstance(error, BrokerError) and error.retryable):
            # Redis may have lost the group with its data: acquiring the partition recreates it.
            logger.error(
                "stream_read_refused processor=%s partition=%d error=%s",
                self._id,
                partition.number,
                error,
                extra={"partition": partition.number},
            )
            partition.lose()
        return self._backoff.next_s()

    def _resume(self, partition: OwnedPartition[Any], call: ScriptCall) -> None:
        """Acknowledge again, and read the pending entries after the last received one first."""
        partition.acked.extendleft(reversed([str(xid) for xid in call.args[_IDS_AT:]]))
        partition.end_exchange()
        partition.flush = True
        partition.more = True
        if partition.cursor is None:
            partition.cursor = partition.last
