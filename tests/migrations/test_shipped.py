"""Every plugin that ships, on every server that is here: its tables, and statements on them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from datetime import timedelta

import pytest

from chancy import Chancy, Plugin, Queue, State, Worker
from chancy.broker.optional import SqlStore
from chancy.embedded import PostgresServer
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.pruner import Prune, Pruner
from chancy.plugins.reprioritize import Aging, Reprioritize
from chancy.plugins.retry import Retries
from chancy.postgres.schema import migrate as schema
from chancy.testing.structure import structure
from tests.migrations.conftest import NEWEST
from tests.support import jobs
from tests.support.sources import ROOT
from tests.support.sql import ask
from tests.support.waiting import eventually

AGING = Aging(queue="async", every=timedelta(seconds=1), by=1, up_to=5)
#: Those that cannot be made without settings.
GIVEN: dict[type[Plugin], Plugin] = {Reprioritize: Reprioritize(rules=[AGING])}


def shipped() -> Sequence[Plugin]:
    """One of each plugin that has tables, with its usual settings."""
    found: dict[str, Plugin] = {}
    for folder in sorted((ROOT / "plugins").glob("*/migrations")):
        module = importlib.import_module(f"chancy.plugins.{folder.parent.name}")
        # A copy: a lazy import in another thread adds to the module.
        for one in list(vars(module).values()):
            if not (isinstance(one, type) and issubclass(one, Plugin)):
                continue
            if one.__module__.startswith(module.__name__):
                made = GIVEN.get(one) or one()
                if made.migrations() is not None:
                    found.setdefault(made.get_identifier(), made)
    assert found.keys() >= {"chancy.cron", "chancy.dead_letters", "chancy.pruner"}
    return list(found.values())


def up_down_up(dsn: str) -> None:
    every = Chancy(dsn, plugins=shipped()).hooks.components
    schema.upgrade(dsn, components=every)
    first = structure(dsn)
    schema.downgrade(dsn, components=every)
    assert schema.revisions(dsn) == {}
    schema.upgrade(dsn, components=every)
    assert structure(dsn) == first


async def work(dsn: str) -> None:
    """Something of all of them: a tick, a retry that is not, a letter, its replay, a rule."""
    letters, pruner = DeadLetters(), Pruner(rules=[Prune(keep_last=0)])
    cron = Cron(Entry("often", "* * * * * *", jobs.note.job(0)), poll_s=0.1)
    plugins = [letters, pruner, cron, Reprioritize(rules=[AGING]), Retries(False)]
    queue = Queue(name="async", executor="async")
    async with Chancy(dsn, queues=[queue], plugins=plugins) as chancy, Worker(chancy):
        failed = await chancy.push(jobs.fail.job())
        assert (await failed.wait(60)).state is State.FAILED
        assert [one.id for one in await letters.find(chancy)] == [failed.id]
        assert await letters.replay_all(chancy) == 1
        await eventually(lambda: letters.count(chancy))
        await eventually(lambda: cron.history(chancy, "often"))
        store = chancy.broker
        assert isinstance(store, SqlStore)
        assert await pruner.apply(store, asyncio.sleep, dry_run=True) == [0]


@pytest.mark.chaos
def test_each_component_goes_down_and_up_beside_the_others(empty_dsn: str) -> None:
    """Alone it does in the contract of plugins."""
    every = Chancy(empty_dsn, plugins=shipped()).hooks.components
    schema.upgrade(empty_dsn, components=every)
    first = structure(empty_dsn)
    for one in every:
        schema.downgrade(empty_dsn, components=every, component=one.name)
        schema.upgrade(empty_dsn, components=every, component=one.name)
        assert structure(empty_dsn) == first, one.name


def test_a_day_that_passes_does_not_change_the_structure(empty_dsn: str) -> None:
    """Nor does it let functions be compiled that pin their plans.

    What a plan may not do is dear, and a server that can compile does so at each call then.
    """
    every = Chancy(empty_dsn, plugins=shipped()).hooks.components
    schema.upgrade(empty_dsn, components=every)
    assert_plans_are_not_compiled(empty_dsn)
    before = structure(empty_dsn)
    schema.downgrade(empty_dsn, components=every, component="dead_letters")
    ask(empty_dsn, "select chancy.make_days(9)")
    schema.upgrade(empty_dsn, components=every)
    assert structure(empty_dsn) == before


def test_rows_of_every_table_can_be_deleted_while_a_publication_has_it(empty_dsn: str) -> None:
    every = Chancy(empty_dsn, plugins=shipped()).hooks.components
    schema.upgrade(empty_dsn, components=every)
    nameless = ask(
        empty_dsn,
        "select c.relname from pg_class c where c.relnamespace = 'chancy'::regnamespace"
        " and c.relkind in ('r', 'p') and c.relreplident <> 'f' and not exists ("
        "  select from pg_index i where i.indrelid = c.oid and i.indisprimary)",
    )
    assert nameless == []
    (day,) = ask(empty_dsn, "select to_char(now() at time zone 'UTC', 'YYYYMMDD')")[0]
    ask(empty_dsn, f"drop table chancy.finished_jobs_{day}")
    insert = (
        "insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
        " max_attempts, crashes, pushed_at, finished_at) select gen_random_uuid(), 1, 4, 'q', 0,"
        " 'a.b', 1, 1, 0, at, at from unnest(array[now(), now() - interval '9 days']) at"
    )
    ask(empty_dsn, insert)
    ask(empty_dsn, "create publication everything for all tables")
    assert ask(empty_dsn, "select chancy.make_days(0)") == [(1,)]
    assert ask(empty_dsn, "select chancy.drop_days(7)") == [("finished_jobs_default",)]
    ask(empty_dsn, "select chancy.forget_finished()")


def assert_plans_are_not_compiled(dsn: str) -> None:
    pinned = ask(
        dsn,
        "select proname, 'jit=off' = any (proconfig) from pg_proc"
        " where pronamespace = 'chancy'::regnamespace and proconfig::text like '%enable_%'",
    )
    assert {name for name, _ in pinned} >= {"claim", "finish", "orphans", "pruner_step"}
    assert [name for name, off in pinned if not off] == []


@NEWEST
async def test_shipped_migrations_go_up_down_and_up_on_each_server(
    server: PostgresServer,
) -> None:
    await asyncio.to_thread(up_down_up, server.dsn())
    await work(server.dsn())
