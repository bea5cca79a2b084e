"""A program in runnel's call shapes: orders are billed, and large ones go on to a second stream.

``python -m`` it with ``[PROCESSOR…]`` and ``SHOP_URL``, and on a cluster
``RUNNEL_REDIS_CLUSTER``; what it does is appended to the file ``SHOP_FILE``, a line each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chancy.plugins.redis.compat.runnel import App, ExceptionPolicy, Gzip, JSONSerializer, Record
from chancy.plugins.redis.compat.runnel.interfaces import Middleware
from chancy.plugins.redis.compat.runnel.worker import Worker

FILE = os.environ.get("SHOP_FILE", "")

app = App(
    name="shop",
    redis_url=os.environ.get("SHOP_URL", "redis://127.0.0.1:1"),
    log_level="info",
    default_join_delay=0,
    default_assignment_sleep=0.05,
    leadership_poll_interval=50,
)


class Order(Record):
    order_id: int
    created_at: datetime
    amount: int


class Large(Record, primitive=True):
    order_id: int
    amount: int


orders = app.stream("orders", record=Order, partition_by="order_id", partition_count=4)
large = app.stream("large", record=Large, partition_by=lambda one: one.order_id)
packed = app.stream(
    "packed", record=Order, partition_by="order_id", serializer=JSONSerializer(compressor=Gzip())
)


def note(text: str) -> None:
    with Path(FILE).open("a") as file:
        file.write(f"{text}\n")


class Watching(Middleware):
    """Middleware in runnel's shape."""

    async def handler(self, parent: AsyncIterator[Any], **kwargs: Any) -> AsyncGenerator[Any, None]:
        async for item in parent:
            note(f"handed to {item.group}")
            try:
                yield item
            except GeneratorExit:
                note("the middleware saw the end")
                raise


@app.processor(orders, exception_policy=ExceptionPolicy.IGNORE, middleware=[Watching()])
async def bill(events: Any) -> None:
    async for order in events.records():
        if order.amount < 0:
            raise ValueError("negative")
        note(f"billed {order.order_id}")
        if order.amount > 100:
            await large.send(Large(order_id=order.order_id, amount=order.amount))


@app.processor(large, prefetch_count=2)
async def check(events: Any) -> None:
    async for batch in events.take(10, 0.05).records():
        for one in batch:
            note(f"checked {one.order_id}")


@app.task
async def warm() -> None:
    note("warm")


@app.task(on_leader=True)
async def seed() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    amounts = [50, 150, -1, 250]
    await orders.send(
        *(Order(order_id=at, created_at=now, amount=amount) for at, amount in enumerate(amounts))
    )


@app.timer(interval=0.05)
async def tick() -> None:
    note("tick")


@app.crontab("0 6 * * *", timezone="Europe/Berlin", on_leader=True)
async def report() -> None:
    note("report")


if __name__ == "__main__":
    Worker(app).start(processors=sys.argv[1:] or "all")
