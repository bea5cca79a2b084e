"""The runner: acquires the partitions that the plan assigns to this member; releases others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.plugins.redis.streams.group.fetcher import Fetcher
from chancy.plugins.redis.streams.group.halts import Exit, Halts
from chancy.plugins.redis.streams.group.membership import Membership, PartitionPlan
from chancy.plugins.redis.streams.group.waiter import Waiter
from chancy.plugins.redis.streams.processing.cancellation import interrupt
from chancy.plugins.redis.streams.processing.consumer import Consumer, ConsumerEnd
from chancy.plugins.redis.streams.processing.counters import Counters
from chancy.plugins.redis.streams.processing.ownership import Busy, Ownership, Parked
from chancy.plugins.redis.streams.processing.partition import OwnedPartition, report_loss
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.redis_client import RedisClient

logger = logging.getLogger("chancy.redis.streams")

#: Minimum and maximum seconds until a partition owned by another member is retried.
_SOON_S, _LATE_S = 0.05, 1.0


class PartitionRunner:
    """The owned partitions of a processor in this worker, each with its consumer."""

    def __init__(
        self,
        link: RedisClient,
        processor: Processor[Any],
        ownership: Ownership,
        membership: Membership,
        leave: Exit,
    ) -> None:
        self._processor = processor
        self._ownership = ownership
        self._membership = membership
        self.counters = Counters()
        self._partitions: dict[int, OwnedPartition[Any]] = {}
        self._consumers: dict[int, asyncio.Task[ConsumerEnd]] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[ConsumerEnd]] = set()
        self._released_now = False
        self._overdue = Overdue(processor)
        self._retry_s: float | None = None
        # Partitions whose consumer failed, and until when they are not acquired again.
        self._resting: dict[int, float] = {}
        self._rest = Backoff(base_s=0.1, cap_s=10.0)
        #: Quarantined partitions of this processor that this worker has tried to acquire.
        self.parked: set[int] = set()
        self._halts = Halts(ownership, leave)
        self._returning: list[OwnedPartition[Any]] = []
        self._acquiring = asyncio.Lock()
        #: Whether the worker is stopping: it acquires no more partitions.
        self.leaving = False
        #: Set when the plan may have changed, or the ownership of a partition has ended.
        self.changed = asyncio.Event()
        self._waiter = Waiter(link, processor, self._partitions.values)
        self._fetcher = Fetcher(link, processor, membership.member, self._waiter, self.counters)

    @property
    def partitions(self) -> Sequence[OwnedPartition[Any]]:
        """The partitions that are owned now. Thread-safe."""
        return list(self._partitions.values())

    @property
    def halted(self) -> Collection[int]:
        """Partitions that a policy has halted in this worker."""
        return self._halts.numbers

    async def serve(self) -> None:
        """Follow the plan until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._waiter.serve(), name="waiter")
            group.create_task(self._fetcher.serve(), name="fetcher")
            group.create_task(self._follow(), name="runner")

    async def _follow(self) -> None:
        version = 0
        while True:
            self.changed.clear()
            try:
                plan = await self._membership.plan()
                if plan.version != version:
                    version = plan.version
                    self.counters.rebalances += 1
                await self.follow(plan)
            except BrokerError as error:
                logger.warning(
                    "stream_plan_unknown processor=%s error=%s", self._processor.id, error
                )
            check_s = self._processor.options.check_s
            pause_s = check_s if self._retry_s is None else min(check_s, self._retry_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def follow(self, plan: PartitionPlan) -> None:
        """Start to release the partitions of other members, and acquire those of this member."""
        assigned = plan.of(self._membership.member)
        for number, partition in list(self._partitions.items()):
            if partition.lost or number not in assigned:
                self._release(partition)
        self._retry_s = None
        wanted = [
            number
            for number in sorted(assigned)
            if number not in self._partitions and number not in self._leaving
        ]
        self._overdue.retain(wanted)
        wanted = [number for number in wanted if not self._rests(number)]
        async with self._acquiring:
            if wanted and not self.leaving:
                await self._acquire(wanted)

    async def _acquire(self, wanted: Collection[int]) -> None:
        claims = await self._ownership.acquire(wanted)
        acquired = []
        for number, claim in claims.items():
            match claim:
                case OwnedPartition():
                    self._start(claim)
                    acquired.append(number)
                    if self.leaving:
                        self._release(claim)
                case Busy(left_s=left_s):
                    self._wait_for(number, left_s)
                case Parked():
                    if number not in self.parked:
                        self.parked.add(number)
                        logger.warning(
                            "partition_skipped processor=%s partition=%d: "
                            "lift it with `chancy redis stream resume`",
                            self._processor.id,
                            number,
                            extra={"partition": number},
                        )
                case BrokerError():
                    self._overdue.refuse(number, claim)
                    self._retry_s = _LATE_S
        if acquired:
            logger.info(
                "partitions_acquired processor=%s partitions=%s",
                self._processor.id,
                ",".join(map(str, acquired)),
            )

    def _rests(self, number: int) -> bool:
        """Return whether the consumer of a partition failed a moment ago; schedule a retry."""
        left_s = self._resting.get(number, 0.0) - time.monotonic()
        if left_s <= 0:
            self._resting.pop(number, None)
            return False
        self._retry_s = left_s if self._retry_s is None else min(self._retry_s, left_s)
        return True

    def _start(self, partition: OwnedPartition[Any]) -> None:
        self.parked.discard(partition.number)
        self._overdue.clear(partition.number)
        self._partitions[partition.number] = partition
        self._fetcher.add(partition)
        self._consume(partition)

    def _consume(self, partition: OwnedPartition[Any]) -> None:
        consumer = Consumer(self._processor, partition, self._ownership, self.counters)
        name = f"{self._processor.id} {partition.number}"
        task = asyncio.create_task(consumer.run(), name=name)
        self._consumers[partition.number] = task
        task.add_done_callback(lambda task: self._ended(partition, task))

    def _ended(self, partition: OwnedPartition[Any], task: asyncio.Task[ConsumerEnd]) -> None:
        interrupted = task.cancelled() and partition.closing
        if interrupted or self._partitions.get(partition.number) is not partition:
            return
        # A processor may cancel its own task: the partition must not stay without a consumer.
        if task.cancelled() or task.exception() is not None:
            logger.error(
                "stream_consumer_failed processor=%s partition=%d",
                self._processor.id,
                partition.number,
                exc_info=None if task.cancelled() else task.exception(),
                extra={"partition": partition.number},
            )
            partition.lose()
            if partition.finished:
                self._rest.reset()
            self._resting[partition.number] = time.monotonic() + self._rest.next_s()
        else:
            match task.result():
                case ConsumerEnd.HALTED | ConsumerEnd.EXITING as end:
                    self._halts.add(
                        partition, leave=end is ConsumerEnd.EXITING, ending=self.leaving
                    )
                    return
                case ConsumerEnd.PARKED:
                    self.parked.add(partition.number)
                case ConsumerEnd.CLOSED:
                    pass
        self.changed.set()

    def _wait_for(self, number: int, left_s: float) -> None:
        """Schedule a retry: the owner may be dead, or release it soon and notify."""
        self._overdue.wait(number)
        soon_s = min(max(left_s, _SOON_S), _LATE_S)
        self._retry_s = soon_s if self._retry_s is None else min(self._retry_s, soon_s)

    def resume(self, only: Collection[int] | None = None) -> None:
        """Resume halted partitions, and try to acquire those whose quarantine was lifted.

        :param only: the partitions to resume; None: all.
        """
        for partition in self._halts.lift(self._partitions, only):
            self._consume(partition)
        self.changed.set()

    # Release

    def _release(self, partition: OwnedPartition[Any]) -> None:
        if partition.number not in self._leaving:
            name = f"release {self._processor.id} {partition.number}"
            task = asyncio.create_task(self._stop_and_release(partition), name=name)
            self._leaving[partition.number] = task
            task.add_done_callback(lambda _: self._released(partition))

    def _released(self, partition: OwnedPartition[Any]) -> None:
        self._leaving.pop(partition.number, None)
        self.changed.set()

    async def _stop_and_release(self, partition: OwnedPartition[Any]) -> None:
        """Stop the consumer, gracefully if there is time, and release the partition."""
        partition.close()
        consumer = self._consumers.pop(partition.number)
        grace_s = 0.0 if partition.lost or self._released_now else self._processor.options.grace_s
        self._ending.add(consumer)
        consumer.add_done_callback(self._ending.discard)
        ended, _ = await asyncio.wait([consumer], timeout=grace_s)
        if not ended:
            logger.warning(
                "processor_interrupted processor=%s partition=%d grace_s=%.1f: its current events "
                "are delivered again",
                self._processor.id,
                partition.number,
                grace_s,
                extra={"partition": partition.number},
            )
            if not await interrupt(consumer):
                logger.error(
                    "processor_abandoned processor=%s partition=%d: it ignores its interruption; "
                    "its acknowledgements are refused",
                    self._processor.id,
                    partition.number,
                    extra={"partition": partition.number},
                )
        self._halts.drop(partition)
        await partition.hold()
        if partition.lost:
            self._partitions.pop(partition.number, None)
            return
        self._returning.append(partition)
        # Partitions whose consumers end at the same time are released in one round trip.
        if len(self._returning) == 1:
            await asyncio.sleep(0)
            await self._return_all()
        else:
            await partition.returned.wait()

    async def _return_all(self) -> None:
        partitions, self._returning = self._returning, []
        try:
            replies = await self._ownership.release(partitions)
        except BrokerError as error:
            replies = [error] * len(partitions)
        finally:
            # The heartbeat has extended their leases until here.
            for partition in partitions:
                self._partitions.pop(partition.number, None)
                partition.returned.set()
        for partition, reply in zip(partitions, replies, strict=True):
            if isinstance(reply, BrokerError):
                logger.warning(
                    "partition_not_released processor=%s partition=%d error=%s: its lease will end",
                    self._processor.id,
                    partition.number,
                    reply,
                    extra={"partition": partition.number},
                )
            elif reply:
                self.counters.acked += len(partition.acked)
            else:
                self.counters.fenced += 1
                report_loss(self._processor.id, partition, "another member owned it at its release")
        if True in replies:
            await self._notify_released()

    async def _notify_released(self) -> None:
        """Notify the other members that partitions are free."""
        try:
            await self._membership.notify("released")
        except BrokerError as error:
            logger.warning("stream_tell_failed processor=%s error=%s", self._processor.id, error)

    async def release_all(self) -> None:
        """Release all partitions, gracefully within the grace period."""
        async with self._acquiring:
            pass  # wait for an acquisition in flight, to release its partitions too
        for partition in list(self._partitions.values()):
            self._release(partition)
        while self._leaving:
            await asyncio.wait(list(self._leaving.values()))

    def interrupt_now(self) -> None:
        """Interrupt the consumers that are still stopping."""
        self._released_now = True
        for consumer in self._ending:
            consumer.cancel()


class Overdue:
    """Logs partitions that could not be acquired for the alarm time, each once."""

    def __init__(self, processor: Processor[Any]) -> None:
        self._processor = processor
        self._since: dict[int, float] = {}
        self._alarmed: set[int] = set()

    def wait(self, number: int) -> None:
        """Record that a partition could not be acquired now."""
        now = time.monotonic()
        since = self._since.setdefault(number, now)
        if now - since > self._processor.options.alarm_s and number not in self._alarmed:
            self._alarmed.add(number)
            logger.error(
                "partition_not_handed_over processor=%s partition=%d waited_s=%.0f: "
                "another worker holds it although the plan assigns it to this one",
                self._processor.id,
                number,
                now - since,
                extra={"partition": number},
            )

    def refuse(self, number: int, error: BrokerError) -> None:
        """Log that Redis refused an acquisition."""
        logger.warning(
            "partition_not_acquired processor=%s partition=%d error=%s",
            self._processor.id,
            number,
            error,
            extra={"partition": number},
        )

    def retain(self, wanted: Collection[int]) -> None:
        """Forget all partitions but these."""
        for number in list(self._since):
            if number not in wanted:
                self.clear(number)

    def clear(self, number: int) -> None:
        """Forget a partition that was acquired or is no longer assigned."""
        self._since.pop(number, None)
        self._alarmed.discard(number)
