"""The waiter: detects new entries in partitions that have been read to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.blocking_reads import StreamWatch, watching
from chancy.plugins.redis.transport.redis_client import RedisClient

#: Seconds between polls in a cluster while nothing arrives, at first and at most.
_SOON_S, _LATE_S = 0.004, 0.1


class Waiter:
    """Wakes the partitions whose logs have new entries.

    On a single server their logs are watched. In a cluster, where no command takes keys of several
    slots, they are polled at growing intervals.
    """

    def __init__(
        self,
        link: RedisClient,
        processor: Processor[Any],
        partitions: Callable[[], Iterable[OwnedPartition[Any]]],
    ) -> None:
        self._link = link
        self._keys = processor.stream.keys
        self._partitions = partitions
        self._watch: StreamWatch | None = None

    def check(self) -> None:
        """Wait for partitions that have become idle."""
        if self._watch is not None:
            for partition in self._idle():
                log = self._keys.log(partition.number)
                self._watch.add(log, self, partition.last, partial(self._came, partition))

    async def serve(self) -> None:
        """Watch until cancelled."""
        if self._link.clustered:
            await self._poll()
        async with watching(self._link, "") as watch:
            self._watch = watch
            self.check()
            try:
                await asyncio.Event().wait()
            finally:
                self._watch = None
                for partition in self._partitions():
                    watch.remove(self._keys.log(partition.number), self)

    def _idle(self) -> list[OwnedPartition[Any]]:
        return [
            partition
            for partition in self._partitions()
            if not partition.more and not partition.fetching and not partition.closing
        ]

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

    def _came(self, partition: OwnedPartition[Any], error: BrokerError | None) -> None:
        # After an error, the fetcher pauses until a read succeeds.
        self._wake(partition)

    def _wake(self, partition: OwnedPartition[Any]) -> None:
        partition.more = True
        partition.poke(partition)
