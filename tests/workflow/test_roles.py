"""Workflows of programs that may push alone."""

from __future__ import annotations

from chancy import Chancy, Plugin, Worker
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.workflow import Each, Workflow, Workflows
from chancy.postgres.component import Kind
from tests.integration.roles import Cast, roles
from tests.workflow import steps
from tests.workflow.both import FAST, fast
from tests.workflow.running import ASYNC, execute


async def test_a_producer_pushes_what_a_worker_runs(empty_dsn: str, redis_url: str) -> None:
    flows = Workflows(sweep_s=0.1)
    plugins: list[Plugin] = [flows, RedisPlugin(url=redis_url)]
    cast = Cast(empty_dsn)

    def application(kind: Kind) -> Chancy:
        return Chancy(cast.of(kind), queues=[ASYNC, FAST], plugins=plugins, no_default_plugins=True)

    with roles(empty_dsn, list(cast.names.values())):
        cast.grant(Chancy(empty_dsn, plugins=plugins, no_default_plugins=True).hooks.components)
        async with application(Kind.WORKER) as chancy:
            await chancy.declare(FAST)
        flow = (
            Workflow("w").add(steps.number.job(1), "here").add(fast(steps.number.job(2)), "there")
        )
        flow.wait_for("go", timeout_s=0.1, default=3)
        flow.add(fast(steps.total.job(Each("here", "there", "go"))), "sum")
        async with application(Kind.PRODUCER) as chancy:
            id = (await flows.push(chancy, flow)).id
        assert len(execute(empty_dsn, "select id from chancy.redis_outbox")) == 1
        async with application(Kind.WORKER) as chancy, Worker(chancy):
            assert await flows.reference(chancy, id).result(10) == 6
