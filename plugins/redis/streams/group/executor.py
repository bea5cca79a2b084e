"""The executor: runs a processor in one worker, from joining its group to leaving it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.log_context import ORIGIN, origin_here
from chancy.plugins.redis.streams.group.control import Control
from chancy.plugins.redis.streams.group.halts import Exit
from chancy.plugins.redis.streams.group.heartbeat import MemberHeartbeat
from chancy.plugins.redis.streams.group.maintenance import Maintenance
from chancy.plugins.redis.streams.group.membership import Membership, MembershipStatus
from chancy.plugins.redis.streams.group.runner import PartitionRunner
from chancy.plugins.redis.streams.model.schema import agree
from chancy.plugins.redis.streams.processing.cancellation import finish
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.redis_client import RedisClient

logger = logging.getLogger("chancy.redis.streams")


#: Seconds between two log lines with the counters.
_COUNT_S = 60.0


class StreamExecutor:
    """One member of a processor's group: heartbeat, maintenance, control and runner.

    :param link: a client of the running loop.
    :param leave: requests the exit of the process.
    """

    def __init__(self, link: RedisClient, processor: Processor[Any], leave: Exit) -> None:
        self._link = link
        self.processor = processor
        self.member = uuid.uuid4().hex
        self._membership = Membership(link, processor, self.member)
        self._ownership = Ownership(link, processor, self.member)
        self.runner = PartitionRunner(link, processor, self._ownership, self._membership, leave)
        self._joining = asyncio.Event()
        # Serializes changes of the membership: a leave must follow all joins.
        self._changing = asyncio.Lock()
        self._version = 0
        #: Number of members at the last heartbeat.
        self._alive = 1

    async def serve(self) -> None:
        """Run until cancelled; then release all partitions within the grace period.

        :raises ConfigurationError: the stream is stored with another partition count or hasher.
        """
        processor = self.processor
        origin = origin_here().narrowed(
            executor=self.member, stream=processor.stream.name, processor=processor.name
        )
        ORIGIN.set(origin)
        status = await self._join()
        logger.info(
            "processor_joined processor=%s member=%s plan=%d",
            self.processor.id,
            self.member,
            status.version,
        )
        heartbeat = MemberHeartbeat(
            self._link,
            self.processor,
            self._membership,
            self._ownership,
            partitions=lambda: self.runner.partitions,
            on_status=self._on_status,
        )
        heartbeat.start()
        services = asyncio.create_task(self._serve(status.last), name=self.processor.id)
        try:
            # When this is cancelled, the runner continues until all partitions are released.
            await asyncio.wait([services])
            services.result()
        finally:
            heartbeat.leave()
            try:
                await self._leave()
            finally:
                services.cancel()
                await asyncio.wait([services])
                heartbeat.stop()

    async def _serve(self, last: str) -> None:
        control = Control(self._link, self.processor, self._on_message)
        maintenance = Maintenance(
            self._link,
            self.processor,
            self._membership,
            partitions=lambda: self.runner.partitions,
            members=lambda: self._alive,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(control.serve(last), name="control")
            group.create_task(maintenance.serve(), name="maintenance")
            group.create_task(self._rejoin(), name="rejoin")
            group.create_task(self._log_counts(), name="count")
            # Wait for other members, so that a fleet that starts at once settles with one plan.
            await asyncio.sleep(self.processor.options.join_delay_s)
            group.create_task(self.runner.serve(), name="runner")

    async def _join(self) -> MembershipStatus:
        """Join the group, retrying until the server answers; leave again if cancelled meanwhile.

        An unanswered join may have been executed. Retrying with a new member, or not leaving, would
        leave partitions assigned to a member that does not exist until its lease ends.
        """
        backoff = Backoff(base_s=0.2, cap_s=10.0)
        asked = False
        try:
            while True:
                try:
                    await self._agree()
                    asked = True
                    return await finish(self._membership.change("join"))
                except BrokerError as error:
                    logger.error("processor_not_started processor=%s: %s", self.processor.id, error)
                await asyncio.sleep(backoff.next_s())
        except asyncio.CancelledError:
            if asked:
                await finish(self._leave_group())
            raise

    async def _agree(self) -> None:
        stream = self.processor.stream
        await agree(self._link, stream.keys, stream.definition)

    async def _leave(self) -> None:
        """Leave the group first, so that the others are ready for the released partitions."""
        self.runner.leaving = True
        try:
            # A member that does not leave keeps its share of the plan until its lease ends.
            await finish(self._leave_group())
            await self.runner.release_all()
        except asyncio.CancelledError:
            # Cancelled a second time: interrupt the current events, but still release.
            self.runner.interrupt_now()
            await self.runner.release_all()
            raise
        logger.info(
            "processor_left processor=%s member=%s %s",
            self.processor.id,
            self.member,
            self.runner.counters,
        )

    async def _leave_group(self) -> None:
        try:
            async with self._changing:
                await self._membership.change("leave")
        except BrokerError as error:
            logger.warning(
                "processor_not_left processor=%s error=%s: its membership ends in %.0f s",
                self.processor.id,
                error,
                self.processor.options.lease_s,
            )

    async def _log_counts(self) -> None:
        """Log the counters once a minute if they have changed."""
        logged = ""
        while True:
            await asyncio.sleep(_COUNT_S)
            runner = self.runner
            now = f"halted={len(runner.halted)} parked={len(runner.parked)} {runner.counters}"
            if now != logged:
                logged = now
                logger.info(
                    "processor_counts processor=%s partitions=%d %s",
                    self.processor.id,
                    len(runner.partitions),
                    now,
                )

    def _on_message(self, reason: str, only: Collection[int] | None) -> None:
        if reason == "resume":
            self.runner.resume(only)
        else:
            self.runner.changed.set()

    def _on_status(self, status: MembershipStatus) -> None:
        self._alive = status.alive
        if not status.belongs:
            self._joining.set()
        elif status.version != self._version:
            self._version = status.version
            self.runner.changed.set()

    async def _rejoin(self) -> None:
        """Join again after the others have removed this member, or Redis has lost its data."""
        backoff = Backoff(base_s=0.1, cap_s=5.0)
        while True:
            await self._joining.wait()
            try:
                async with self._changing:
                    if self.runner.leaving:
                        return
                    # The stored definition may be lost too: store it before another one is.
                    await self._agree()
                    await self._membership.change("join")
                self._ownership.mark_started()
                self._joining.clear()
                backoff.reset()
                logger.warning("processor_rejoined processor=%s", self.processor.id)
                self.runner.changed.set()
            except BrokerError:
                await asyncio.sleep(backoff.next_s())
