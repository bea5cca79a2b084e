"""The pool: as many sessions as are needed, none that is broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import Connection, Driver
from chancy.postgres.drivers.pool import CallerSessions, SessionPool
from tests.support.ports import free_port
from tests.support.postgres_fixtures import OwnServer
from tests.support.waiting import eventually, gives

PID = "select pg_backend_pid()"


#: Seconds after which the pools of these tests close idle sessions.
IDLE_S = 0.2


def make(driver: Driver, dsn: str) -> SessionPool:
    return SessionPool(lambda: driver.connect(dsn, application_name="pooled"), idle_s=IDLE_S)


@pytest.fixture
async def sessions(chosen: Driver, empty_dsn: str) -> AsyncIterator[SessionPool]:
    made = make(chosen, empty_dsn)
    made.put(await made.take())
    yield made
    await made.close()


@pytest.fixture
def pool(sessions: SessionPool) -> CallerSessions:
    return CallerSessions(sessions, 3)


async def _pid(pool: CallerSessions) -> int:
    async with pool.connection() as session:
        return int((await session.fetch(PID))[0][0])


async def _sessions(other: Connection) -> int:
    rows = await other.fetch(
        "select from pg_stat_activity where application_name = 'pooled'"
        " and datname = current_database()"
    )
    return len(rows)


async def test_one_task_at_a_time_needs_one_session(
    pool: CallerSessions, other: Connection
) -> None:
    assert await _sessions(other) == 1
    assert len({await _pid(pool) for _ in range(5)}) == 1


async def test_the_pool_grows_to_its_limit(pool: CallerSessions) -> None:
    using = 0
    most = 0
    pids: set[int] = set()
    full = asyncio.Event()

    async def use() -> None:
        nonlocal using, most
        async with pool.connection() as session:
            using += 1
            most = max(most, using)
            if using == 3:
                full.set()
            await asyncio.wait_for(full.wait(), 20)
            pids.add((await session.fetch("select pg_backend_pid()"))[0][0])
            using -= 1

    await asyncio.gather(*(use() for _ in range(12)))
    assert most == 3
    assert len(pids) == 3


async def test_sessions_keep_their_settings_between_users(pool: CallerSessions) -> None:
    async with pool.connection() as session:
        await session.fetch("set work_mem = '5MB'")
    async with pool.connection() as session:
        assert (await session.fetch("show work_mem"))[0][0] == "5MB"


async def test_a_broken_session_is_replaced(pool: CallerSessions, other: Connection) -> None:
    async with pool.connection() as session:
        pid = (await session.fetch(PID))[0][0]
        await other.fetch("select pg_terminate_backend($1::int)", pid)
        with pytest.raises(BrokerUnavailable):
            await session.fetch("select 1")
    assert await _pid(pool) != pid


async def test_a_session_that_the_server_closed_while_idle_is_not_lent(
    chosen: Driver, pool: CallerSessions, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.postgres.drivers.pool._CHECK_AFTER_S", 0.0)
    pid = await _pid(pool)
    async with pool.connection() as session:
        assert (await session.fetch(PID))[0][0] == pid
    await other.fetch("select pg_terminate_backend($1::int, 10000)", pid)
    if chosen.name == "asyncpg":  # It reads the end of the stream when the loop runs.
        await eventually(lambda: session.closed)
    assert await _pid(pool) != pid


async def test_a_restarted_server_costs_one_error(chosen: Driver, own_server: OwnServer) -> None:
    server = own_server(migrated=False)
    sessions = make(chosen, server.dsn())
    pool = CallerSessions(sessions, 3)
    for session in [await sessions.take() for _ in range(3)]:
        sessions.put(session)
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
        await sessions.close()


async def test_an_error_of_the_user_gives_the_session_back(pool: CallerSessions) -> None:
    pids: list[int] = []

    async def fail() -> None:
        async with pool.connection() as session:
            pids.append((await session.fetch(PID))[0][0])
            raise LookupError("of the user")

    with pytest.raises(LookupError):
        await fail()
    assert [await _pid(pool)] == pids


async def test_cancelled_users_do_not_use_the_pool_up(pool: CallerSessions) -> None:
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), pool.connection() as session:
                await session.fetch("select pg_sleep(0.3)")
    assert await _pid(pool) > 0


async def test_closing_ends_every_session(
    sessions: SessionPool, pool: CallerSessions, other: Connection
) -> None:
    async with pool.connection() as session:
        await sessions.close()
        assert (await session.fetch("select 1"))[0][0] == 1
    with pytest.raises(RuntimeError, match="closed"):
        await _pid(pool)
    await eventually(lambda: gives(_sessions(other), 0))


async def test_without_a_server_every_caller_gets_the_error(chosen: Driver) -> None:
    sessions = make(chosen, f"host=127.0.0.1 port={free_port()}")
    errors = await asyncio.gather(*(sessions.take() for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in errors] == [BrokerUnavailable] * 3
    await sessions.close()


async def test_idle_sessions_are_closed_but_for_one(
    sessions: SessionPool, other: Connection
) -> None:
    taken = [await sessions.take() for _ in range(4)]
    assert await _sessions(other) == 4
    for session in taken:
        sessions.put(session)
    await eventually(lambda: gives(_sessions(other), 1))
    # It is the one that was used last, and it stays.
    assert await sessions.take() is taken[-1]
    sessions.put(taken[-1])
    kept_until = asyncio.get_running_loop().time() + 3 * IDLE_S
    await eventually(lambda: asyncio.get_running_loop().time() > kept_until)
    assert await _sessions(other) == 1


async def test_a_session_that_is_soon_free_is_waited_for(
    sessions: SessionPool, other: Connection
) -> None:
    first = await sessions.take()
    waiting = asyncio.create_task(sessions.take(wait_s=10))
    await asyncio.sleep(0)
    sessions.put(first)
    assert await waiting is first
    assert await _sessions(other) == 1
    # One that does not wait gets its own, and so does one that has waited.
    own = await sessions.take()
    assert own is not first
    late = await sessions.take(wait_s=0.01)
    assert late not in (first, own)
    assert sessions.number(first) < sessions.number(own) < sessions.number(late)
    for session in (first, own, late):
        sessions.put(session)


async def test_a_session_that_was_opened_for_one_is_not_given_to_another(
    sessions: SessionPool,
) -> None:
    first = await sessions.take()
    patient = asyncio.create_task(sessions.take(wait_s=60))
    await asyncio.sleep(0)
    urgent = await asyncio.wait_for(sessions.take(), 10)
    assert not patient.done()
    sessions.put(first)
    assert await patient is first
    for session in (first, urgent):
        sessions.put(session)


async def test_a_caller_that_gives_up_leaves_its_session_to_others(sessions: SessionPool) -> None:
    first = await sessions.take()
    waiting = asyncio.create_task(sessions.take(wait_s=60))
    await asyncio.sleep(0)
    sessions.put(first)
    # The session was handed over, and the task has not run since.
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.wait_for(sessions.take(wait_s=60), 10) is first
    sessions.put(first)
