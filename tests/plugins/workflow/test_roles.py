"""Workflows of programs with the grants of a producer."""

from __future__ import annotations

from chancy import Chancy, Plugin, Worker
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.workflow import Each, From, Workflow, Workflows
from chancy.postgres.schema.component import RoleKind
from tests.plugins.batch.jobs import act, ran, said
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import ASYNC, REFUSE
from tests.plugins.workflow.two_stores import FAST, fast
from tests.support.roles import Cast, roles
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_a_producer_pushes_what_a_worker_runs(empty_dsn: str, redis_url: str) -> None:
    flows = Workflows(sweep_s=0.1)
    plugins: list[Plugin] = [flows, RedisPlugin(url=redis_url)]
    cast = Cast(empty_dsn)

    def application(kind: RoleKind) -> Chancy:
        return Chancy(cast.of(kind), queues=[ASYNC, FAST], plugins=plugins, no_default_plugins=True)

    with roles(empty_dsn, list(cast.names.values())):
        cast.grant(Chancy(empty_dsn, plugins=plugins, no_default_plugins=True).hooks.components)
        async with application(RoleKind.WORKER) as chancy:
            await chancy.declare(FAST)
        flow = (
            Workflow("w").add(steps.number.job(1), "here").add(fast(steps.number.job(2)), "there")
        )
        flow.wait_for("go", timeout_s=0.1, default=3)
        flow.add(fast(steps.total.job(Each("here", "there", "go"))), "sum")
        asked = Workflow("asked").wait_for("one").add(fast(steps.mark.job()), "a", after="one")
        asked.add(steps.mark.job(), "b", after="one").wait_for("two", after=["a", "b"])
        asked.add(steps.number.job(From("two")), "end")
        partly = Workflow("partly").wait_for("go").add(steps.number.job(From("go")), "end")
        partly.add(steps.mark.job(), "refused", after="go", on_failure="ignore")
        async with application(RoleKind.PRODUCER) as chancy:
            id = (await chancy.push(flow)).id
            assert len(ask(empty_dsn, "select id from chancy.jobs where queue = 'fast'")) == 1
            reference = await chancy.push(asked)
            assert await reference.signal("one")
            assert await reference.signal("two", 7)
            assert not await reference.signal("two", 8)
            ask(empty_dsn, REFUSE)
            third = (await chancy.push(partly)).id
            assert await flows.signal(chancy, third, "go", 9)
        assert len(ask(empty_dsn, "select id from chancy.jobs where queue = 'fast'")) == 2
        async with application(RoleKind.WORKER) as chancy, Worker(chancy):
            assert await flows.reference(chancy, id).result(10) == 6
            assert await flows.reference(chancy, reference.id).result(10) == 7
            assert await flows.reference(chancy, third).result(10) == {"end": 9, "refused": None}


async def test_a_producer_pushes_batches_that_a_worker_runs(empty_dsn: str, redis_url: str) -> None:
    batches = Batches(sweep_s=0.1)
    plugins: list[Plugin] = [batches, RedisPlugin(url=redis_url)]
    cast = Cast(empty_dsn)

    def application(kind: RoleKind) -> Chancy:
        return Chancy(cast.of(kind), queues=[ASYNC, FAST], plugins=plugins, no_default_plugins=True)

    with roles(empty_dsn, list(cast.names.values())):
        cast.grant(Chancy(empty_dsn, plugins=plugins, no_default_plugins=True).hooks.components)
        async with application(RoleKind.WORKER) as chancy:
            await chancy.declare(FAST)
        to = said.job("on")
        async with application(RoleKind.PRODUCER) as chancy:
            # A batch that ends when it is pushed, so that the producer pushes its callbacks.
            empty = Batch(name="empty", on_success=to, on_finish=fast(to))
            await batches.push(chancy, empty, [])
            batch = Batch(name="b", on_finish=fast(to), open=True)
            reference = await batches.push(chancy, batch, [act.job(1), fast(act.job(2))])
            assert await reference.add([act.job(3), fast(act.job(4))]) == 2
            await reference.close()
        async with application(RoleKind.WORKER) as chancy, Worker(chancy):
            found = batches.reference(chancy, reference.id)
            assert await found.wait(10) is BatchState.SUCCEEDED
            await eventually(lambda: len(ran) == 7)
    assert sorted(ran) == ["1", "2", "3", "4", "on finish", "on finish", "on success"]
