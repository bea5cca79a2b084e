"""The hook `pushing`: plugins change or refuse jobs before they are stored, on every way in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from chancy import Chancy, Job, Plugin, PushError, Queue, Worker, job
from chancy.plugin.pushing import PushContext, PushWay
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.encryption import Encryption, new_key
from chancy.plugins.workflow import Workflow, Workflows
from tests.plugins.dead_letter.letters import letters
from tests.support import jobs
from tests.support.sql import ask
from tests.support.waiting import eventually


class Named(Plugin):
    def __init__(self, name: str, *needs: str) -> None:
        self.name = name
        self.needs = needs

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.name

    def get_dependencies(self) -> list[str]:
        return list(self.needs)


class Tracing(Named):
    """Notes the order of the hooks, and the contexts, in the meta of a job."""

    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        trace = f"{job.meta.get('trace', '')}{self.name}"
        return job.with_meta(trace=trace, way=f"{context.way}{'+' * context.within}")


class Quota(Named):
    """Refuses the value 13; 15 once it is exhausted. It multiplies the others."""

    exhausted = False

    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        value = job.arguments.get("value", 0)
        if value == 13 or (value == 15 and self.exhausted):
            raise PushError("over quota")
        if value == 14:
            return None  # type: ignore[return-value]
        return job.with_arguments(value=value * 10) if value in range(1, 10) else job


BATCHES, WORKFLOWS, CRON, DEAD = Batches(), Workflows(), Cron(), DeadLetters()
QUOTA = Quota("quota")
#: The order of the hooks, and the contexts, of the jobs and the stored steps and callbacks.
FOUND = """
select meta ->> 'trace', meta ->> 'way', arguments -> 'value', {} from chancy.{}
where func = 'tests.support.jobs.note'
"""
ASYNC = Queue(name="async", executor="async")
#: The application of a test, for a job that adds steps.
apps: list[Chancy] = []


@pytest.fixture
def chancy(dsn: str) -> Chancy:
    # The dependent one is given first, and called last.
    plugins = [Tracing("b", "a"), Tracing("a"), QUOTA, BATCHES, WORKFLOWS, CRON, DEAD]
    app = Chancy(dsn, plugins=plugins, queues=[ASYNC])
    app.sync_migrate()
    apps[:] = [app]
    return app


def note(value: int) -> Job[Any]:
    return jobs.note.job(value=value).with_queue("rest")


@job(queue="async")
async def extend() -> None:
    await WORKFLOWS.extend(apps[0], Workflow("more").add(note(3), "more"))


async def _push(app: Chancy, dsn: str) -> None:
    await app.push(note(1))
    await app.push_many(note(n) for n in (2, 3))
    await BATCHES.push(app, Batch(name="jobs"), [note(4)])
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await app.push(note(5), within=connection)
        await app.push_many([note(6)], within=connection)
        await app.push(Workflow("w").add(note(7), "only"), within=connection)


async def _workflow(app: Chancy, dsn: str) -> None:
    flow = Workflow("steps").add(note(1), "one", undo=note(2)).add(extend.job(), "two")
    await app.push(flow)
    async with Worker(app):
        steps = "select count(*) from chancy.workflows_steps"
        await eventually(lambda: ask(dsn, steps) == [(4,)])


async def _batch(app: Chancy, dsn: str) -> None:
    await BATCHES.push(app, Batch(name="called", on_finish=note(1), on_failure=note(2)), [])


async def _cron(app: Chancy, dsn: str) -> None:
    await CRON.add(app, Entry("e", "* * * * * *", note(1)))
    await CRON.run(app, "e")
    async with Worker(app):
        fired = "select count(*) > 2 from chancy.jobs"
        await eventually(lambda: ask(dsn, fired) == [(True,)])


async def _replay(app: Chancy, dsn: str) -> None:
    for id in letters(dsn, 2, arguments='{"value": 1}', queue="rest"):
        assert await DEAD.replay(app, id) is not None


#: A new way in needs a line here.
WAYS: dict[PushWay, Callable[[Chancy, str], Awaitable[None]]] = {
    PushWay.PUSH: _push,
    PushWay.WORKFLOW: _workflow,
    PushWay.BATCH: _batch,
    PushWay.CRON: _cron,
    PushWay.REPLAY: _replay,
}


@pytest.mark.parametrize("way", PushWay)
async def test_every_way_in_passes_the_plugins_in_order(
    dsn: str, chancy: Chancy, way: PushWay
) -> None:
    async with chancy:
        await WAYS[way](chancy, dsn)
    found = [
        *ask(dsn, FOUND.format("false", "jobs")),
        *ask(dsn, FOUND.format("undoes is not null", "workflows_steps")),
        *ask(dsn, FOUND.format("true", "batches_callbacks")),
    ]
    assert found
    assert {trace for trace, *_ in found} == {"ab"}
    assert {value % 10 for _, _, value, _ in found} == {0}
    ways = {(seen, value) for _, seen, value, _ in found}
    if way is PushWay.PUSH:
        # The jobs of a batch are stored in the transaction of the batch.
        within = {("push+", 40), ("push+", 50), ("push+", 60), ("workflow+", 70)}
        assert ways == within | {("push", value * 10) for value in (1, 2, 3)}
    else:
        assert {seen for seen, _ in ways} == {way}
        assert len(ways) == {PushWay.WORKFLOW: 3, PushWay.BATCH: 2}.get(way, 1)


def test_the_calls_without_an_event_loop_pass_the_plugins(dsn: str, chancy: Chancy) -> None:
    with chancy, psycopg.connect(dsn) as connection:
        chancy.sync_push(note(1))
        chancy.sync_push_many([note(2)])
        chancy.sync_push(note(3), within=connection)
        chancy.sync_push(Workflow("w").add(note(4), "only"), within=connection)
        BATCHES.sync_push(chancy, Batch(name="b", on_finish=note(5)), [], within=connection)
    found = ask(dsn, FOUND.format("true", "jobs") + " order by 3")
    ways = ["push", "push", "push+", "workflow+", "batch+"]
    assert found == [("ab", way, (n + 1) * 10, True) for n, way in enumerate(ways)]


async def test_a_tick_or_a_replay_that_a_plugin_refuses_pushes_nothing(
    dsn: str, chancy: Chancy
) -> None:
    QUOTA.exhausted = True
    try:
        async with chancy:
            await CRON.add(chancy, Entry("e", "* * * * * *", note(15)))
            with pytest.raises(PushError, match="over quota"):
                await CRON.run(chancy, "e")
            async with Worker(chancy):
                ticks = "select distinct skipped from chancy.cron_ticks"
                await eventually(lambda: ask(dsn, ticks) == [("refused",)])
            [dead] = letters(dsn, arguments='{"value": 15}')
            with pytest.raises(PushError, match="over quota"):
                await DEAD.replay(chancy, dead)
            assert (await DEAD.get(chancy, dead)).replayed_at is None  # type: ignore[union-attr]
    finally:
        QUOTA.exhausted = False
    assert ask(dsn, "select count(*) from chancy.jobs") == [(0,)]


async def test_a_plugin_changes_the_queue_and_the_attempts_that_a_replay_asks_for(
    dsn: str,
) -> None:
    class Spread(Named):
        def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
            return job.with_queue(f"{job.queue}/1").with_max_attempts(job.max_attempts + 1)

    async with Chancy(dsn, plugins=[Spread("spread"), DEAD], queues=[ASYNC]) as chancy:
        [dead] = letters(dsn)
        assert await DEAD.replay(chancy, dead, queue="mail", max_attempts=7)
    assert ask(dsn, "select queue, max_attempts from chancy.jobs") == [("mail/1", 8)]


async def test_a_replay_by_filter_leaves_out_what_a_plugin_refuses_alone(dsn: str) -> None:
    """The size of arguments is limited for pushes, and these are stored."""
    async with Chancy(dsn, plugins=[QUOTA, DEAD], queues=[ASYNC], max_payload=50) as chancy:
        [refused] = letters(dsn, arguments='{"value": 13}')
        for arguments in ('{"value": 1}', f'{{"value": 2, "text": "{"x" * 50}"}}'):
            letters(dsn, arguments=arguments)
        with pytest.raises(PushError, match="over quota"):
            await DEAD.replay(chancy, refused)
        assert await DEAD.replay_all(chancy) == 2
        assert await DEAD.replay_all(chancy) == 0
    found = "select arguments -> 'value' from chancy.jobs order by 1"
    assert ask(dsn, found) == [(10,), (20,)]


@pytest.mark.parametrize(
    "arguments", ['"text"', f'{{"value": {"9" * 5_000}}}'], ids=["text", "a long number"]
)
async def test_a_replay_replaces_no_arguments_that_cannot_be_read(
    dsn: str, caplog: pytest.LogCaptureFixture, arguments: str
) -> None:
    async with Chancy(dsn, plugins=[QUOTA, DEAD], queues=[ASYNC]) as chancy:
        [dead] = letters(dsn, arguments=arguments)
        assert await DEAD.replay_all(chancy) == 0
        assert f"replay_refused job={dead}" in caplog.text
        with pytest.raises(PushError, match="its arguments cannot be read"):
            await DEAD.replay(chancy, dead)
    assert ask(dsn, "select count(*) from chancy.jobs") == [(0,)]


async def test_plugins_get_plain_arguments_of_stored_jobs(dsn: str) -> None:
    """They are encrypted with the key of the time when they were stored."""
    plugins = [Encryption({"k": new_key()}), QUOTA, CRON, DEAD]
    async with Chancy(dsn, plugins=plugins, queues=[ASYNC]) as chancy:
        await chancy.migrate()
        await CRON.add(chancy, Entry("e", "0 0 1 1 *", jobs.note.job(value=1)))
        await CRON.run(chancy, "e")
        with_key = "select arguments ? '$chancy' from chancy.{}"
        assert ask(dsn, with_key.format("cron_entries")) == [(True,)]
        assert ask(dsn, with_key.format("jobs")) == [(True,)]
        jobs.noted.clear()
        async with Worker(chancy, queues=["async"]):
            await eventually(lambda: jobs.noted == [10])


@pytest.mark.parametrize(
    ("value", "why"), [(13, "over quota"), (14, "'quota': pushing.. returned")]
)
async def test_a_refused_job_stores_nothing_of_its_push(
    dsn: str, chancy: Chancy, value: int, why: str
) -> None:
    async with chancy:
        with pytest.raises(PushError, match=why):
            await chancy.push_many(jobs.note.job(n) for n in (1, value, 2))
    assert ask(dsn, "select count(*) from chancy.jobs") == [(0,)]
