"""The consumer: runs a processor's function over one partition and applies its policy."""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.log_context import ORIGIN, origin_here
from chancy.plugins.redis.streams.model.policy import (
    Halt,
    Ignore,
    Last,
    Policy,
    Quarantine,
    RetryInPlace,
)
from chancy.plugins.redis.streams.processing.counters import Counters
from chancy.plugins.redis.streams.processing.failures import ChildDied, described
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition, report_loss
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.streams.processing.run import Invocation, NotRun

logger = logging.getLogger("chancy.redis.streams")


class ConsumerEnd(enum.Enum):
    """The reason why a consumer ended."""

    CLOSED = "closed"
    HALTED = "halted"
    EXITING = "exiting"
    PARKED = "parked"


class Consumer:
    """Processes a partition until its ownership ends or the policy stops it."""

    def __init__(
        self,
        processor: Processor[Any],
        partition: OwnedPartition[Any],
        ownership: Ownership,
        counters: Counters,
    ) -> None:
        self._processor = processor
        self._partition = partition
        self._ownership = ownership
        self._counters = counters
        self._invocation = Invocation(processor, partition)
        self._backoff = Backoff(base_s=0.1, cap_s=10.0)
        self._failures = 0
        self._failing = ""

    async def run(self) -> ConsumerEnd:
        """Run the function repeatedly until the ownership ends. Cancel it to interrupt."""
        partition = self._partition
        # For this task, and for the threads and processes that it starts.
        ORIGIN.set(origin_here().narrowed(partition=partition.number))
        try:
            while not partition.over:
                try:
                    await self._invoke()
                except NotRun as failure:
                    await self._try_again(failure.why, failure.error)
                except Exception as error:
                    self._counters.failed += 1
                    end = await self._failed(error)
                    if end is not None:
                        return end
                else:
                    if not partition.over:
                        await self._try_again("it returned before its events ended", None)
        finally:
            await self._invocation.close()
        if not partition.closing:
            # If a heartbeat has extended the lease since, the partition would be held without a
            # consumer.
            report_loss(self._processor.id, partition, "its lease has ended here")
            partition.lose()
        return ConsumerEnd.CLOSED

    async def _invoke(self) -> None:
        """Run the function once. If it finishes events, the count of failures restarts."""
        done = self._partition.finished
        try:
            await self._invocation.run()
        finally:
            if self._partition.finished > done:
                self._failures = 0
                self._backoff.reset()

    async def _failed(self, error: Exception) -> ConsumerEnd | None:
        partition = self._partition
        first = partition.taken[0].xid if partition.taken else ""
        self._failures = self._failures + 1 if first == self._failing else 1
        self._failing = first
        logger.error(
            "processor_failed processor=%s partition=%d event=%s failures=%d error=%s",
            self._processor.id,
            partition.number,
            first or "none",
            self._failures,
            described(error),
            exc_info=error,
        )
        if partition.lost:
            return ConsumerEnd.CLOSED
        if partition.closing and isinstance(error, ChildDied):
            # Killed from outside during a shutdown: an interruption, not a failure.
            partition.put_back()
            return ConsumerEnd.CLOSED
        return await self._decide(self._processor.options.policy, error)

    async def _decide(self, policy: Policy, error: Exception) -> ConsumerEnd | None:
        match policy:
            case RetryInPlace():
                if self._failures > policy.times:
                    return await self._give_up(policy.then, error)
                self._partition.put_back()
                await self._pause(policy.pause_s(self._failures))
                return None
            case Halt() | Quarantine() | Ignore():
                return await self._give_up(policy, error)

    async def _give_up(self, policy: Last, error: Exception) -> ConsumerEnd | None:
        match policy:
            case Halt():
                self._halt(error)
                return ConsumerEnd.EXITING if policy.exit else ConsumerEnd.HALTED
            case Quarantine():
                return await self._park(error)
            case Ignore():
                if not self._partition.taken:
                    # There is no event to skip.
                    await self._try_again("it failed before its first event", error)
                elif not policy.keep:
                    self._partition.finish()
                else:
                    await self._bury(error)
                return None

    def _halt(self, error: Exception) -> None:
        self._partition.put_back()
        self._partition.halted = described(error)
        logger.critical(
            "partition_halted processor=%s partition=%d: it is not processed until the next "
            "owner, the next start, or `chancy redis stream resume`",
            self._processor.id,
            self._partition.number,
        )

    async def _park(self, error: Exception) -> ConsumerEnd:
        """Quarantine the partition after its acknowledgements in flight.

        They would be refused afterwards, and finished events would be delivered again.
        """
        partition = self._partition
        await partition.hold()
        try:
            return await self._park_quiet(partition, error)
        finally:
            partition.end_exchange()

    async def _park_quiet(self, partition: OwnedPartition[Any], error: Exception) -> ConsumerEnd:
        while not partition.lost:
            try:
                if await self._ownership.park(partition, error):
                    self._counters.acked += len(partition.acked)
                    # Before the fetcher continues: it would acknowledge again, and be refused.
                    partition.lose()
                    logger.critical(
                        "partition_quarantined processor=%s partition=%d: it is not processed "
                        "until `chancy redis stream resume`",
                        self._processor.id,
                        partition.number,
                    )
                    return ConsumerEnd.PARKED
                self._refused("a quarantine")
            except BrokerError as unavailable:
                await self._wait_for_redis("quarantine", unavailable)
        return ConsumerEnd.CLOSED

    async def _bury(self, error: Exception) -> None:
        """Write the failed events to the dead letters and acknowledge them, atomically."""
        partition = self._partition
        ids = [event.xid for event in partition.taken]
        while not partition.lost:
            try:
                written = await self._ownership.bury(partition, ids, error)
            except BrokerError as unavailable:
                await self._wait_for_redis("dead_letter", unavailable)
                continue
            if written is None:
                self._refused("a dead letter")
                return
            self._counters.dead += written
            self._counters.acked += len(ids)
            partition.taken.clear()
            return

    def _refused(self, what: str) -> None:
        self._counters.fenced += 1
        report_loss(self._processor.id, self._partition, f"{what} was refused")
        self._partition.lose()

    async def _wait_for_redis(self, what: str, error: BrokerError) -> None:
        pause_s = self._backoff.next_s()
        logger.warning(
            "stream_policy_postponed processor=%s partition=%d for=%s next_try_s=%.1f error=%s",
            self._processor.id,
            self._partition.number,
            what,
            pause_s,
            error,
        )
        await asyncio.sleep(pause_s)

    async def _try_again(self, why: str, error: BaseException | None) -> None:
        self._partition.put_back()
        pause_s = self._backoff.next_s()
        logger.warning(
            "processor_restarted processor=%s partition=%d next_try_s=%.1f: %s%s",
            self._processor.id,
            self._partition.number,
            pause_s,
            why,
            f", {described(error)}" if error else "",
        )
        await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the ownership ends first."""
        try:
            async with asyncio.timeout(seconds):
                await self._partition.ended.wait()
        except TimeoutError:
            return
