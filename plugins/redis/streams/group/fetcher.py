"""The fetcher: reads the owned partitions and acknowledges, many of them in one round trip."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable
from chancy.plugins.redis.streams.group.fetch_budget import FetchBudget
from chancy.plugins.redis.streams.group.waiter import Waiter
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.processing.counters import Counters
from chancy.plugins.redis.streams.processing.loss import tell_loss
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.script_client import Reply, ScriptClient, StreamCall

logger = logging.getLogger("chancy.redis.streams")

#: Round trips under way at once: while one is answered, what came with another is worked on.
_AT_ONCE = 2
#: Acknowledgements of one partition in one script.
_MOST_ACKS = 2_000


class Fetcher:
    """Keeps the lanes of a processor filled, and passes on what they have acknowledged."""

    def __init__(
        self,
        link: ScriptClient,
        processor: Processor[Any],
        member: str,
        waiter: Waiter,
        meter: Counters,
    ) -> None:
        self._link = link
        self._keys = processor.stream.keys
        self._id = processor.id
        self._group = processor.name
        self._decode = processor.stream.coding.decode
        self._member = member
        self._waiter = waiter
        self._meter = meter
        self._due: dict[OwnedPartition[Any], None] = {}
        self._poked = asyncio.Event()
        self._backoff = Backoff(base_s=0.05, cap_s=2.0)
        self._portions = FetchBudget(link.settings.timeout_s)

    def add(self, lane: OwnedPartition[Any]) -> None:
        """Begin to fetch for a lane."""
        lane.poke = self.poke
        self.poke(lane)

    def poke(self, lane: OwnedPartition[Any]) -> None:
        """Look at a lane: it wants events, or has acknowledged some."""
        self._due[lane] = None
        self._poked.set()

    async def serve(self) -> None:
        """Fetch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(_AT_ONCE):
                group.create_task(self._fetch(), name=f"fetch {number}")

    async def drop(self, lane: OwnedPartition[Any]) -> None:
        """Fetch no more for a lane; returns when no exchange of it is under way."""
        await lane.hold()

    async def _fetch(self) -> None:
        while True:
            await self._poked.wait()
            lanes = [lane for lane in self._due if not lane.fetching and not lane.lost]
            # A lane that is being fetched for is looked at again when that is done.
            self._due.clear()
            self._poked.clear()
            lanes = [lane for lane in lanes if self._wants(lane)]
            if lanes:
                await self._exchange_all(lanes)
            elif not self._due:
                self._waiter.look()

    def _wants(self, lane: OwnedPartition[Any]) -> bool:
        if lane.flush and lane.acked:
            return True
        return lane.more and lane.room > 0 and not lane.closing

    async def _exchange_all(self, due: Sequence[OwnedPartition[Any]]) -> None:
        lanes, counts = self._portioned(due)
        calls = []
        for lane, count in zip(lanes, counts, strict=True):
            lane.begin()
            lane.flush = False
            calls.append(self._exchange(lane, count))
        began = time.monotonic()
        try:
            replies = await self._link.call_many(calls)
        except BrokerError as error:
            replies = [error] * len(lanes)
        except asyncio.CancelledError:
            for lane, call in zip(lanes, calls, strict=True):
                self._resume(lane, call)
            raise
        pause_s = 0.0
        for lane, call, count, reply in zip(lanes, calls, counts, replies, strict=True):
            lane.end()
            if isinstance(reply, Exception):
                pause_s = self._failed(lane, call, reply) or pause_s
            else:
                self._apply(lane, call, count, reply)
        if pause_s:
            self._portions.late(lanes, counts)
            await asyncio.sleep(pause_s)
        else:
            self._portions.answered(time.monotonic() - began)
            self._backoff.reset()
        for lane in lanes:
            if self._wants(lane):
                self.poke(lane)
        self._waiter.look()

    def _portioned(
        self, due: Sequence[OwnedPartition[Any]]
    ) -> tuple[list[OwnedPartition[Any]], list[int]]:
        """The lanes of one round trip, and how many events it asks for of each."""
        lanes, counts = [], []
        for lane, count in zip(due, self._portions.share(due), strict=True):
            if count or (lane.flush and lane.acked):
                lanes.append(lane)
                counts.append(count)
            else:
                self.poke(lane)
        return lanes, counts

    def _exchange(self, lane: OwnedPartition[Any], count: int) -> StreamCall:
        keys = self._keys
        ids = [lane.acked.popleft() for _ in range(min(len(lane.acked), _MOST_ACKS))]
        if lane.acked:
            lane.flush = True
        return StreamCall(
            "exchange",
            (
                keys.own(lane.number, self._group),
                keys.log(lane.number),
                keys.stat(lane.number),
            ),
            (self._group, self._member, lane.epoch, count, lane.cursor or ">", *ids),
        )

    def _apply(self, lane: OwnedPartition[Any], call: StreamCall, count: int, reply: Reply) -> None:
        if reply[0] != b"ok":
            self._meter.fenced += 1
            tell_loss(self._id, lane, "a read or an acknowledgement was refused")
            lane.lose()
            return
        self._meter.acked += len(call.args) - 5
        _, entries, gone = reply
        self._meter.gone += len(gone)
        self._meter.read += len(entries)
        number, decode, recovering = lane.number, self._decode, lane.inherited
        if entries:
            self._portions.weigh(lane, entries)
            lane.buffer.extend(
                [Event(number, xid.decode(), fields, recovering, decode) for xid, fields in entries]
            )
            lane.last = max(lane.last, entries[-1][0].decode(), key=_order)
        if count:
            self._follow(lane, count, len(entries) + len(gone), entries, gone)
        if entries:
            lane.arrive()

    def _follow(
        self, lane: OwnedPartition[Any], count: int, found: int, entries: Reply, gone: Reply
    ) -> None:
        """Say where the next read goes on."""
        if lane.cursor is None:
            lane.more = found >= count
        elif found < count:
            # That was all that was pending.
            lane.cursor, lane.inherited = None, False
        else:
            lane.cursor = max(
                (one.decode() for one in (*gone, *(xid for xid, _ in entries[-1:]))), key=_order
            )

    def _failed(self, lane: OwnedPartition[Any], call: StreamCall, error: Exception) -> float:
        """Redis has not answered, or refused. What it delivered, if it did, is pending."""
        self._resume(lane, call)
        if not isinstance(error, BrokerUnavailable):
            # The group may be gone with all data: only a new acquisition makes it anew.
            logger.error(
                "stream_read_refused processor=%s partition=%d error=%s",
                self._id,
                lane.number,
                error,
                extra={"partition": lane.number},
            )
            lane.lose()
        return self._backoff.next_s()

    def _resume(self, lane: OwnedPartition[Any], call: StreamCall) -> None:
        """Acknowledge it again, and read what is pending behind the last entry that has come
        before anything new."""
        lane.acked.extendleft(reversed([str(one) for one in call.args[5:]]))
        lane.end()
        lane.flush = True
        lane.more = True
        if lane.cursor is None:
            lane.cursor = lane.last


def _order(xid: str) -> tuple[int, int]:
    ms, _, seq = xid.partition("-")
    return int(ms), int(seq)
