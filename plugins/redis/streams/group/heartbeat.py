"""The heartbeat: extends a member's leases, even while its event loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from chancy.plugins.redis.streams.group.membership import Membership, MembershipStatus
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition, report_loss
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.redis_client import RedisClient

logger = logging.getLogger("chancy.redis.streams")


class MemberHeartbeat:
    """Sends a member's heartbeat and extends its partition leases, four times per lease.

    It runs in the background loop.

    :param partitions: returns a copy of the owned partitions; called in the thread.
    :param on_status: called in the worker's loop with the membership status after each heartbeat.
    """

    def __init__(
        self,
        link: RedisClient,
        processor: Processor[Any],
        membership: Membership,
        ownership: Ownership,
        *,
        partitions: Callable[[], Sequence[OwnedPartition[Any]]],
        on_status: Callable[[MembershipStatus], None],
    ) -> None:
        self._link = link
        self._processor = processor
        self._membership = membership
        self._ownership = ownership
        self._partitions = partitions
        self._on_status = on_status
        self._every_s = processor.options.lease_s / 4
        self._loop = asyncio.get_running_loop()
        self._belongs = True
        self._beating: Future[None] | None = None
        # In a cluster, one server that does not answer must not cost the leases of the others.
        settings = link.settings
        self._timeout_s = min(settings.timeout_s, self._every_s) if link.clustered else None

    def start(self) -> None:
        # In the current context, which the log lines need.
        self._beating = self._link.background.submit(self._beat_until_stopped())

    def leave(self) -> None:
        """Only extend leases from now on: the member has left the group."""
        self._belongs = False

    def stop(self) -> None:
        """End the heartbeats."""
        if self._beating is not None:
            self._beating.cancel()

    async def _beat_until_stopped(self) -> None:
        while not self._loop.is_closed():
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._every_s * 2):
                    await self._beat()
            except Exception as error:
                # Any error: without further heartbeats, all leases would be lost silently.
                logger.warning(
                    "stream_heartbeat_failed processor=%s error=%s: %s",
                    self._processor.id,
                    type(error).__name__,
                    error,
                )
            self._lose_expired()
            pause_s = began + self._every_s - time.monotonic()
            await asyncio.sleep(max(self._every_s / 10, pause_s))

    async def _beat(self) -> None:
        for partition in await self._ownership.extend(self._partitions(), self._timeout_s):
            self._lose(partition, "another member owns it, or the lease had ended")
        if self._belongs:
            self._report(await self._membership.change("beat"))

    def _lose_expired(self) -> None:
        now = time.monotonic()
        for partition in self._partitions():
            if not partition.lost and not partition.releasing and now >= partition.deadline:
                self._lose(partition, "its lease has ended")

    def _lose(self, partition: OwnedPartition[Any], why: str) -> None:
        report_loss(self._processor.id, partition, why)
        self._call(partition.lose)

    def _report(self, status: MembershipStatus) -> None:
        self._call(lambda: self._on_status(status))

    def _call(self, work: Callable[[], None]) -> None:
        # If the worker's loop has ended, so has everything that would need the call.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)
