"""The executor: a processor in one worker, from its join to its leave."""

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
from chancy.plugins.redis.streams.model.schema import agree, shape_of
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.script_client import ScriptClient

logger = logging.getLogger("chancy.redis.streams")


#: Seconds between two lines of the log that say what was done.
_COUNT_S = 60.0


class StreamExecutor:
    """One member of the group of a processor: heartbeat, maintenance, control and runner.

    :param link: of the running loop.
    :param leave: asks for the end of the process.
    """

    def __init__(self, link: ScriptClient, processor: Processor[Any], leave: Exit) -> None:
        self._link = link
        self.processor = processor
        self.member = uuid.uuid4().hex
        self._membership = Membership(link, processor, self.member)
        self._ownership = Ownership(link, processor, self.member)
        self.runner = PartitionRunner(link, processor, self._ownership, self._membership, leave)
        self._joining = asyncio.Event()
        # Of the membership: a leave is behind all joins.
        self._changing = asyncio.Lock()
        self._version = 0

    async def serve(self) -> None:
        """Work until cancelled; then hand everything over, within the grace period.

        :raises ConfigurationError: the stream is kept with another number of partitions or hasher.
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
            self.member,
            self._ownership,
            partitions=lambda: self.runner.partitions,
            on_status=self._on_status,
        )
        heartbeat.start()
        services = asyncio.create_task(self._serve(status.last), name=self.processor.id)
        try:
            # The runner's loops go on when this is cancelled, until everything is given back.
            await asyncio.wait([services])
            services.result()
        finally:
            heartbeat.leave()
            try:
                await self._leave()
            finally:
                services.cancel()
                await asyncio.wait([services])
                await heartbeat.stop()

    async def _serve(self, last: str) -> None:
        control = Control(self._link, self.processor, self._on_message)
        maintenance = Maintenance(
            self._link, self.processor, self._membership, lambda: self.runner.partitions
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(control.serve(last), name="control")
            group.create_task(maintenance.serve(), name="maintenance")
            group.create_task(self._rejoin(), name="rejoin")
            group.create_task(self._log_counts(), name="count")
            # A fleet that starts at once settles with one plan.
            await asyncio.sleep(self.processor.options.join_delay_s)
            group.create_task(self.runner.serve(), name="runner")

    async def _join(self) -> MembershipStatus:
        """Join, and ask again until it is answered: the server may have done it, and a share of
        the partitions would wait for a lease if it were another member that goes on.

        If cancelled meanwhile, leave again, for the same reason.
        """
        backoff = Backoff(base_s=0.2, cap_s=10.0)
        joining: asyncio.Task[MembershipStatus] | None = None
        try:
            while True:
                try:
                    await agree(self._link, shape_of(self.processor.stream))
                    joining = asyncio.create_task(self._membership.change("join"))
                    return await asyncio.shield(joining)
                except BrokerError as error:
                    logger.error("processor_not_started processor=%s: %s", self.processor.id, error)
                await asyncio.sleep(backoff.next_s())
        except asyncio.CancelledError:
            if joining is not None:
                await asyncio.wait([joining])
                joining.exception()  # whatever it was: it may have joined
                await self._leave_group()
            raise

    async def _leave(self) -> None:
        """Leave the plan first, so that the others are ready for what is given back."""
        self.runner.leaving = True
        try:
            await self._leave_group()
            await self.runner.release_all()
        except asyncio.CancelledError:
            # Asked once more: what is at hand is interrupted, and given back all the same.
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
                "processor_not_left processor=%s error=%s: the others find it gone in %.0f s",
                self.processor.id,
                error,
                self.processor.options.lease_s,
            )

    async def _log_counts(self) -> None:
        """Say once a minute what was done, if there was anything."""
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
        if not status.belongs:
            self._joining.set()
        elif status.version != self._version:
            self._version = status.version
            self.runner.changed.set()

    async def _rejoin(self) -> None:
        """Join again when the others have dropped this member, or all data is gone."""
        backoff = Backoff(base_s=0.1, cap_s=5.0)
        while True:
            await self._joining.wait()
            try:
                async with self._changing:
                    if self.runner.leaving:
                        return
                    # What the stream is may be gone, too: nobody may declare it otherwise.
                    await agree(self._link, shape_of(self.processor.stream))
                    await self._membership.change("join")
                self._ownership.mark_started()
                self._joining.clear()
                backoff.reset()
                logger.warning("processor_joined_again processor=%s", self.processor.id)
                self.runner.changed.set()
            except BrokerError:
                await asyncio.sleep(backoff.next_s())
