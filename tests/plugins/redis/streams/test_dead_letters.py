"""Dead letters of events, beside those of jobs."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID, uuid4

import pytest

from chancy.plugins.dead_letter import DeadLetter, DeadLetters, LetterFilter
from chancy.plugins.redis.streams.dead_letters import EventLetters
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing.events import Events
from chancy.worker.worker import Worker
from tests.plugins.redis.streams.orders import Order, orders
from tests.plugins.redis.streams.outbox_shop import Shop, opened
from tests.support.waiting import eventually, gives

LETTERS = DeadLetters()
BILL = LetterFilter(func="orders/bill")


@pytest.fixture
async def shop(dsn: str, redis_url: str) -> AsyncGenerator[Shop]:
    async with opened(dsn, redis_url) as made:
        yield made


class Bill:
    """A processor that refuses some orders."""

    def __init__(self, shop: Shop, *refused: int) -> None:
        self.refused, self.seen = set(refused), list[int]()
        keep = Ignore(keep=True)

        @shop.redis.streams.processor(shop.stream, name="bill", join_delay_s=0, policy=keep)
        async def bill(events: Events[Order]) -> None:
            async for order in events.records():
                if order.order_id in self.refused:
                    raise ValueError(f"order {order.order_id}")
                self.seen.append(order.order_id)


async def buried(shop: Shop) -> int:
    keys = [shop.stream.keys.dead(number, "bill") for number in (0, 1)]
    return sum([await shop.stream.link.command("XLEN", key) for key in keys])


async def filed(shop: Shop, number: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []

    async def all_of_them() -> bool:
        await LETTERS.file_missing(shop.chancy)
        found[:] = await LETTERS.find(shop.chancy, BILL)
        return len(found) == number

    await eventually(all_of_them)
    return found


async def test_an_event_is_filed_replayed_and_handled(shop: Shop) -> None:
    bill = Bill(shop, 3, 4)
    async with Worker(shop.chancy):
        await shop.stream.send(*orders(*range(6)))
        letters = {
            letter.arguments["order_id"]: letter
            for letter in await filed(shop, 2)
            if letter.arguments
        }
        await eventually(lambda: gives(buried(shop), 0))
        letter = letters[3]
        assert (letter.queue, letter.reason, letter.error) == (
            "orders",
            "event",
            "builtins.ValueError",
        )
        assert letter.message == "order 3"
        assert await LETTERS.count(shop.chancy, LetterFilter(error="ValueError")) == 2
        bill.refused.clear()
        again = await LETTERS.replay(shop.chancy, letter.id)
        assert again is not None
        assert await LETTERS.replay(shop.chancy, letter.id) is None, "it was replayed"
        assert await LETTERS.replay_all(shop.chancy, BILL) == 1
        await eventually(lambda: sorted(bill.seen) == list(range(6)))
        assert await LETTERS.purge(shop.chancy, letter.id)
        assert await LETTERS.count(shop.chancy, BILL) == 1
    assert await shop.store.fetch("select id from chancy.jobs") == []


async def refused(shop: Shop) -> DeadLetter:
    """The dead letter of a refused order."""
    Bill(shop, 1)
    async with Worker(shop.chancy):
        await shop.stream.send(*orders(1))
        (letter,) = await filed(shop, 1)
    return letter


async def test_applications_replay_events_of_their_streams_without_a_processor_of_them(
    shop: Shop, dsn: str, redis_url: str
) -> None:
    """Events of another application in the same schema are not replayed."""
    letter = await refused(shop)
    async with opened(dsn, redis_url, prefix="u:") as other:
        Bill(other)
        assert await LETTERS.replay(other.chancy, letter.id) is None
    assert await shop.waiting() == []
    async with opened(dsn, redis_url) as sender:
        assert await LETTERS.replay(sender.chancy, letter.id) is not None
    assert await shop.waiting() == [(1, 1)]


async def test_a_replay_without_an_answer_sends_an_event_once(shop: Shop) -> None:
    letter = await refused(shop)
    broker: Any = shop.chancy.broker

    async def replay(new: UUID, *, force: bool) -> object:
        return await broker.replay_letters(broker, [letter.id], [new], force=force)

    first, second = uuid4(), uuid4()
    for _ in range(2):
        assert await replay(first, force=True) == {letter.id: first}
    assert await replay(second, force=False) == {}
    assert await shop.waiting() == [(1, 1)]
    assert await replay(second, force=True) == {letter.id: second}
    assert await shop.waiting() == [(1, 1)] * 2


async def test_an_event_that_cannot_be_read_or_was_filed_before_is_filed_once(shop: Shop) -> None:
    Bill(shop)
    key = shop.stream.keys.dead(1, "bill")
    fields = ("data", b"\xff\0{", "_xid", f"{10**18}-1", "_error", "E: no", "_at", 1_000)
    await shop.stream.link.command("XADD", key, "7-1", *fields)
    (letter,) = await filed(shop, 1)
    assert letter.arguments == {"data": "\\xff\\0{"}
    assert (letter.error, letter.message, letter.died_at.timestamp()) == ("E", "no", 1.0)
    # As after a worker died before it deleted the entry.
    await shop.stream.link.command("DEL", key)
    await shop.stream.link.command("XADD", key, "7-1", *fields)
    assert await filed(shop, 1) == [letter]
    assert await buried(shop) == 0


async def test_a_record_that_postgres_refuses_does_not_hold_up_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Bill(shop, 0, 2, 4)
    refused = {0: '{"order_id": NaN}', 2: '{"note": "\\ud800"}'}
    proper = Order.model_dump_json

    def dumped(self: Order) -> str:
        return refused.get(self.order_id) or proper(self)

    monkeypatch.setattr(Order, "model_dump_json", dumped)
    async with Worker(shop.chancy):
        await shop.stream.send(*orders(0, 2, 4))
        letters = {letter.message: letter.arguments for letter in await filed(shop, 3)}
        await eventually(lambda: gives(buried(shop), 0))
    assert letters["order 0"] == {"data.json": '{"order_id":0,"note":""}'}
    assert letters["order 2"] == {}
    assert letters["order 4"] == {"order_id": 4, "note": ""}


async def test_few_large_events_are_filed_by_one_statement(shop: Shop) -> None:
    link, key = shop.stream.link, shop.stream.keys.dead(1, "bill")
    for size in (*[10] * 10, *[600_000] * 5):
        fields = ("data.json", b" " * size, "_xid", "1-1", "_error", "E: no", "_at", 1_000)
        await link.command("XADD", key, "*", *fields)
    counts = list[int]()

    class Counting:
        """The store; counts the dead letters of each statement."""

        schema = shop.store.schema

        async def fetch(self, text: str, rows: str) -> object:
            counts.append(len(json.loads(rows)))
            return await shop.store.fetch(text, rows)

    store: Any = Counting()
    await EventLetters(link, lambda: [(shop.stream, "bill")], list).archive(store)
    assert counts == [12, 2, 1]
    assert await LETTERS.count(shop.chancy, BILL) == 15
    assert await buried(shop) == 0


async def test_workers_file_events_without_being_asked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plugin,) = (one for one in shop.chancy.hooks.plugins if isinstance(one, DeadLetters))
    monkeypatch.setattr(plugin, "sweep_s", 0.1)
    Bill(shop, 2)
    async with Worker(shop.chancy):
        await shop.stream.send(*orders(2))
        await eventually(lambda: gives(LETTERS.count(shop.chancy, BILL), 1))
