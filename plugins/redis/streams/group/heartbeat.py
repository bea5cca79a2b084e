"""The heartbeat: extends a member's leases from a thread, even while its event loop is blocked."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from chancy.plugins.redis.streams.group.membership import Membership, MembershipStatus
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition, report_loss
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.script_client import ScriptClient

logger = logging.getLogger("chancy.redis.streams")

#: Seconds to wait for the end of the thread.
_PATIENCE_S = 5.0


class MemberHeartbeat:
    """Sends a member's heartbeat and extends its partition leases, four times per lease.

    :param partitions: returns a copy of the owned partitions; called in the thread.
    :param on_status: called in the worker's loop with the membership status after each heartbeat.
    """

    def __init__(
        self,
        link: ScriptClient,
        processor: Processor[Any],
        member: str,
        ownership: Ownership,
        *,
        partitions: Callable[[], Sequence[OwnedPartition[Any]]],
        on_status: Callable[[MembershipStatus], None],
    ) -> None:
        self._link = link
        self._processor = processor
        self._member = member
        self._ownership = ownership
        self._partitions = partitions
        self._on_status = on_status
        self._every_s = processor.options.lease_s / 4
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._belongs = True
        self._thread = threading.Thread(
            # Its log lines have the executor's context, too.
            target=contextvars.copy_context().run,
            args=(self._beat_on,),
            name=f"chancy heartbeat {processor.id}",
            daemon=True,
        )

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """Only extend leases from now on: the member has left the group."""
        self._belongs = False

    async def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _PATIENCE_S)

    def _beat_on(self) -> None:
        asyncio.run(self._beat_until_stopped())

    async def _beat_until_stopped(self) -> None:
        settings, changes = self._link.settings, dict[str, float]()
        if settings.cluster:
            # One server that does not answer must not cost the leases of the others.
            changes = {
                "timeout_s": min(settings.timeout_s, self._every_s),
                "connect_timeout_s": min(settings.connect_timeout_s, self._every_s),
            }
        link = self._link.another(**changes)
        membership = Membership(link, self._processor, self._member)
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    async with asyncio.timeout(self._every_s * 2):
                        await self._beat(link, membership)
                except Exception as error:
                    # Any error: without further heartbeats, all leases would be lost silently.
                    logger.warning(
                        "stream_heartbeat_failed processor=%s error=%s: %s",
                        self._processor.id,
                        type(error).__name__,
                        error,
                    )
                self._lose_expired()
                # Nothing else runs in this loop.
                self._stop.wait(max(self._every_s / 10, began + self._every_s - time.monotonic()))
        finally:
            await link.close()

    async def _beat(self, link: ScriptClient, membership: Membership) -> None:
        for partition in await self._ownership.extend(self._partitions(), link):
            self._lose(partition, "another member owns it, or the lease had ended")
        if self._belongs:
            self._report(await membership.change("beat"))

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
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            # The worker's loop has ended, with everything that would need the call.
            self._stop.set()
