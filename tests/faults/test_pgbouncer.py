"""Behind PgBouncer in transaction mode, where every statement may meet another server session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from chancy import Chancy, Queue, Worker
from chancy.errors import StatementFailed
from chancy.postgres.drivers import Name, driver
from chancy.postgres.drivers.base import Connection, Driver
from chancy.postgres.schema import migrate
from tests.support import jobs
from tests.support.command import inside
from tests.support.pgbouncer import pgbouncer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

SERVER_SESSIONS = 2
CLIENTS = 8


@pytest.fixture(params=["asyncpg", "psycopg"])
def chosen(request: pytest.FixtureRequest) -> Driver:
    name: Name = request.param
    return driver(name)


@pytest.fixture
def bouncer_dsn(
    empty_dsn: str, open_directory: Path, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The test's database by way of a PgBouncer with two server sessions."""
    server, _, database = empty_dsn.rpartition("/")
    server_port = int(server.rpartition(":")[2])
    mode = getattr(request, "param", "transaction")
    size = SERVER_SESSIONS if mode == "transaction" else CLIENTS
    with pgbouncer(server_port, open_directory, size=size, mode=mode) as port:
        yield f"postgresql://postgres@127.0.0.1:{port}/{database}"


async def test_clients_that_share_server_sessions_do_not_meet(
    chosen: Driver, bouncer_dsn: str
) -> None:
    sessions = [await chosen.connect(bouncer_dsn, application_name="x") for _ in range(CLIENTS)]
    assert all(session.pooled for session in sessions)
    await sessions[0].fetch("create table things (client int, number int)")
    pids: set[int] = set()

    async def work(client: int, session: Connection) -> None:
        own: set[int] = set()
        for number in range(40):
            # The same statements everywhere: a name for one of them would clash.
            rows = await session.fetch("select $1::int, pg_backend_pid()", number)
            assert rows[0][0] == number
            own.add(rows[0][1])
            async with session.transaction():
                await session.fetch("insert into things values ($1, $2)", client, number)
                level = await session.fetch("show transaction_isolation")
                assert level[0][0] == "read committed"
            if number % 10 == 0:
                with pytest.raises(StatementFailed, match="22012"):
                    await session.fetch("select 1 / $1::int", 0)
        pids.update(own)

    await asyncio.gather(*(work(client, session) for client, session in enumerate(sessions)))
    # Fewer server sessions than clients: they were shared.
    assert len(pids) == SERVER_SESSIONS
    rows = await sessions[0].fetch("select count(*), count(distinct client) from things")
    assert list(rows[0]) == [40 * CLIENTS, CLIENTS]
    checked = await sessions[0].fetch("show client_connection_check_interval")
    assert list(checked[0]) == ["0"]
    prepared = await sessions[0].fetch("select name from pg_prepared_statements")
    assert list(prepared) == []
    for session in sessions:
        await session.close()


async def test_nothing_is_set_on_a_shared_session(
    chosen: Driver, empty_dsn: str, bouncer_dsn: str
) -> None:
    direct = await chosen.connect(empty_dsn, application_name="direct")
    assert not direct.pooled
    database = empty_dsn.rpartition("/")[2]
    await direct.fetch(
        f"alter database {database} set default_transaction_isolation = 'serializable'"
    )
    session = await chosen.connect(bouncer_dsn, application_name="pooled")
    async with session.transaction():
        assert (await session.fetch("show transaction_isolation"))[0][0] == "read committed"
    default = await session.fetch("show default_transaction_isolation")
    assert default[0][0] == "serializable"
    await session.close()
    await direct.close()


async def test_a_worker_claims_and_settles_through_it_and_listens_beside_it(
    chosen: Driver, bouncer_dsn: str, empty_dsn: str
) -> None:
    queue = Queue(name="async", executor="async")
    name: Name = "asyncpg" if chosen.name == "asyncpg" else "psycopg"
    chancy = Chancy(bouncer_dsn, listen_dsn=empty_dsn, driver=name, queues=[queue])
    migrate.upgrade(empty_dsn, components=chancy.hooks.components)
    async with chancy, Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        references = [await chancy.push(jobs.note.job(value=number)) for number in range(100)]
        for reference in references:
            assert await reference.result(30) is not None
        assert worker.settled == len(references)


@pytest.mark.parametrize(
    ("bouncer_dsn", "mode"),
    [("transaction", "transaction"), ("session", "session")],
    indirect=["bouncer_dsn"],
)
def test_the_doctor_names_a_pooler_that_passes_no_notifications(
    dsn: str, bouncer_dsn: str, mode: str
) -> None:
    database = dsn.rpartition("/")[2]
    through = f"{bouncer_dsn.rpartition('/')[0]}/{database}"
    found = {one["about"]: one for one in inside("doctor", "--json", dsn=through, code=1).json}
    assert f"through a pooler in {mode} mode" in found["pooler"]["found"]
    assert [name for name, one in found.items() if not one["ok"]] == ["listener"]
    assert "--listen-dsn" in found["listener"]["todo"]
    inside("doctor", "--listen-dsn", dsn, dsn=through)
