"""Workers of a stream in the process of a test, each with its own client and membership."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group.executor import StreamExecutor
from chancy.plugins.redis.streams.group.heartbeat import MemberHeartbeat
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from tests.support.waiting import eventually


class Order(Record):
    key: int
    seq: int


@dataclass(frozen=True, slots=True)
class Seen:
    """An event that a worker has received."""

    worker: int
    partition: int
    order: Order


Handler = Callable[[int, Events[Order]], Awaitable[None]]


def in_turn(key: int) -> int:
    """A hasher with predictable partitions."""
    return key


def beat_often(monkeypatch: pytest.MonkeyPatch, every_s: float = 0.2) -> None:
    """Send heartbeats often although leases are longer than a busy machine stands still."""
    begin = MemberHeartbeat.__init__

    def often(beat: MemberHeartbeat, *args: Any, **named: Any) -> None:
        begin(beat, *args, **named)
        beat._every_s = every_s

    monkeypatch.setattr(MemberHeartbeat, "__init__", often)


def orders_of(streams: Streams, partitions: int, **options: Any) -> Stream[Order]:
    """Declare the stream of orders."""
    return streams.stream(
        "orders", record=Order, partition_by="key", partitions=partitions, hasher=in_turn, **options
    )


@dataclass
class Worker:
    """One worker: its streams, and the task that serves them."""

    number: int
    streams: Streams
    stream: Stream[Order]
    task: asyncio.Task[None] | None = None

    @property
    def executor(self) -> StreamExecutor:
        return self.streams.executors[0]

    @property
    def owned(self) -> set[int]:
        """The partitions that it owns now."""
        if not self.streams.executors:
            return set()
        return {lane.number for lane in self.executor.runner.partitions if not lane.over}


@dataclass
class Fleet:
    """Workers that come and go, and what they have seen.

    :param handler: their function, or `blocking`, which they run in threads.
    :ivar bad: numbers of the orders at which they fail, without a function of their own.
    """

    url: str
    partitions: int = 8
    cluster: bool = False
    batch: int = 1
    handler: Handler | None = None
    blocking: Callable[[int, BlockingEvents[Order]], None] | None = None
    stream_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)
    workers: dict[int, Worker] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        self.sender = self._declare()
        self.orders = self.sender.stream

    def _declare(self) -> Worker:
        settings = RedisSettings(url=self.url, cluster=self.cluster, prefix="t:")
        streams = Streams(settings)
        stream = orders_of(streams, self.partitions, **self.stream_options)
        self._next += 1
        return Worker(self._next, streams, stream)

    async def start(self) -> Worker:
        """Start one more worker."""
        worker = self._declare()
        quick: dict[str, Any] = {"join_delay_s": 0, "check_s": 0.5, "lease_s": 5.0}

        async def handle(events: Events[Order]) -> None:
            if self.handler is not None:
                await self.handler(worker.number, events)
            elif self.batch > 1:
                async for batch in events.records().take(self.batch, within=0.02):
                    for order in batch:
                        self.note(worker.number, events, order)
            else:
                async for order in events.records():
                    if order.seq in self.bad:
                        raise ValueError(f"event {order.seq}")
                    self.note(worker.number, events, order)

        def work(events: BlockingEvents[Order]) -> None:
            assert self.blocking is not None
            self.blocking(worker.number, events)

        mode: dict[str, Any] = {} if self.blocking is None else {"mode": "thread"}
        chosen: Any = handle if self.blocking is None else work
        worker.streams.processor(worker.stream, name="handle", **(quick | mode | self.options))(
            chosen
        )
        worker.task = asyncio.create_task(worker.streams.serve())
        self.workers[worker.number] = worker
        return worker

    async def settle(self, count: int = 1) -> Worker:
        """Start workers, and wait until all have their share; returns the last one."""
        worker = await self.start()
        for _ in range(count - 1):
            worker = await self.start()
        await eventually(self.settled)
        return worker

    def note(
        self, worker: int, events: Events[Order] | BlockingEvents[Order], order: Order
    ) -> None:
        self.seen.append(Seen(worker, events.partition, order))

    async def stop(self, worker: Worker) -> None:
        """Stop a worker as SIGTERM does."""
        task, worker.task = worker.task, None
        self.workers.pop(worker.number, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        for worker in list(self.workers.values()):
            await self.stop(worker)
        await self.sender.streams.link.close()

    async def send(self, first: int, count: int, *, keys: int = 20) -> None:
        """Send orders with consecutive numbers, of this many keys in turn."""
        await self.orders.send(
            *(Order(key=number % keys, seq=number) for number in range(first, first + count))
        )

    def settled(self) -> bool:
        """Whether every partition has one owner, and shares differ by at most one."""
        owned = [worker.owned for worker in self.workers.values()]
        counts = sorted(map(len, owned))
        return (
            sum(counts) == len(set().union(*owned)) == self.partitions
            and counts[-1] - counts[0] <= 1
        )

    @property
    def numbers(self) -> list[int]:
        """The numbers of the orders, in the order of their processing."""
        return [one.order.seq for one in self.seen]

    def out_of_order(self) -> Sequence[tuple[int, list[int]]]:
        """The keys whose orders were processed out of order, with the numbers."""
        by_key: dict[int, list[int]] = defaultdict(list)
        for one in self.seen:
            by_key[one.order.key].append(one.order.seq)
        return [(key, found) for key, found in by_key.items() if found != sorted(found)]

    async def groups(self) -> list[dict[str, Any]]:
        """The state of the group of each partition."""
        found: list[dict[str, Any]] = []
        for number in range(self.partitions):
            reply = await self.orders.link.command("XINFO", "GROUPS", self.orders.keys.log(number))
            found.extend(_named(group) for group in reply)
        return found

    async def pending(self) -> int:
        return sum(group["pending"] for group in await self.groups())

    async def idle(self) -> bool:
        """Whether all events that were read are acknowledged."""
        return await self.pending() == 0


def _named(group: Any) -> dict[str, Any]:
    if isinstance(group, dict):
        return {_text(name): value for name, value in group.items()}
    return {_text(name): value for name, value in zip(group[::2], group[1::2], strict=True)}


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


@contextlib.asynccontextmanager
async def fleet(url: str, **options: Any) -> AsyncGenerator[Fleet]:
    """A fleet without workers, which is stopped at the end."""
    made = Fleet(url, **options)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def working(streams: Streams) -> AsyncGenerator[None]:
    """Serve streams within the block."""
    task = asyncio.create_task(streams.serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
