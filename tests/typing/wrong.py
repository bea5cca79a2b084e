"""What type checkers have to refuse of jobs: each line that says so. Never run.

Both say that an ignored line has nothing to ignore; the test has them read it without.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from chancy import Chancy, Job, Reference
from chancy.plugins.redis.streams import Events
from tests.typing.right import AT, Order, Other, add, count, draw, forget, orders, send, streams


def calls() -> None:
    add.job()  # type: ignore[call-arg]
    add.job("1")  # type: ignore[arg-type]
    add.job(1, 2, 3)  # type: ignore[call-arg]
    add.job(1, c=2)  # type: ignore[call-arg]
    add.job(a=1, b=None)  # type: ignore[arg-type]
    send.job(1)  # type: ignore[arg-type]
    send.job("a", AT)  # type: ignore[call-arg]
    send.job("a", at="tomorrow")  # type: ignore[arg-type]
    send.job.with_queue("other")(to=b"a")  # type: ignore[arg-type]
    draw.job("a", color=1)  # type: ignore[arg-type]
    draw.job("a", weight=1)  # type: ignore[call-arg]
    forget.job(key=None)  # type: ignore[arg-type]
    add.job.with_priority("high")  # type: ignore[arg-type]
    add("1")  # type: ignore[arg-type]


async def results(chancy: Chancy) -> tuple[object, ...]:
    text: str = await (await chancy.push(add.job(1))).result()  # type: ignore[assignment]
    moment: int = chancy.sync_push(send.job("a")).sync_result()  # type: ignore[assignment]
    reference: Reference[str] = await chancy.push(add.job(1))  # type: ignore[arg-type]
    narrower: Job[bool] = add.job(1)  # type: ignore[assignment]
    await chancy.push(add)  # type: ignore[call-overload]
    await chancy.push(add.job)  # type: ignore[call-overload]
    await chancy.push(add(1))  # type: ignore[call-overload]
    (await chancy.push(add.job(1))).id = "x"  # type: ignore[assignment]
    return text, moment, reference, narrower


async def of_streams(events: Events[Order]) -> None:
    await orders.send(Other(order_id=1))  # type: ignore[arg-type]
    await orders.send({"order_id": 1})  # type: ignore[arg-type]
    await orders.send_many([1, 2])  # type: ignore[list-item]
    orders.sync_send("order")  # type: ignore[arg-type]
    streams.stream("a", record=dict, partition_by="id")  # type: ignore[type-var]
    streams.stream("b", record=Order, partition_by=lambda one: one.nope)  # type: ignore[attr-defined]
    streams.stream("c", record=Order, partition_by="note", full="never")  # type: ignore[arg-type]
    streams.processor(orders, policy="halt")  # type: ignore[call-overload]
    streams.processor(orders, prefetsch=1)  # type: ignore[call-overload]
    streams.processor(orders)(count.function)  # type: ignore[arg-type]
    async for order in events.records():
        order.nope.upper()  # type: ignore[attr-defined]
