"""What the page on deploying says of privileges and connections holds on a real server."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from chancy import Chancy, JobFilter, Queue, State, StatementFailed, Worker
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from tests.docs.pages import page, rows_of
from tests.docs.rehearsal import commands
from tests.support import jobs
from tests.support.command import inside
from tests.support.sql import ask
from tests.support.waiting import eventually

PAGE = page("docs/guides/deploying.md")


class Roles(NamedTuple):
    """DSNs, one for each role of the page."""

    worker: str
    producer: str
    viewer: str


@pytest.fixture
def roles(dsn: str) -> Iterator[Roles]:
    """The roles of the page under names of our own, since they are shared by the whole server, and
    with what its commands print granted to them."""
    (made,) = [block.text for block in PAGE.blocks if "create role" in block.text]
    (typed,) = [block for block in PAGE.blocks if "migrate grants" in block.text]
    run = secrets.token_hex(4)
    names = re.findall(r"create role (\w+)", made)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(made.replace("shop_", f"shop_{run}_").encode())
        for command, _ in commands(typed):
            words = command.replace("shop_", f"shop_{run}_").partition(" > ")[0].split()
            connection.execute(inside(*words[1:], dsn=dsn).out.encode())
        renamed = [name.replace("shop_", f"shop_{run}_") for name in names]
        yield Roles(
            *(make_conninfo(dsn, options=f"-c role=shop_{run}_{kind}") for kind in Roles._fields)
        )
        for statement in ("drop owned by {} cascade", "drop role {}"):
            for name in renamed:
                connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


async def test_each_role_can_do_its_part_and_not_more(roles: Roles) -> None:
    async with Chancy(roles.producer, pool_size=1) as producer:
        reference = await producer.push(jobs.note.job(value=1))
        await producer.push_many([jobs.note.job(value=2), jobs.note.job(value=3)])
        with pytest.raises(StatementFailed, match="permission denied"):
            await producer.get_job(reference.id)
    queues = [Queue(name="async", executor="async")]
    plugins = [Leadership(), Retries(), Recovery(), DeadLetters()]
    async with Chancy(
        roles.worker, queues=queues, plugins=plugins, no_default_plugins=True, pool_size=1
    ) as chancy:
        async with Worker(chancy, queues=["async"], heartbeat_s=0.1) as worker:
            assert await worker.leader.wait() == 1
            done = await (await chancy.push(jobs.note.job(value=4))).wait(60)
            assert done.state is State.SUCCEEDED
            await chancy.push(jobs.fail.job())
            later = await chancy.push(jobs.note.job(value=5).with_delay(60))
            await chancy.cancel(later.id)
            await chancy.pause_queue("async")
        with pytest.raises(StatementFailed, match=r"must be owner|permission denied"):
            await chancy.broker.fetch("select chancy.make_days(9)")  # type: ignore[attr-defined]
    async with Chancy(roles.viewer, pool_size=1) as viewer:
        assert len(await viewer.find_jobs(JobFilter())) == 6
        assert len(await viewer.get_queues()) == 2
        assert await viewer.get_workers() == []
        assert await viewer.counts()
        with pytest.raises(StatementFailed, match="permission denied"):
            await viewer.push(jobs.note.job(value=6))


async def test_the_owner_prunes_by_hand(dsn: str) -> None:
    (statements,) = [block.text for block in PAGE.blocks if "drop_days" in block.text]
    ask(dsn, statements)


async def test_a_worker_has_the_connections_that_the_page_counts(dsn: str) -> None:
    rows = rows_of(PAGE.section("Connections"))
    at_rest = {row[0].strip("`"): int(row[1][0]) for row in rows if row[1][0].isdigit()}
    queues = [Queue(name="async", executor="async")]
    async with Chancy(dsn, queues=queues) as chancy, Worker(chancy, queues=["async"]) as worker:
        await chancy.push(jobs.note.job(value=1))
        await eventually(lambda: worker.settled and worker.listening)

        def there() -> bool:
            found = ask(
                dsn,
                "select application_name from pg_stat_activity"
                " where datname = current_database() and application_name like 'chancy%'",
            )
            names = Counter(str(row[0]) for row in found)
            # Sessions of the pool are made as they are asked for.
            return dict(names) | {"chancy": min(names["chancy"], 1)} == at_rest

        await eventually(there)
    assert sum(at_rest.values()) == 2


def test_the_looks_at_the_tables_run(dsn: str) -> None:
    """The statements for whoever is on duty."""
    (statements,) = [block.text for block in PAGE.blocks if "pg_stat_user_tables" in block.text]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements.split(";"):
            if statement.strip():
                connection.execute(statement.encode())
