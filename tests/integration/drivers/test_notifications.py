"""Notifications: bounded, in order, and not lost between statements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager

import psycopg
import pytest

from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import Connection, Driver
from chancy.postgres.drivers.inbox import CAPACITY
from tests.integration.drivers.conftest import SLACK_S


async def test_notifications_arrive_in_order(session: Connection, other: Connection) -> None:
    await session.listen("news")
    await other.fetch("select pg_notify('news', i::text) from generate_series(1, 5) i")
    await other.fetch("select pg_notify('elsewhere', 'not mine')")
    received: list[str] = []
    while len(received) < 5:
        received += await session.notifications(5)
    assert received == ["1", "2", "3", "4", "5"]


async def test_a_waiting_task_is_woken(session: Connection, other: Connection) -> None:
    await session.listen("news")
    waiting = asyncio.create_task(session.notifications(10))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    await other.fetch("notify news, 'now'")
    assert await waiting == ["now"]
    assert time.monotonic() - started < SLACK_S


def keep(told: list[str]) -> Callable[[str], bool]:
    """Adds each payload to a list, and leaves it to be returned."""

    def handle(payload: str) -> bool:
        told.append(payload)
        return False

    return handle


async def test_the_first_notification_is_delivered_at_once(
    session: Connection, other: Connection
) -> None:
    await session.listen("news")
    told: list[str] = []
    waiting = asyncio.create_task(session.notifications(10, keep(told)))
    await asyncio.sleep(0.05)
    await other.fetch("select pg_notify('news', i::text) from generate_series(1, 3) i")
    received = await waiting
    assert told == ["1"]
    while len(received) < 3:
        received += await session.notifications(5, keep(told))
    assert received == ["1", "2", "3"]


async def test_the_wait_goes_on_until_a_notification_is_kept(
    session: Connection, other: Connection
) -> None:
    await session.listen("news")
    told: list[str] = []

    def handle(payload: str) -> bool:
        told.append(payload)
        return payload < "3"

    waiting = asyncio.create_task(session.notifications(10, handle))
    await asyncio.sleep(0)  # a turn of the loop, in which it begins to wait
    for number in range(1, 6):
        await other.fetch("select pg_notify('news', $1)", str(number))
    received = await waiting
    while len(received) < 3:
        received += await session.notifications(5)
    assert received == ["3", "4", "5"]
    assert told == ["1", "2", "3"]


async def test_earlier_notifications_are_not_delivered(
    session: Connection, other: Connection
) -> None:
    await session.listen("news")
    await other.fetch("notify news, 'before'")
    await session.fetch("select pg_sleep(0.05)")
    await session.fetch("notify news, 'own'")
    told: list[str] = []
    received: list[str] = []
    while "own" not in received:
        received += await session.notifications(5, keep(told))
    assert "before" not in told
    assert received == ["before", "own"]


async def test_no_notification_is_sent_after_the_wait(
    session: Connection, other: Connection
) -> None:
    await session.listen("news")
    told: list[str] = []
    assert await session.notifications(0.05, keep(told)) == []
    await other.fetch("notify news, 'late'")
    assert await session.notifications(5) == ["late"]
    assert told == []


async def test_silence_ends_at_the_timeout(session: Connection) -> None:
    await session.listen("news")
    for _ in range(2):
        started = time.monotonic()
        assert await session.notifications(0.1) == []
        assert 0.1 <= time.monotonic() - started < 0.1 + SLACK_S
    assert (await session.fetch("select 1"))[0][0] == 1


async def test_notifications_during_a_statement_are_kept(
    session: Connection, other: Connection
) -> None:
    await session.listen("news")
    await other.fetch("notify news, 'before'")
    await session.fetch("select pg_sleep(0.05)")
    await session.fetch("notify news, 'own'")
    await session.fetch("select 1")
    received: list[str] = []
    while len(received) < 2:
        received += await session.notifications(5)
    assert received == ["before", "own"]


async def test_waiting_can_be_cancelled_and_continues(
    session: Connection, other: Connection
) -> None:
    await session.listen("news")
    waiting = asyncio.create_task(session.notifications(10))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await other.fetch("notify news, 'still here'")
    assert await session.notifications(5) == ["still here"]


async def test_a_flood_is_bounded_and_logged(session: Connection, other: Connection) -> None:
    await session.listen("news")
    await other.fetch(
        "select pg_notify('news', i::text) from generate_series(1, $1::int) i", CAPACITY + 500
    )
    # The server sends them with the answers of this session, no later than the last one.
    await session.fetch("select pg_sleep(0.3)")
    await session.fetch("notify news, 'the end'")
    await session.fetch("select 1")
    received = await session.notifications(5)
    assert received == [str(number) for number in range(1, CAPACITY + 1)]
    await other.fetch("notify news, 'after'")
    assert await session.notifications(5) == ["after"]


async def test_a_lost_listener_is_logged(session: Connection, other: Connection) -> None:
    await session.listen("news")
    pid = (await session.fetch("select pg_backend_pid()"))[0][0]
    waiting = asyncio.create_task(session.notifications(10))
    await asyncio.sleep(0.02)
    await other.fetch("select pg_terminate_backend($1::int)", pid)
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(waiting, SLACK_S)
    assert session.closed
    with pytest.raises(BrokerUnavailable):
        await session.notifications(0.1)


async def test_an_aborted_listener_is_logged(session: Connection) -> None:
    await session.listen("news")
    waiting = asyncio.create_task(session.notifications(10))
    await asyncio.sleep(0.02)
    session.abort()
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(waiting, SLACK_S)


async def test_any_channel_can_be_listened_to(session: Connection, other: Connection) -> None:
    for channel in ("a b", 'a"b', "Ä", "x" * 63, "select"):
        await session.listen(channel)
        await other.fetch("select pg_notify($1, $1)", channel)
        assert await session.notifications(5) == [channel]


async def test_bytes_that_are_not_text_cannot_be_received(
    chosen: Driver, empty_dsn: str, server_dsn: str
) -> None:
    """In SQL_ASCII any bytes are a payload; the server ends a session that it cannot send them
    to in UTF-8. The next one starts behind them."""
    with bytes_database(server_dsn, empty_dsn) as dsn:
        session = await chosen.connect(dsn, application_name="test")
        await session.listen("news")
        with psycopg.connect(dsn, autocommit=True) as raw:
            raw.execute(b"notify news, '\xff\xfe broken'")
            with pytest.raises(BrokerUnavailable):
                await session.notifications(5)
            again = await chosen.connect(dsn, application_name="test")
            await again.listen("news")
            raw.execute("notify news, 'whole'")
            assert await again.notifications(5) == ["whole"]
        await again.close()


@contextmanager
def bytes_database(server_dsn: str, empty_dsn: str) -> Generator[str, None, None]:
    stem, _, name = empty_dsn.rpartition("/")
    with closing(psycopg.connect(server_dsn, autocommit=True)) as admin:
        made = f"{name}_bytes"
        settings = "encoding 'SQL_ASCII' locale 'C' template template0"
        admin.execute(f"create database {made} {settings}".encode())
        try:
            yield f"{stem}/{made}"
        finally:
            admin.execute(f"drop database {made} with (force)".encode())
