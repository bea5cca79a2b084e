"""What both drivers promise, against a real server."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from psycopg.conninfo import make_conninfo

from chancy.errors import BrokerUnavailable, ConfigurationError, StatementFailed
from chancy.postgres.drivers.base import Connection, Driver
from chancy.postgres.dsn import parse
from tests.integration.drivers.conftest import SLACK_S, is_running, run
from tests.support.postgres_fixtures import OwnServer
from tests.support.waiting import eventually

REFUSED: list[tuple[str, tuple[object, ...], str]] = [
    ("selekt", (), "42601"),
    ("select 1 / $1::int", (0,), "22012"),
    ("select * from nothing", (), "42P01"),
    ("select $1::smallint", (70_000,), "22"),
    ("select $1::text", ("a\0b",), "22"),
    ("select $1::text[]", (["a\0b"],), "22"),
    ("select $1::text", ("\ud800",), "22"),
    ("select $1::int[]", ([object()],), "22"),
    ("select $1::timestamptz", ("yesterday or so",), "22"),
]


async def test_a_refused_statement_leaves_the_session_usable(session: Connection) -> None:
    for sql, params, sqlstate in REFUSED:
        for _ in range(3):
            with pytest.raises(StatementFailed) as refused:
                await session.fetch(sql, *params)
            assert refused.value.sqlstate.startswith(sqlstate)
        assert (await session.fetch("select 1"))[0][0] == 1


async def test_the_address_of_a_host_is_used_without_a_look_up(
    chosen: Driver, empty_dsn: str
) -> None:
    address = parse(empty_dsn).hosts[0].name
    named = make_conninfo(empty_dsn, host="shop.invalid", hostaddr=address)
    session = await chosen.connect(named, application_name="addressed")
    assert (await session.fetch("select current_setting('application_name')"))[0][0] == "addressed"
    await session.close()


async def test_a_read_only_server_is_not_used_again(session: Connection) -> None:
    await session.fetch("set default_transaction_read_only = on")
    with pytest.raises(BrokerUnavailable, match="25006"):
        await session.fetch("create table things (id int)")
    assert session.closed


async def test_a_stale_plan_fails_once_at_most(session: Connection, other: Connection) -> None:
    await session.fetch("create table things as select 1 as id")
    for _ in range(3):
        await session.fetch("select * from things")
    await other.fetch("alter table things alter id type text")
    with pytest.raises(StatementFailed, match="0A000"):
        async with session.transaction():
            await session.fetch("select * from things")
    assert (await session.fetch("select * from things"))[0][0] == "1"
    await other.fetch("alter table things add more int")
    with contextlib.suppress(StatementFailed):  # outside of a transaction asyncpg repeats it
        await session.fetch("select * from things")
    assert len((await session.fetch("select * from things"))[0]) == 2


async def test_statements_that_the_server_forgot_are_prepared_again(session: Connection) -> None:
    for _ in range(3):
        await session.fetch("select $1::int", 1)
    await session.fetch("do $$ begin execute 'deallocate all'; end $$")
    with pytest.raises(StatementFailed, match="26000") as forgotten:
        await session.fetch("select $1::int", 1)
    assert forgotten.value.retryable
    assert (await session.fetch("select $1::int", 1))[0][0] == 1


async def test_a_row_that_no_partition_takes_is_worth_another_try(session: Connection) -> None:
    """Its partition may have been attached meanwhile; the check of a table refuses it forever."""
    await session.fetch("create table days (day int check (day > 0)) partition by list (day)")
    await session.fetch("create table days_1 partition of days for values in (1, -1)")
    for sql, retryable in (
        ("insert into days values (2)", True),
        ("insert into days_1 values (2)", True),
        ("insert into days values (-1)", False),
        ("do $$ begin raise exception 'no' using errcode = '23514'; end $$", False),
    ):
        with pytest.raises(StatementFailed, match="23514") as refused:
            await session.fetch(sql)
        assert refused.value.retryable is retryable, sql


async def test_isolation_is_read_committed_whatever_the_default(
    chosen: Driver, session: Connection, empty_dsn: str
) -> None:
    database = empty_dsn.rpartition("/")[2]
    await session.fetch(
        f"alter database {database} set default_transaction_isolation = 'serializable'"
    )
    connection = await chosen.connect(empty_dsn, application_name="test")
    try:
        assert (await connection.fetch("show transaction_isolation"))[0][0] == "read committed"
        async with connection.transaction():
            level = await connection.fetch("show transaction_isolation")
            assert level[0][0] == "read committed"
    finally:
        await connection.close()


async def test_transactions_commit_and_roll_back(session: Connection, other: Connection) -> None:
    await session.fetch("create table things (id int)")
    async with session.transaction():
        await session.fetch("insert into things values (1)")
        assert list(await other.fetch("select id from things")) == []

    async def fail() -> None:
        async with session.transaction():
            await session.fetch("insert into things values (2)")
            raise LookupError("of the user")

    with pytest.raises(LookupError):
        await fail()
    assert [row[0] for row in await other.fetch("select id from things")] == [1]


async def test_a_failed_transaction_does_not_pass_for_a_commit(session: Connection) -> None:
    await session.fetch("create table things (id int)")

    async def work() -> None:
        async with session.transaction():
            await session.fetch("insert into things values (1)")
            with pytest.raises(StatementFailed, match="42601"):
                await session.fetch("selekt")

    with pytest.raises(StatementFailed, match="25P02"):
        await work()
    assert list(await session.fetch("select id from things")) == []


async def test_transactions_do_not_nest(session: Connection) -> None:
    async with session.transaction():
        with pytest.raises(RuntimeError, match="inside another transaction"):
            async with session.transaction():
                pass
    async with session.transaction():
        pass


async def test_a_session_is_for_one_task(session: Connection) -> None:
    first = asyncio.create_task(run(session, "select pg_sleep(0.2)"))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks"):
        await session.fetch("select 1")
    await first


async def test_a_session_that_the_server_ends_is_closed_for_good(
    session: Connection, other: Connection
) -> None:
    pid = (await session.fetch("select pg_backend_pid()"))[0][0]
    sleeping = asyncio.create_task(run(session, "select pg_sleep(20)"))
    await eventually(lambda: is_running(other, pid))
    await other.fetch("select pg_terminate_backend($1::int)", pid)
    with pytest.raises(BrokerUnavailable, match=r"57P01|closed"):
        await sleeping
    assert session.closed
    with pytest.raises(BrokerUnavailable):
        await session.fetch("select 1")
    await session.close()


async def test_a_session_that_ended_while_idle_is_noticed(
    session: Connection, other: Connection
) -> None:
    pid = (await session.fetch("select pg_backend_pid()"))[0][0]
    await other.fetch("select pg_terminate_backend($1::int)", pid)
    with pytest.raises(BrokerUnavailable):
        await session.fetch("select 1")
    assert session.closed


async def test_cancelling_a_statement_closes_the_session_at_once(
    session: Connection, other: Connection
) -> None:
    pid = (await session.fetch("select pg_backend_pid()"))[0][0]
    sleeping = asyncio.create_task(run(session, "select pg_sleep(20)"))
    await eventually(lambda: is_running(other, pid))
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(sleeping, SLACK_S)
    assert session.closed
    await other.fetch("select pg_terminate_backend($1::int)", pid)


@pytest.mark.parametrize(
    "chosen", ["asyncpg", pytest.param("psycopg", marks=pytest.mark.chaos)], indirect=True
)
async def test_a_commit_that_the_standby_did_not_confirm_is_unknown(
    chosen: Driver, own_server: OwnServer
) -> None:
    server = own_server(migrated=False, synchronous_standby_names="nobody")
    session = await chosen.connect(server.dsn(), application_name="waiting")
    other = await chosen.connect(server.dsn(), application_name="other")
    try:
        await session.fetch("set synchronous_commit = local")
        await session.fetch("create table things (id int)")
        await session.fetch("set synchronous_commit = on")
        waiting = asyncio.create_task(run(session, "insert into things values (1)"))
        found = await eventually(
            lambda: other.fetch("select pid from pg_stat_activity where wait_event = 'SyncRep'")
        )
        await other.fetch("select pg_cancel_backend($1)", found[0][0])
        with pytest.raises(BrokerUnavailable, match="standby"):
            await waiting
        assert session.closed
        assert len(await other.fetch("select id from things")) == 1
    finally:
        await session.close()
        await other.close()


@pytest.mark.parametrize("dsn", ["nobody@127.0.0.1:{port}/postgres", "127.0.0.1:{port}/nothing"])
async def test_a_server_that_will_not_have_us_is_a_setting(
    chosen: Driver, server_dsn: str, dsn: str
) -> None:
    port = server_dsn.rpartition(":")[2].partition("/")[0]
    user = "" if "@" in dsn else "postgres:hunter2@"
    with pytest.raises(ConfigurationError, match="does not exist") as refused:
        await chosen.connect(f"postgresql://{user}{dsn.format(port=port)}", application_name="x")
    assert "hunter2" not in str(refused.value)
