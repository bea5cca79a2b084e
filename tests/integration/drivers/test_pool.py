"""The pool: as many sessions as are needed, none that is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from chancy.embedded import free_port
from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import Connection, Driver
from chancy.postgres.drivers.pool import SessionPool
from tests.support.postgres_fixtures import OwnServer
from tests.support.waiting import eventually

PID = "select pg_backend_pid()"


@pytest.fixture
async def pool(chosen: Driver, empty_dsn: str) -> AsyncIterator[SessionPool]:
    made = await SessionPool.filled(
        chosen, empty_dsn, application_name="pooled", min_size=1, max_size=3
    )
    yield made
    await made.close()


async def _pid(pool: SessionPool) -> int:
    async with pool.connection() as session:
        return int((await session.fetch(PID))[0][0])


async def _sessions(other: Connection) -> int:
    rows = await other.fetch(
        "select from pg_stat_activity where application_name = 'pooled'"
        " and datname = current_database()"
    )
    return len(rows)


async def test_one_task_at_a_time_needs_one_session(pool: SessionPool, other: Connection) -> None:
    assert await _sessions(other) == 1
    assert len({await _pid(pool) for _ in range(5)}) == 1


async def test_the_pool_grows_to_its_limit(pool: SessionPool) -> None:
    using = 0
    most = 0
    pids: set[int] = set()

    async def use() -> None:
        nonlocal using, most
        async with pool.connection() as session:
            using += 1
            most = max(most, using)
            pids.add((await session.fetch("select pg_backend_pid(), pg_sleep(0.02)"))[0][0])
            using -= 1

    await asyncio.gather(*(use() for _ in range(12)))
    assert most == 3
    assert len(pids) == 3


async def test_sessions_keep_their_settings_between_users(pool: SessionPool) -> None:
    async with pool.connection() as session:
        await session.fetch("set work_mem = '5MB'")
    async with pool.connection() as session:
        assert (await session.fetch("show work_mem"))[0][0] == "5MB"


async def test_a_broken_session_is_replaced(pool: SessionPool, other: Connection) -> None:
    async with pool.connection() as session:
        pid = (await session.fetch(PID))[0][0]
        await other.fetch("select pg_terminate_backend($1::int)", pid)
        with pytest.raises(BrokerUnavailable):
            await session.fetch("select 1")
    assert await _pid(pool) != pid


async def test_a_restarted_server_costs_one_error(chosen: Driver, own_server: OwnServer) -> None:
    server = own_server(migrated=False)
    pool = await SessionPool.filled(
        chosen, server.dsn(), application_name="pooled", min_size=3, max_size=3
    )
    try:
        server.stop()
        server.start()
        errors = 0
        for _ in range(6):
            try:
                await _pid(pool)
            except BrokerUnavailable:
                errors += 1
        assert errors <= 1
        assert await _pid(pool) > 0
    finally:
        await pool.close()


async def test_an_error_of_the_user_gives_the_session_back(pool: SessionPool) -> None:
    pids: list[int] = []

    async def fail() -> None:
        async with pool.connection() as session:
            pids.append((await session.fetch(PID))[0][0])
            raise LookupError("of the user")

    with pytest.raises(LookupError):
        await fail()
    assert [await _pid(pool)] == pids


async def test_cancelled_users_do_not_use_the_pool_up(pool: SessionPool) -> None:
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), pool.connection() as session:
                await session.fetch("select pg_sleep(1)")
    assert await _pid(pool) > 0


async def test_closing_ends_every_session(pool: SessionPool, other: Connection) -> None:
    async with pool.connection() as session:
        await pool.close()
        assert (await session.fetch("select 1"))[0][0] == 1
    with pytest.raises(RuntimeError, match="closed"):
        await _pid(pool)

    async def gone() -> bool:
        return await _sessions(other) == 0

    await eventually(gone)


async def test_a_pool_without_a_server_is_not_made(chosen: Driver) -> None:
    with pytest.raises(BrokerUnavailable):
        await SessionPool.filled(
            chosen,
            f"host=127.0.0.1 port={free_port()}",
            application_name="x",
            min_size=2,
            max_size=2,
        )
