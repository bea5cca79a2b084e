"""The waiter: detects new entries in partitions that have been read to their end."""

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

#: Milliseconds that a blocking read waits for entries.
_BLOCK_MS = 4_000
#: Seconds between polls in a cluster while nothing arrives, at first and at most.
_SOON_S, _LATE_S = 0.004, 0.1


class Waiter:
    """Wakes the partitions whose logs have new entries.

    On a single server it uses one blocking XREAD of all logs, outside any group. In a cluster,
    where no command takes keys of several slots, it polls them at growing intervals.
    """

    def __init__(
        self,
        link: ScriptClient,
        processor: Processor[Any],
        partitions: Callable[[], Iterable[OwnedPartition[Any]]],
    ) -> None:
        self._clustered = link.clustered
        self._reader = link.reader()
        self._processor = processor
        self._keys = processor.stream.keys
        self._partitions = partitions
        self._watched: set[OwnedPartition[Any]] = set()
        self._changed = asyncio.Event()
        self._blocked = False
        self._unblocking: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Check for partitions that have become idle."""
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
                    await (self._poll() if self._clustered else self._watch())
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
            partition
            for partition in self._partitions()
            if not partition.more and not partition.fetching and not partition.closing
        ]

    def _misses(self) -> bool:
        """Return whether the current blocking read lacks an idle partition."""
        return self._blocked and any(partition not in self._watched for partition in self._idle())

    async def _watch(self) -> None:
        self._changed.clear()
        idle = {self._keys.log(partition.number).encode(): partition for partition in self._idle()}
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
                *(partition.last for partition in idle.values()),
                key=next(iter(idle)),
                block_ms=_BLOCK_MS,
            )
        finally:
            self._blocked = False
        for log, _ in found or ():
            self._wake(idle[log])
        if found:
            # They mostly become idle again soon: waiting for them saves a read.
            try:
                async with asyncio.timeout(_SOON_S):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def _poll(self) -> None:
        pause_s = _SOON_S
        while True:
            read = [(partition, partition.last) for partition in self._idle()]
            await asyncio.sleep(pause_s)
            for partition, last in read:
                if partition.last == last:
                    self._wake(partition)
            came = any(partition.last != last for partition, last in read)
            pause_s = _SOON_S if came or not read else min(_LATE_S, pause_s * 1.5)

    def _wake(self, partition: OwnedPartition[Any]) -> None:
        partition.more = True
        partition.poke(partition)

    async def _unblock(self) -> None:
        pause_s = _SOON_S
        try:
            while self._misses():
                try:
                    # Retried: a read that has not been sent yet cannot be unblocked, and would
                    # block for four seconds.
                    if await self._reader.unblock():
                        return
                except BrokerError:
                    pause_s = _LATE_S
                await asyncio.sleep(pause_s)
        finally:
            self._unblocking = None
