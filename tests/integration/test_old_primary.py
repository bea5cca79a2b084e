"""An old primary that still answers after its standby was promoted."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from chancy import BrokerUnavailable, Chancy, Queue, State, WaitTimeout, Worker
from chancy.postgres.drivers import Name, timelines
from chancy.postgres.drivers import driver as named
from chancy.postgres.dsn import parse
from tests.support import jobs
from tests.support.replicated import ReplicatedPostgres, ask_server
from tests.support.waiting import eventually

QUEUES = [Queue(name="async", executor="async")]


@pytest.fixture
def recycled() -> bool:
    """A process remembers the servers of a DSN."""
    return False


@pytest.mark.parametrize("driver", ["asyncpg", pytest.param("psycopg", marks=pytest.mark.chaos)])
async def test_an_old_primary_that_still_answers_is_not_used(
    replicated: ReplicatedPostgres, driver: Name
) -> None:
    old, new = replicated.primary, await asyncio.to_thread(replicated.add, "standby")
    made = Chancy(replicated.dsn, driver=driver, queues=QUEUES, pool_size=2)
    async with made as chancy, Worker(chancy, heartbeat_s=0.2) as worker:
        assert (await (await chancy.push(jobs.note.job(1))).wait(30)).state is State.SUCCEEDED
        reading = await named(driver).connect(new.server.dsn(), application_name="x")
        assert list((await reading.fetch("select pg_is_in_recovery()"))[0]) == [True]
        await reading.close()
        old.isolate()
        await asyncio.to_thread(replicated.promote, new)

        async def push(number: int) -> State:
            return (await (await chancy.push(jobs.note.job(number))).wait(20)).state

        async def goes_on() -> bool:
            try:
                return await push(2) is State.SUCCEEDED
            except (BrokerUnavailable, WaitTimeout):
                return False

        await eventually(goes_on)
        # It comes first in the DSN, and takes writes.
        old.way.heal()
        new.way.cut()
        await eventually(goes_on)
        assert ask_server(old.server, "select count(*) from chancy.finished_jobs") == 1
        beat = "select beat_at > now() - interval '1 second' from chancy.workers"
        await eventually(lambda: ask_server(new.server, beat))
        worker_id = worker.worker_id
        new.way.refuse()
        new.way.cut()
        with pytest.raises(BrokerUnavailable, match="an old primary answers"):
            await named(driver).connect(replicated.dsn, application_name="x")
        assert ask_server(old.server, "select count(*) from chancy.jobs") == 0
        new.way.heal()
        await eventually(goes_on)
        assert worker.worker_id == worker_id


@pytest.fixture
def mute(dsn: str) -> Iterator[str]:
    """The DSN of a role that may not ask for the timeline."""
    revoked = "execute on function pg_control_system()"
    role = f"mute_{uuid.uuid4().hex}"  # all databases of the server share it
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"create role {role} login".encode())
        session.execute(f"revoke {revoked} from public".encode())
        yield dsn.replace("postgres@", f"{role}@")
        session.execute(f"drop role {role}".encode())
        session.execute(f"grant {revoked} to public".encode())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_server_that_does_not_tell_its_timeline_is_used(mute: str, driver: Name) -> None:
    for _ in range(2):
        session = await named(driver).connect(mute, application_name="x")
        [[user]] = await session.fetch("select current_user::text")
        assert user.startswith("mute_")
        await session.close()
    assert not timelines.known(parse(mute))
