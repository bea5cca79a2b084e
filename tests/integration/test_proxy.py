"""The proxy breaks the line the way it says: faults that tests rely on must be real."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import eventually


async def test_it_passes_bytes_through(empty_dsn: str, proxy: Proxy) -> None:
    async with await psycopg.AsyncConnection.connect(proxy.dsn(empty_dsn)) as connection:
        cursor = await connection.execute("select repeat('x', 1000000)")
        row = await cursor.fetchone()
        assert row == ("x" * 1_000_000,)
        assert proxy.connections == 1
    await eventually(lambda: proxy.connections == 0)


async def test_the_black_hole_is_unresponsive_until_it_heals(empty_dsn: str, proxy: Proxy) -> None:
    connection = await asyncpg.connect(proxy.dsn(empty_dsn))
    proxy.black_hole()
    asked = asyncio.ensure_future(connection.fetchval("select 1"))
    new = asyncio.ensure_future(asyncpg.connect(proxy.dsn(empty_dsn), timeout=30))
    await asyncio.wait([asked, new], timeout=0.3)
    assert not asked.done()
    assert not new.done()
    proxy.heal()
    with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
        await asked
    with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
        await new
    assert connection.is_closed()
    healed = await asyncpg.connect(proxy.dsn(empty_dsn))
    assert await healed.fetchval("select 1") == 1
    await healed.close()


async def test_a_cut_resets_at_once_and_new_connections_pass(empty_dsn: str, proxy: Proxy) -> None:
    connection = await psycopg.AsyncConnection.connect(proxy.dsn(empty_dsn))
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("select 1")
    await connection.close()
    async with await psycopg.AsyncConnection.connect(proxy.dsn(empty_dsn)) as again:
        await again.execute("select 1")


async def test_refusing_leaves_open_connections_alone(empty_dsn: str, proxy: Proxy) -> None:
    async with await psycopg.AsyncConnection.connect(proxy.dsn(empty_dsn)) as connection:
        proxy.refuse()
        await connection.execute("select 1")
        with pytest.raises(psycopg.OperationalError, match="refused"):
            await psycopg.AsyncConnection.connect(proxy.dsn(empty_dsn))
        proxy.heal()
        async with await psycopg.AsyncConnection.connect(proxy.dsn(empty_dsn)) as again:
            await again.execute("select 1")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_lost_answer_to_a_commit_leaves_it_committed(
    empty_dsn: str, proxy: Proxy, driver: str
) -> None:
    with psycopg.connect(empty_dsn) as direct:
        direct.execute("create table kept (x int)")
    proxy.cut_reply_after(lambda sent: b"COMMIT" in sent.upper())
    if driver == "psycopg":
        connection = await psycopg.AsyncConnection.connect(proxy.dsn(empty_dsn))
        await connection.execute("insert into kept values (1)")
        with pytest.raises(psycopg.OperationalError):
            await connection.commit()
        await connection.close()
    else:
        other = await asyncpg.connect(proxy.dsn(empty_dsn))
        with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
            async with other.transaction():
                await other.execute("insert into kept values (1)")
    assert proxy.reply_cut.is_set()
    with psycopg.connect(empty_dsn) as direct:
        assert direct.execute("select x from kept").fetchall() == [(1,)]


async def test_a_statement_on_its_own_is_committed_when_its_answer_is_lost(
    empty_dsn: str, proxy: Proxy
) -> None:
    with psycopg.connect(empty_dsn) as direct:
        direct.execute("create table kept (x int)")
    connection = await asyncpg.connect(proxy.dsn(empty_dsn))
    statement = await connection.prepare("insert into kept values ($1) returning x")
    proxy.cut_reply_after(lambda sent: b"B\x00" in sent)
    with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
        await statement.fetch(1)
    with psycopg.connect(empty_dsn) as direct:
        assert direct.execute("select x from kept").fetchall() == [(1,)]
