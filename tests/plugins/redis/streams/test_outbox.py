"""Events that are sent inside transactions of Postgres."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import resources
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy.errors import BrokerUnavailable, InvalidArguments
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing import relay
from chancy.plugins.redis.streams.producing.outbox import EventOutboxReader, EventOutboxRow
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.transport.scripts import ScriptCall
from chancy.postgres.statements import load
from chancy.worker.worker import Worker
from tests.integration.within.stacks import ASYNC_STACKS, SYNC_STACKS, AsyncStack, SyncStack
from tests.plans import functions
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order, every, orders, records
from tests.plugins.redis.streams.outbox_shop import Shop, opened
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually, eventually_sync, gives

_ID, _OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
async def shop(dsn: str, redis_url: str) -> AsyncGenerator[Shop]:
    async with opened(dsn, redis_url) as made:
        yield made


async def test_a_rollback_leaves_nothing_and_a_commit_all_in_order(shop: Shop) -> None:
    async def undone() -> None:
        async with shop.chancy.transaction() as tx:
            await shop.stream.send(*orders(*range(10)), within=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await undone()
    assert await shop.waiting() == []
    async with shop.chancy.transaction() as tx:
        assert await shop.stream.send(*orders(*range(5)), within=tx) == []
        assert await shop.stream.send(within=tx) == []
        await shop.stream.send(*orders(5, 6), within=tx)
    assert await shop.waiting() == [(0, 3), (1, 2), (1, 1), (0, 1)]
    assert await every(shop.stream) == [[], []]
    await shop.relayed()
    assert await every(shop.stream) == [[0, 2, 4, 6], [1, 3, 5]]


async def test_a_worker_relays_what_was_committed(dsn: str, redis_url: str) -> None:
    async with opened(dsn, redis_url) as shop:
        seen: list[int] = []

        @shop.redis.streams.processor(shop.stream, join_delay_s=0)
        async def bill(events: Events[Order]) -> None:
            async for batch in events.records().take(10, within=0.01):
                seen.extend(order.order_id for order in batch)

        async with Worker(shop.chancy):
            for first in range(0, 300, 3):
                await shop.commit(*range(first, first + 3))
            await eventually(lambda: len(seen) == 300)
            # Rows are deleted after their events were appended.
            await eventually(lambda: gives(shop.waiting(), []))
        for parity in (0, 1):
            assert [one for one in seen if one % 2 == parity] == list(range(parity, 300, 2))


#: One stack of each library; the tests of the core cover the others with jobs.
ASYNC = ("psycopg connection", "asyncpg connection", "AsyncSession on asyncpg")
SYNC = ("Session", "Django's connection")
SENT = [Order(order_id=0, note="ü\0\\"), Order(order_id=2, note="")]


@pytest.mark.parametrize("begin", [ASYNC_STACKS[name] for name in ASYNC], ids=ASYNC)
async def test_every_library_takes_them(
    shop: Shop, dsn: str, begin: Callable[[str], AbstractAsyncContextManager[AsyncStack]]
) -> None:
    async def undone(stack: AsyncStack) -> None:
        async with stack.transaction():
            await shop.stream.send(*SENT, within=stack.within)
            raise ZeroDivisionError

    async with begin(dsn) as stack:
        async with stack.transaction():
            await shop.stream.send(*SENT, within=stack.within)
            assert await shop.waiting() == []
        with pytest.raises(ZeroDivisionError):
            await undone(stack)
    assert await shop.waiting() == [(0, 2)]
    await shop.relayed()
    assert [order for _, order in await records(shop.stream)] == SENT


@pytest.mark.parametrize("begin", [SYNC_STACKS[name] for name in SYNC], ids=SYNC)
async def test_every_library_takes_them_in_threads(
    shop: Shop, dsn: str, begin: Callable[[str], AbstractContextManager[SyncStack]]
) -> None:
    def undone(stack: SyncStack) -> None:
        with stack.transaction():
            shop.stream.sync_send(*SENT, within=stack.within)
            raise ZeroDivisionError

    def send() -> None:
        with begin(dsn) as stack:
            with stack.transaction():
                assert shop.stream.sync_send(*SENT, within=stack.within) == []
            with pytest.raises(ZeroDivisionError):
                undone(stack)

    await asyncio.to_thread(send)
    assert await shop.waiting() == [(0, 2)]
    await shop.relayed()
    assert [order for _, order in await records(shop.stream)] == SENT


async def test_invalid_settings_are_refused(shop: Shop, redis_url: str) -> None:
    other = RedisPlugin(url=redis_url, prefix="t:").streams.stream(
        "orders", record=Order, partition_by="order_id", partitions=2, hasher=in_turn
    )
    async with shop.chancy.transaction() as tx:
        with pytest.raises(InvalidArguments, match="ids= and within= cannot be combined"):
            await shop.stream.send(*orders(1), ids=["1-1"], within=tx)
        with pytest.raises(TypeError, match="pass the RedisPlugin of these streams to a Chancy"):
            await other.send(*orders(1), within=tx)
    with pytest.raises(TypeError, match="within= must be"):
        await shop.stream.send(*orders(1), within=object())
    assert await shop.waiting() == []


async def test_a_relay_that_died_after_it_appended_repeats_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.commit(*range(6))

    async def die(_: EventOutboxReader, done: list[EventOutboxRow]) -> int:
        raise BrokerUnavailable("killed")

    monkeypatch.setattr(relay, "LEASE_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(EventOutboxReader, "delete", die)
        with pytest.raises(BrokerUnavailable, match="killed"):
            await shop.relay().turn()
    assert await every(shop.stream) == [[0, 2, 4], [1, 3, 5]]
    assert len(await shop.waiting()) == 2
    await shop.commit(6, 7)
    # As soon as the lease of the first relay has ended.
    await shop.emptied_by(shop.relay())
    assert await every(shop.stream) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    # The number of marks in Redis does not grow.
    assert await shop.stream.link.command("ZCARD", shop.stream.keys.relayed(0)) <= 2


async def test_a_relay_that_was_frozen_comes_too_late(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.commit(0, 2)
    take, frozen, thawed = EventOutboxReader.take, asyncio.Event(), asyncio.Event()

    async def freeze(outbox: EventOutboxReader, *args: Any) -> Any:
        taken = await take(outbox, 0.0, *args[1:])
        frozen.set()
        await thawed.wait()
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(EventOutboxReader, "take", freeze)
        late = asyncio.create_task(shop.relay().turn())
        await frozen.wait()
    await shop.relayed()
    await shop.commit(4)
    thawed.set()
    assert await late is False
    assert "stream_relay_late rows=1" in caplog.text
    await asyncio.sleep(0)
    assert await every(shop.stream) == [[0, 2], []]
    assert await shop.waiting() == [(0, 1)]


@pytest.mark.parametrize("whole", [True, False], ids=["call", "reply"])
async def test_a_script_that_arrives_after_its_retry_appends_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """As after a network outage: the kernel retransmits the data of a closed connection."""
    late: list[ScriptCall] = []

    async def delayed(calls: Calls, send: Send) -> list[Any]:
        if calls[0].script != "streams.relay":
            return await send()
        late.extend(calls)
        error = BrokerUnavailable("no reply in time")
        if whole:
            raise error
        return [error]

    mine = shop.relay()
    await shop.commit(0, 2)
    with monkeypatch.context() as patch:
        around(patch, delayed)
        with pytest.raises(BrokerUnavailable) if whole else contextlib.nullcontext():
            await mine.turn()
    await shop.emptied_by(mine)
    await shop.commit(4)
    await shop.emptied_by(mine)
    [call] = late
    await shop.stream.link.run(call.script, call.keys, call.args)
    assert await every(shop.stream) == [[0, 2, 4], []]


async def test_applications_of_one_schema_relay_their_own_events(dsn: str, redis_url: str) -> None:
    async with opened(dsn, redis_url) as shop, opened(dsn, redis_url, prefix="u:") as other:
        async with shop.chancy.transaction() as tx:
            await shop.stream.send(*orders(0, 1), within=tx)
            await other.stream.send(*orders(2), within=tx)
        theirs, mine = other.relay(), shop.relay()
        while await theirs.turn():
            pass
        assert await every(other.stream) == [[2], []]
        assert await every(shop.stream) == [[], []]
        # The lease of the other application does not block this one.
        while await mine.turn():
            pass
        assert await every(shop.stream) == [[0], [1]]
        assert await shop.waiting() == []


async def test_a_late_deletion_deletes_nothing(shop: Shop) -> None:
    await shop.commit(0)
    first, second = (EventOutboxReader(shop.store, "t:", uuid) for uuid in (_ID, _OTHER))
    taken, _ = await first.take(0.0, 10, 1_000, [])
    assert len(taken) == 1
    assert len((await second.take(10.0, 10, 1_000, []))[0]) == 1
    assert await first.delete(taken) == 0
    assert await first.take(10.0, 10, 1_000, []) == ([], set()), "it is the turn of the second"
    await second.give_up()
    assert [row.term for row in (await first.take(10.0, 10, 1_000, []))[0]] == [3]
    assert await first.delete(taken) == 1


async def test_a_new_term_exceeds_the_term_stored_in_redis(shop: Shop) -> None:
    """As after Postgres was restored from a backup."""
    await shop.stream.link.command("HSET", shop.stream.keys.stat(0), "term", 41)
    await shop.commit(0, 1)
    await shop.relayed()
    assert await every(shop.stream) == [[0], [1]]
    assert await shop.stream.link.command("HGET", shop.stream.keys.stat(0), "term") == b"42"


async def test_a_full_partition_waits_and_holds_up_no_other(
    dsn: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(dsn, redis_url, size=2) as shop:
        await shop.stream.send(*orders(0, 2))
        async with shop.chancy.transaction() as tx:
            await shop.stream.send(*orders(4, 1), within=tx)
            await shop.stream.send(*orders(6, 3), within=tx)
        mine = shop.relay()
        while await mine.turn():
            pass
        assert await every(shop.stream) == [[0, 2], [1, 3]]
        assert "stream_relay_blocked stream=orders partition=0" in caplog.text
        rows = await shop.store.fetch("select problem from chancy.redis_events order by pos")
        assert [row[0] for row in rows] == ["no room for 1 events", None]
        await shop.stream.link.command("DEL", shop.stream.keys.log(0))
        await shop.emptied_by(mine)
        assert (await every(shop.stream))[0] == [4, 6], "in their order"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_locked_row_holds_up_no_other_partition(
    shop: Shop, dsn: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Locked before it is taken, or before it is deleted."""
    monkeypatch.setattr(relay, "ROWS", 2)
    for id in (0, 2, 4, 6, 1, 3):
        await shop.commit(id)
    mine, delete = shop.relay(), EventOutboxReader.delete

    async with await psycopg.AsyncConnection.connect(dsn) as other:

        async def lock(*_: object) -> None:
            await other.execute(
                "select from chancy.redis_events where pos = (select min(pos) + 1 from"
                " chancy.redis_events) for update"
            )

        async def locked(outbox: EventOutboxReader, done: list[EventOutboxRow]) -> int:
            monkeypatch.setattr(EventOutboxReader, "delete", delete)
            await lock()
            return await delete(outbox, done)

        if when == "before":
            await lock()
        else:
            monkeypatch.setattr(EventOutboxReader, "delete", locked)
        async with asyncio.timeout(30):
            while await mine.turn():
                pass
        first = [0] if when == "before" else [0, 2]
        assert await every(shop.stream) == [first, [1, 3]]
        assert await shop.waiting() == 3 * [(0, 1)]
        await other.rollback()
    await shop.emptied_by(mine)
    assert await every(shop.stream) == [[0, 2, 4, 6], [1, 3]]


