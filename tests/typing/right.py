"""What type checkers know of jobs. Never run: they read it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from typing_extensions import TypedDict, Unpack

from chancy import (
    Chancy,
    Job,
    JobFactory,
    QueuedJob,
    Reference,
    as_completed,
    gather,
    job,
    sync_as_completed,
    sync_gather,
)
from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams import BlockingEvents, Events, Halt, Record, Stream, Streams
from chancy.results.reference import References
from chancy.retry import Exponential

AT = datetime(2030, 1, 1, tzinfo=UTC)


@job
def add(a: int, b: int = 0) -> int:
    return a + b


@job(queue="mail", retry={ConnectionError: Exponential(base_s=5), Exception: False})
async def send(to: str, *, at: datetime | None = None) -> datetime:
    return at or AT


@job()
async def forget(key: str) -> None: ...


class Options(TypedDict, total=False):
    color: str
    size: int


@job()
def draw(name: str, **options: Unpack[Options]) -> list[str]:
    return [name, *options]


@job()
def later(n: int) -> Awaitable[str]:
    """A plain function that gives something to await: the job is what the function returns."""
    raise NotImplementedError


def plain(n: int) -> float:
    return n


async def waited(n: int) -> float:
    return n


def factories() -> tuple[object, ...]:
    assert_type(add.job(1), Job[int])
    assert_type(add.job(1, 2), Job[int])
    assert_type(add.job(a=1, b=2), Job[int])
    assert_type(send.job("a"), Job[datetime])
    assert_type(send.job(to="a", at=AT), Job[datetime])
    assert_type(forget.job("a"), Job[None])
    assert_type(draw.job("a", color="red", size=3), Job[list[str]])
    assert_type(Job.from_func(plain, n=1), Job[float])
    assert_type(Job.from_func(waited, n=1), Job[float])
    # Variants keep what is known.
    assert_type(send.job.with_queue("other").with_priority(3)("a"), Job[datetime])
    assert_type(send.job("a").with_delay(timedelta(seconds=1)).with_max_attempts(3), Job[datetime])
    # A job is of a wider type, too: its result is only read.
    wider: Job[object] = add.job(1)
    any_job: Job = send.job("a")
    factory: JobFactory[..., object] = add.job
    return wider, any_job, factory


async def functions() -> None:
    """They are still what they were."""
    assert_type(add(1, b=2), int)
    assert_type(await send("a"), datetime)


async def references(chancy: Chancy) -> None:
    number = await chancy.push(add.job(1))
    assert_type(number, Reference[int])
    assert_type(await number.result(), int)
    assert_type(number.sync_result(timeout_s=1), int)
    assert_type(await number.wait(), QueuedJob)
    assert_type(chancy.sync_push(send.job("a")), Reference[datetime])
    many = await chancy.push_many(send.job(to) for to in ("a", "b"))
    assert_type(many, References[datetime])
    assert_type(many[0], Reference[datetime])
    assert_type(many[:1], list[Reference[datetime]])
    assert_type(chancy.sync_push_many([add.job(1)]), References[int])
    assert_type(await gather(many), list[datetime])
    assert_type(as_completed(many), AsyncIterator[Reference[datetime]])
    assert_type(sync_gather(many), list[datetime])
    assert_type(sync_as_completed(many), Generator[Reference[datetime], None, None])
    mixed: list[Job[Any]] = [add.job(1), send.job("a")]
    await chancy.push_many(mixed)


class Order(Record):
    order_id: int
    note: str = ""


class Other(Record):
    order_id: int


streams = Streams(RedisSettings())
orders = streams.stream("orders", record=Order, partition_by="order_id")
by_note = streams.stream("by-note", record=Order, partition_by=lambda order: order.note)


@streams.processor(orders, policy=Halt())
async def bill(events: Events[Order]) -> None:
    async for order in events.records():
        assert_type(order, Order)
    async for batch in events.records().take(10, within=1):
        assert_type(batch, list[Order])
    async for event in events:
        assert_type(event.record(), Order)


@streams.processor(orders, mode="thread")
def count(events: BlockingEvents[Order]) -> None:
    for order in events.records():
        assert_type(order, Order)


async def sending() -> None:
    assert_type(orders, Stream[Order])
    assert_type(await orders.send(Order(order_id=1), ids=["1-1"]), list[str])
    assert_type(await orders.send_many(Order(order_id=at) for at in range(3)), int)
    assert_type(orders.sync_send(Order(order_id=1)), list[str])
