"""Jobs on hold wait until they are released, whichever way they come in."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from chancy import (
    Chancy,
    ConfigurationError,
    Job,
    JobSelection,
    Plugin,
    PushError,
    Queue,
    Unique,
    Worker,
)
from chancy.app.diagnosis import Why
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.workflow import Workflow, Workflows
from tests.support import jobs
from tests.support.command import inside
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

STATES = "select state, count(*) from chancy.jobs group by 1 order by 1"
ASYNC = Queue(name="async", executor="async")
#: Ends the job that SQL has pushed, as failed.
DIE = """
with gone as (delete from chancy.jobs where func = 'a.b' returning *)
insert into chancy.finished_jobs (
  id, pos, state, queue, priority, func, arguments, attempt, max_attempts, crashes, meta, errors,
  pushed_at)
select id, pos, 5, queue, priority, func, arguments, 1, 1, 0, meta, '[]', pushed_at
from gone
returning id
"""


def note(value: object) -> Job[object]:
    return jobs.note.job.with_hold("k")(value)


async def test_a_release_in_a_transaction_that_stays_open_silences_no_push(dsn: str) -> None:
    guard = "select pg_try_advisory_xact_lock(hashtext(chancy.channel()), hashtext('async'))"
    async with Chancy(dsn, queues=[ASYNC]) as chancy:
        await chancy.push(note(1))
        async with chancy.transaction() as tx:
            assert await chancy.release(key="k", within=tx) == 1
            await chancy.push(Workflow("w").add(jobs.note.job(value=2)), within=tx)
            assert ask(dsn, guard) == [(True,)]


async def test_released_jobs_run_in_their_order_behind_those_that_were_pending(dsn: str) -> None:
    jobs.noted.clear()
    one_by_one = Queue(name="async", executor="async", concurrency=1)
    async with Chancy(dsn, queues=[one_by_one]) as chancy:
        held = await chancy.push_many([note(1), note(2).with_priority(0), note(3)])
        [reason] = await chancy.why(held[0].id)
        assert (reason.why, "by key 'k'" in reason.text) == (Why.HELD, True)
        assert (await chancy.counts())["async"].held == 3
        first = await chancy.push(jobs.note.job(value=0))
        async with Worker(chancy):
            assert await first.result(30) == 0
            async with chancy.transaction() as tx:
                assert await chancy.release(held[2].id, uuid.uuid4(), within=tx) == 1
                assert jobs.noted == [0]
            assert await held[2].result(30) == 3
            assert await chancy.release(key="k") == 2
            assert [await held[0].result(30), await held[1].result(30)] == [1, 2]
        assert await chancy.release(key="k") == 0
        assert (await chancy.get_job(held[0].id)).meta == {}  # type: ignore[union-attr]
        with pytest.raises(ConfigurationError, match="either ids, or key="):
            await chancy.release()
    assert jobs.noted == [0, 3, 1, 2]


async def test_every_way_in_and_every_change_keeps_a_job_on_hold(dsn: str) -> None:
    batches, workflows, cron, letters = Batches(), Workflows(), Cron(), DeadLetters()
    plugins: list[Plugin] = [batches, workflows, cron, letters]
    app = Chancy(dsn, queues=[ASYNC], plugins=plugins, no_default_plugins=True)
    with app:
        app.sync_migrate()
        app.sync_push(note(1))
    replacing = Unique(key="a", on_conflict="replace")
    async with app:
        await app.declare(Queue(name="other", executor="async"))
        await app.push(note(2).with_unique(replacing))
        await app.push(note(3).with_unique(replacing))
        await app.push_many([note(4), note(5).with_delay(60), note(6).with_priority(3)])
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await app.push(note(7), within=connection)
            await connection.execute(
                "select chancy.push('async', 'a.b', meta => '{\"hold\": \"k\"}')"
            )
        await batches.push(app, Batch(name="b", on_finish=note(8)), [])
        await app.push(Workflow("w").add(note(9), "only"))
        await cron.add(app, Entry("e", "* * * * * *", note(10)))
        await cron.run(app, "e")
        dead = ask(dsn, DIE)[0][0]
        assert await letters.file_missing(app) == 1
        assert await letters.replay(app, dead) is not None
        assert ask(dsn, STATES) == [(3, 10)]
        everything = app.select_jobs(JobSelection())
        assert (await everything.prioritize(7)).changed == 10
        assert (await everything.move("other")).changed == 10
        assert (await everything.reschedule(0)).changed == 10
        assert ask(dsn, STATES) == [(3, 10)]
        async with Worker(app):
            fired = "select count(*) > 11 from chancy.jobs where state = 3"
            await eventually(lambda: ask(dsn, fired) == [(True,)])
            assert ask(dsn, "select count(*) from chancy.jobs where state <> 3") == [(0,)]


@pytest.mark.parametrize(
    "rule",
    [
        Unique(key="a", on_conflict="replace"),
        Unique(key="a", debounce=timedelta(seconds=0.1), cap=timedelta(seconds=0.2)),
    ],
    ids=["replace", "debounce"],
)
async def test_a_hold_of_a_replacing_push_is_not_lost(dsn: str, rule: Unique) -> None:
    """However it is pushed."""
    app = Chancy(dsn, queues=[ASYNC], no_default_plugins=True)
    on_hold = note(2).with_unique(rule)
    in_sql = """
        select chancy.push('async', %s, '{"value": 2}', unique_key => 'a', on_conflict => 'replace',
          meta => '{"hold": "k"}')
    """

    async def by_sql() -> None:
        ask(dsn, in_sql, (on_hold.func,))

    ways: list[Callable[[], Awaitable[object]]] = [
        lambda: app.push(on_hold),
        lambda: app.push_many([on_hold, note(3).with_unique(rule)]),
        lambda: asyncio.to_thread(app.sync_push, on_hold),
        by_sql,
    ]
    with app:
        app.sync_migrate()
        async with app:
            for way in ways:
                waiting = await app.push(jobs.note.job(1).with_queue("async").with_unique(rule))
                await way()
                assert ask(dsn, STATES) == [(3, 1)]
                assert present(await waiting.get()).meta == {"hold": "k"}
                await app.cancel(waiting.id)


def test_the_command_releases_by_id_and_by_key(dsn: str) -> None:
    with Chancy(dsn) as chancy:
        held = chancy.sync_push_many([note(1), note(2)])
    assert inside("job", "release", held[0].id, dsn=dsn).out == "1 job released\n"
    inside("job", "release", held[0].id, dsn=dsn, code=1)
    assert inside("job", "release", "--key", "k", "--json", dsn=dsn).out == '{"released": 1}\n'
    inside("job", "release", "--key", "k", dsn=dsn, code=1)
    inside("job", "release", dsn=dsn, code=2)


@pytest.mark.parametrize("key", ["", "k" * 201, 7])
async def test_a_key_that_cannot_be_stored_is_refused(dsn: str, key: Any) -> None:
    job = jobs.note.job.with_hold(key)(1)
    async with Chancy(dsn) as chancy:
        with pytest.raises(PushError, match="must be a string of 1 to 200 characters"):
            await chancy.push(job)
        with pytest.raises(PushError, match="must be a string of 1 to 200 characters"):
            await chancy.push(Workflow("w").add(job, "only"))
    pushed = "select chancy.push('async', 'a.b', meta => jsonb_build_object('hold', %s::{}))"
    pushed = pushed.format("int" if key == 7 else "text").replace("%s", f"'{key}'")
    with pytest.raises(psycopg.Error, match="must be a string of 1 to 200 characters"):
        ask(dsn, pushed)
    assert ask(dsn, STATES) == []