async def test_a_full_server_refuses_the_events_of_rows(
    dsn: str, own_redis: Callable[..., RedisServer]
) -> None:
    """Rows would otherwise take memory that the server does not have."""
    async with opened(dsn, own_redis(maxmemory_policy="noeviction").url) as shop:
        mine, link = shop.relay(), shop.stream.link
        await shop.commit(0)
        await mine.turn()
        await shop.commit(2)
        await link.command("CONFIG", "SET", "maxmemory", 1)
        await mine.turn()
        [[problem]] = await shop.store.fetch("select problem from chancy.redis_events")
        assert "Redis is full" in problem
        assert await every(shop.stream) == [[0], []]
        await link.command("CONFIG", "SET", "maxmemory", 0)
        await shop.emptied_by(mine)
        assert await every(shop.stream) == [[0, 2], []]


async def test_events_of_a_later_version_hold_up_no_others(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.commit(0, 1)
    await shop.store.fetch(
        "update chancy.redis_events set about = about || '{\"field\": 1}' where partition = 0"
    )
    mine = shop.relay()
    while await mine.turn():
        pass
    assert await every(shop.stream) == [[], [1]]
    assert "stream_relay_blocked stream=orders partition=0" in caplog.text


async def test_large_ones_go_in_pieces(shop: Shop) -> None:
    sent = [Order(order_id=2 * at, note="x" * (200_000 if at < 20 else 1)) for at in range(2_500)]
    async with shop.chancy.transaction() as tx:
        await shop.stream.send(*sent, within=tx)
    rows = await shop.waiting()
    assert sum(count for _, count in rows) == 2_500
    assert max(count for _, count in rows) <= 1_000
    assert len(rows) >= 6
    await shop.relayed()
    assert (await every(shop.stream))[0] == [order.order_id for order in sent]


async def test_they_reach_every_node_of_a_cluster(dsn: str, redis_cluster: str) -> None:
    async with opened(dsn, redis_cluster, cluster=True) as shop:
        await shop.commit(*range(50))
        await shop.relayed()
        assert await every(shop.stream) == [[*range(0, 50, 2)], [*range(1, 50, 2)]]


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


ROWS = 30_000
FILL = """
insert into chancy.redis_events (prefix, id, stream, partition, about, events, width, data)
select %s, gen_random_uuid(), 'orders', n %% 8, '{}', 1, 2, '\\x00'
from generate_series(1, %s) as n
"""
TAKEN = 250
OWN = " from chancy.redis_events where prefix = 't:' "


@pytest.fixture
def connection(dsn: str) -> Any:
    # ``explained`` deallocates all prepared statements, also those of the driver.
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as made:
        made.execute("alter table chancy.redis_events set (autovacuum_enabled = off)")
        # After the rows of another application.
        for prefix in ("other:", "t:"):
            made.execute(FILL, [prefix, ROWS])
        made.execute("analyze chancy.redis_events")
        yield made


def explained(connection: psycopg.Connection[Any], without: str) -> Any:
    text = load(
        resources.files("chancy.plugins.redis.streams.producing") / "sql", "events_take", "chancy"
    )
    connection.execute("deallocate all")
    connection.execute(f"prepare p(text, uuid, float8, int, bigint, text[]) as {text}".encode())
    connection.execute("set plan_cache_mode = force_generic_plan")
    row = connection.execute(
        "explain (analyze, buffers, format json) execute p("
        f"'t:', '00000000-0000-0000-0000-000000000001', 10, {TAKEN}, 1000000, {without})".encode()
    ).fetchone()
    assert row is not None
    return row[0][0]["Plan"]


def test_it_reads_what_it_takes(connection: psycopg.Connection[Any]) -> None:
    nobody = "'{}'"
    plan = explained(connection, nobody)
    assert plan["Actual Rows"] == TAKEN
    assert functions.buffers(plan) < 8 * TAKEN
    kinds = {node["Node Type"] for node in functions.nodes(plan)}
    assert not kinds & {"Seq Scan", "Hash Join", "Merge Join"}, kinds
    # Behind rows that were deleted and are not vacuumed yet: the first look marks them, once no
    # transaction is left, of whichever database, that began before they were deleted.
    connection.execute("delete" + OWN + "and pos <= %s", [2 * ROWS - 1_000])
    explained(connection, nobody)
    eventually_sync(lambda: functions.buffers(explained(connection, nobody)) < 8 * TAKEN)
    # One partition is stopped: its rows are skipped.
    plan = explained(connection, "'{orders/3}'")
    assert plan["Actual Rows"] == TAKEN // 7 * 7
    connection.execute("delete" + OWN)
    explained(connection, nobody)
    eventually_sync(lambda: functions.buffers(explained(connection, nobody)) < TAKEN)


def test_the_backlog_of_a_partition_that_stands_still_is_not_read(connection: Any) -> None:
    connection.execute(
        "update chancy.redis_events set partition = 3 where prefix = 't:' and pos <= %s",
        [2 * ROWS - 800],
    )
    connection.execute("vacuum analyze chancy.redis_events")
    plan = explained(connection, "'{orders/3}'")
    # Each of the seven other partitions gets its share.
    assert plan["Actual Rows"] == TAKEN // 7 * 7
    assert functions.buffers(plan) < 8 * TAKEN
    kinds = {node["Node Type"] for node in functions.nodes(plan)}
    assert not kinds & {"Seq Scan", "Hash Join", "Merge Join"}, kinds
