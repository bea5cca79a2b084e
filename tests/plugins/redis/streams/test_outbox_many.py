"""Any number of events that are sent inside one transaction of Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import pytest

from chancy.plugins.redis.streams.producing.stream import Stream
from tests.plugins.redis.streams.orders import Order, every, orders
from tests.plugins.redis.streams.outbox_shop import opened


async def test_a_row_of_another_declaration_is_not_relayed_along_with_those_before_it(
    dsn: str, redis_url: str
) -> None:
    async with opened(dsn, redis_url) as shop:
        kept = shop.stream
        other = Stream(
            kept.name,
            link=kept.link,
            coding=kept.coding,
            route=kept.route,
            partitions=3,
            outbox=shop.redis.streams.outbox,
        )
        resized = Stream(
            kept.name,
            link=kept.link,
            coding=kept.coding,
            route=kept.route,
            partitions=2,
            size=7,
            outbox=shop.redis.streams.outbox,
        )
        async with shop.chancy.transaction() as tx:
            await kept.send(*orders(0), within=tx)
            await resized.send(*orders(2), within=tx)
            await other.send(*orders(3), within=tx)
            await kept.send(*orders(4), within=tx)
        await shop.relay().turn()
        assert await every(kept) == [[0, 2], []]
        assert await shop.waiting() == [(0, 1), (0, 1)]
        rows = await shop.store.fetch("select problem from chancy.redis_events order by pos")
        assert "has 2 partitions, but is declared here with 3" in rows[0][0]


async def test_any_number_is_sent_within_a_transaction(dsn: str, redis_url: str) -> None:
    async with opened(dsn, redis_url) as shop:
        told: list[int] = []

        async def made(count: int, *, failing: bool = False) -> AsyncGenerator[Order]:
            for id in range(count):
                yield Order(order_id=id)
            if failing:
                raise ZeroDivisionError

        async def undone() -> None:
            async with shop.chancy.transaction() as tx:
                await shop.stream.send_many(made(2_500, failing=True), within=tx)

        def send() -> None:
            with psycopg.connect(dsn) as connection:
                rest = orders(*range(2_500, 3_700))
                assert (
                    shop.stream.sync_send_many(rest, within=connection, progress=told.append)
                    == 1200
                )
                assert shop.stream.sync_send_many([], within=connection) == 0

        with pytest.raises(ZeroDivisionError):
            await undone()
        assert await shop.waiting() == []
        async with shop.chancy.transaction() as tx:
            assert (
                await shop.stream.send_many(made(2_500), within=tx, progress=told.append) == 2_500
            )
            assert await every(shop.stream) == [[], []]
        await asyncio.to_thread(send)
        assert told == [1_000, 2_000, 2_500, 1_000, 1_200]
        assert sum(events for _, events in await shop.waiting()) == 3_700
        await shop.relayed()
        assert await every(shop.stream) == [[*range(0, 3_700, 2)], [*range(1, 3_700, 2)]]
