"""Broken lines: what is silent ends at the deadline, what is lost is said to be lost."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from chancy.errors import BrokerUnavailable, ConfigurationError, StatementFailed
from chancy.postgres.drivers.asyncpg import AsyncpgSession
from chancy.postgres.drivers.base import Connection, Driver
from chancy.postgres.drivers.psycopg import PsycopgSession
from chancy.postgres.drivers.session import Session
from tests.integration.drivers.conftest import SLACK_S, run
from tests.support.locks import BLOCKED
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.sql import count
from tests.support.waiting import eventually

#: For what takes seconds: on the other driver in the long runs only.
ON_ASYNCPG = pytest.mark.parametrize(
    "chosen", ["asyncpg", pytest.param("psycopg", marks=pytest.mark.chaos)], indirect=True
)


@pytest.fixture
async def proxied(chosen: Driver, proxy: Proxy, empty_dsn: str) -> AsyncIterator[Connection]:
    connection = await chosen.connect(proxy.dsn(empty_dsn), application_name="proxied")
    yield connection
    await connection.close()
    proxy.close()


@pytest.fixture
def silence() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    "sql",
    ["select 1", f"select length('{'x' * 20_000_000}')"],
    ids=["short", "longer than any buffer"],
)
async def test_an_unresponsive_server_ends_the_call_at_its_deadline(
    proxied: Connection, proxy: Proxy, sql: str
) -> None:
    proxy.black_hole()
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=r"no response within 0\.4 s"):
        await proxied.fetch(sql, deadline_s=0.4)
    assert 0.4 <= time.monotonic() - started < 0.4 + SLACK_S
    assert proxied.closed
    with pytest.raises(BrokerUnavailable, match="closed"):
        await proxied.fetch("select 1")


async def test_an_unresponsive_server_does_not_hold_a_cancelled_call(
    proxied: Connection, proxy: Proxy
) -> None:
    proxy.black_hole()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await proxied.fetch("select 1")
    assert time.monotonic() - started < 0.2 + SLACK_S
    assert proxied.closed


async def test_an_unresponsive_server_does_not_hold_close(
    proxied: Connection, proxy: Proxy
) -> None:
    proxy.black_hole()
    started = time.monotonic()
    await proxied.close()
    assert time.monotonic() - started < 1 + SLACK_S
    assert proxied.closed


@ON_ASYNCPG
async def test_the_deadline_of_one_call_is_not_that_of_the_next(
    session: Connection, other: Connection
) -> None:
    assert isinstance(session, Session)
    # A call that needs no answer ends before its deadline on any machine.
    await session._call(lambda: asyncio.sleep(0), 0.3)
    await session.fetch("select pg_sleep(0.5)", deadline_s=60)
    await session.fetch("select 1", deadline_s=30)
    await other.fetch("select pg_advisory_lock(1)")
    with pytest.raises(BrokerUnavailable, match=r"within 0\.2 s"):
        await session.fetch("select pg_advisory_lock(1)", deadline_s=0.2)


async def test_an_answer_that_waited_for_a_blocked_loop_is_taken(session: Connection) -> None:
    for _ in range(2):  # then it is prepared, and has one answer
        await _value(session, "select 1", deadline_s=60)
    late = asyncio.create_task(_value(session, "select 1", deadline_s=0.2))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251  # nothing is read, and the deadline passes
    answered, _, _ = select.select([_descriptor(session)], [], [], 60)
    assert answered
    assert await late == 1
    assert not session.closed


def _descriptor(session: Connection) -> int:
    """The descriptor of the socket of a session."""
    if isinstance(session, PsycopgSession):
        return session._fd
    assert isinstance(session, AsyncpgSession)
    connection: Any = session._connection
    return int(connection._transport.get_extra_info("socket").fileno())


async def _value(session: Connection, sql: str, *, deadline_s: float) -> object:
    rows = await session.fetch(sql, deadline_s=deadline_s)
    return rows[0][0]


async def test_a_coroutine_that_is_thrown_away_takes_the_session_with_it(
    session: Connection,
) -> None:
    async def work() -> None:
        async with session.transaction():
            await session.fetch("select 1")

    thrown = work()
    thrown.send(None)
    thrown.close()
    assert session.closed


async def test_abort_wakes_a_pending_call(session: Connection) -> None:
    sleeping = asyncio.create_task(run(session, "select pg_sleep(0.3)"))
    await asyncio.sleep(0)
    session.abort()
    with pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(sleeping, SLACK_S)
    session.abort()
    assert session.closed


async def test_a_reset_line_is_lost(proxied: Connection, other: Connection, proxy: Proxy) -> None:
    await other.fetch("select pg_advisory_lock(1)")
    waiting = asyncio.create_task(run(proxied, "select pg_advisory_lock(1)"))
    await asyncio.sleep(0)
    proxy.cut()
    with pytest.raises(BrokerUnavailable, match="database"):
        await waiting
    assert proxied.closed


async def test_a_commit_whose_answer_is_lost_may_stand(
    proxied: Connection, session: Connection, proxy: Proxy
) -> None:
    await session.fetch("create table things (id int)")
    proxy.cut_reply_after(lambda sent: b"commit\0" in sent)

    async def work() -> None:
        async with proxied.transaction():
            await proxied.fetch("insert into things values (1)")

    with pytest.raises(BrokerUnavailable):
        await work()
    assert proxied.closed
    assert len(await session.fetch("select id from things")) == 1


async def test_an_exception_inside_a_lost_transaction_comes_out(
    proxied: Connection, proxy: Proxy
) -> None:
    async def work() -> None:
        async with proxied.transaction():
            proxy.black_hole()
            await proxied.fetch("select 1", deadline_s=0.1)

    with pytest.raises(BrokerUnavailable, match=r"within 0\.1 s"):
        await work()


async def test_pushes_succeed_without_a_listener(chosen: Driver) -> None:
    dsn = f"postgresql://someone:hunter2@127.0.0.1:{free_port()}/nowhere"
    with pytest.raises(BrokerUnavailable, match="nowhere") as lost:
        await chosen.connect(dsn, application_name="test")
    assert "hunter2" not in str(lost.value)


@ON_ASYNCPG
async def test_an_unresponsive_host_has_the_connect_timeout(chosen: Driver, silence: int) -> None:
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        await chosen.connect(
            f"host=127.0.0.1 port={silence} sslmode=disable connect_timeout=2",
            application_name="test",
        )
    assert time.monotonic() - started < 2 + SLACK_S


@ON_ASYNCPG
async def test_a_session_comes_from_the_host_that_answers(
    chosen: Driver, silence: int, empty_dsn: str
) -> None:
    server, database = empty_dsn.rpartition("@")[2].split("/")
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{silence},{server}"
    connection = await chosen.connect(
        f"postgresql://postgres@{hosts}/{database}?connect_timeout=2&sslmode=disable",
        application_name="test",
    )
    assert (await connection.fetch("select current_database()::text"))[0][0] == database
    await connection.close()


async def test_several_hosts_are_looked_through_for_one_that_writes(
    chosen: Driver, session: Connection, empty_dsn: str
) -> None:
    server, database = empty_dsn.rpartition("@")[2].split("/")
    await session.fetch(f"alter database {database} set default_transaction_read_only = on")
    with pytest.raises(BrokerUnavailable):
        await chosen.connect(
            f"postgresql://postgres@{server},{server}/{database}", application_name="test"
        )
    await session.fetch("set default_transaction_read_only = off")
    await session.fetch(f"alter database {database} reset default_transaction_read_only")


async def test_a_server_without_room_is_unavailable(
    chosen: Driver, session: Connection, empty_dsn: str
) -> None:
    role = f"crowd_{chosen.name}_{time.monotonic_ns()}"
    await session.fetch(f"create role {role} login connection limit 0")
    try:
        with pytest.raises(BrokerUnavailable, match="too many connections"):
            await chosen.connect(
                empty_dsn.replace("postgres@", f"{role}@"), application_name="test"
            )
    finally:
        await session.fetch(f"drop role {role}")


async def test_a_setting_that_cannot_work_is_no_outage(chosen: Driver, empty_dsn: str) -> None:
    with pytest.raises((ConfigurationError, BrokerUnavailable), match="sslmode"):
        await chosen.connect(f"{empty_dsn}?sslmode=perhaps", application_name="test")


async def test_an_unknown_setting_is_refused(chosen: Driver, empty_dsn: str) -> None:
    with pytest.raises((StatementFailed, BrokerUnavailable), match="no_such_setting"):
        await chosen.connect(
            f"{empty_dsn}?options=-c%20no_such_setting%3D1", application_name="test"
        )


async def test_the_session_has_the_name_and_the_options_of_the_dsn(
    chosen: Driver, empty_dsn: str
) -> None:
    asked = "select current_setting('application_name'), current_setting('work_mem')"
    dsn = f"{empty_dsn}?options=-c%20work_mem%3D5MB&keepalives_idle=7&gssencmode=disable"
    connection = await chosen.connect(dsn, application_name="chancy test")
    assert list((await connection.fetch(asked))[0]) == ["chancy test", "5MB"]
    await connection.close()
    named = await chosen.connect(f"{dsn}&application_name=mine", application_name="chancy test")
    assert (await named.fetch(asked))[0][0] == "mine"
    await named.close()


@ON_ASYNCPG
async def test_the_server_ends_a_statement_whose_client_is_gone(
    chosen: Driver, empty_dsn: str
) -> None:
    gone = await chosen.connect(empty_dsn, application_name="gone")
    with psycopg.connect(empty_dsn, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(1)")
        waiting = asyncio.create_task(run(gone, "select pg_advisory_lock(1)"))
        blocked = f"pg_stat_activity where {BLOCKED}"
        await eventually(lambda: count(holder, blocked) == 1)
        gone.abort()
        with pytest.raises(BrokerUnavailable):
            await waiting
        await eventually(lambda: count(holder, blocked) == 0)


async def server_settings(session: Connection) -> list[str]:
    """How soon the server ends a session whose client is gone."""
    (row,) = await session.fetch(
        "select current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'),"
        " current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout'),"
        " current_setting('client_connection_check_interval')"
    )
    return [str(value) for value in row]


async def test_the_server_ends_sessions_of_machines_that_vanish(proxied: Connection) -> None:
    assert await server_settings(proxied) == ["10", "5", "3", "30000", "5s"]


async def test_what_the_dsn_sets_for_vanished_clients_is_kept(
    chosen: Driver, proxy: Proxy, empty_dsn: str
) -> None:
    chosen_here = "tcp_keepalives_idle=77 tcp_user_timeout=0 client_connection_check_interval=1h"
    options = " ".join(f"-c {setting}" for setting in chosen_here.split())
    dsn = make_conninfo(proxy.dsn(empty_dsn), options=options)
    session = await chosen.connect(dsn, application_name="test")
    assert await server_settings(session) == ["77", "5", "3", "0", "1h"]
    await session.close()
    proxy.close()


async def test_the_kernel_looks_after_idle_lines(proxied: Connection, proxy: Proxy) -> None:
    # Neither driver shows its socket: it is found among the process's own.
    assert _keepalives(proxy.port) == [(1, 10, 5, 3, 15_000)]
    assert not proxied.closed


def _keepalives(port: int) -> list[tuple[int, ...]]:
    tcp = socket.IPPROTO_TCP
    asked = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        (tcp, socket.TCP_KEEPIDLE),
        (tcp, socket.TCP_KEEPINTVL),
        (tcp, socket.TCP_KEEPCNT),
        (tcp, socket.TCP_USER_TIMEOUT),
    )
    found: list[tuple[int, ...]] = []
    for line in psutil.Process().net_connections("tcp"):
        if line.raddr and line.raddr.port == port:
            with socket.socket(fileno=os.dup(line.fd)) as twin:
                found.append(tuple(twin.getsockopt(*option) for option in asked))
    return found
