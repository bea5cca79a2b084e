"""The waiter: knows when something has come to partitions that had nothing left to read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.script_client import ScriptClient

logger = logging.getLogger("chancy.redis.streams")

#: Milliseconds for which a read waits for entries.
_BLOCK_MS = 4_000
#: Seconds between looks of a cluster's waiter while nothing comes, at first and at last.
_SOON_S, _LATE_S = 0.004, 0.1


class Waiter:
    """Wakes the lanes whose logs have new entries.

    On one server by a read that belongs to no group and blocks on all of them; in a cluster, where
    no command takes keys of several slots, by looking at them more and more rarely.
    """

    def __init__(
        self,
        link: ScriptClient,
        processor: Processor[Any],
        lanes: Callable[[], Iterable[OwnedPartition[Any]]],
    ) -> None:
        self._clustered = link.clustered
        self._reader = link.reader()
        self._processor = processor
        self._keys = processor.stream.keys
        self._lanes = lanes
        self._watched: set[OwnedPartition[Any]] = set()
        self._changed = asyncio.Event()
        self._blocked = False
        self._unblocking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """A lane may have become idle."""
        if not self._blocked:
            self._changed.set()
        elif self._unblocking is None and self._misses():
            self._unblocking = asyncio.create_task(self._unblock(), name="unblock")

    async def serve(self) -> None:
        """Watch until cancelled."""
        backoff = Backoff(base_s=0.05, cap_s=2.0)
        try:
            while True:
                try:
                    await (self._look_around() if self._clustered else self._watch())
                    backoff.reset()
                except BrokerError as error:
                    pause_s = backoff.next_s()
                    logger.warning(
                        "stream_waiter_failed processor=%s next_try_s=%.1f error=%s",
                        self._processor.id,
                        pause_s,
                        error,
                    )
                    await asyncio.sleep(pause_s)
        finally:
            if self._unblocking is not None:
                self._unblocking.cancel()
                await asyncio.wait([self._unblocking])
            await self._reader.close()

    def _idle(self) -> list[OwnedPartition[Any]]:
        return [
            lane
            for lane in self._lanes()
            if not lane.more and not lane.fetching and not lane.closing
        ]

    def _misses(self) -> bool:
        """Whether a read is under way, or about to be, that does not wait for all."""
        return self._blocked and any(lane not in self._watched for lane in self._idle())

    async def _watch(self) -> None:
        self._changed.clear()
        idle = {self._keys.log(lane.number).encode(): lane for lane in self._idle()}
        if not idle:
            await self._changed.wait()
            return
        self._watched = set(idle.values())
        self._blocked = True
        try:
            found = await self._reader.read(
                "XREAD",
                "COUNT",
                1,
                "BLOCK",
                _BLOCK_MS,
                "STREAMS",
                *idle,
                *(lane.last for lane in idle.values()),
                key=next(iter(idle)),
                block_ms=_BLOCK_MS,
            )
        finally:
            self._blocked = False
        for log, _ in found or ():
            self._wake(idle[log])
        if found:
            # Those come back soon, most often idle: waiting for them saves a read.
            try:
                async with asyncio.timeout(_SOON_S):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def _look_around(self) -> None:
        pause_s = _SOON_S
        while True:
            read = [(lane, lane.last) for lane in self._idle()]
            await asyncio.sleep(pause_s)
            for lane, last in read:
                if lane.last == last:
                    self._wake(lane)
            came = any(lane.last != last for lane, last in read)
            pause_s = _SOON_S if came or not read else min(_LATE_S, pause_s * 1.5)

    def _wake(self, lane: OwnedPartition[Any]) -> None:
        lane.more = True
        lane.poke(lane)

    async def _unblock(self) -> None:
        pause_s = _SOON_S
        try:
            while self._misses():
                try:
                    # What has not been sent yet does not block: it would, for four seconds.
                    if await self._reader.unblock():
                        return
                except BrokerError:
                    pause_s = _LATE_S
                await asyncio.sleep(pause_s)
        finally:
            self._unblocking = None
