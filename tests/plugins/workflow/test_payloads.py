"""Arguments, results and signals over the usual limit, where the application allows it."""

from __future__ import annotations

import psycopg
import pytest

from chancy import Chancy, PayloadTooLarge, Worker, job
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.workflow import From, Workflow, Workflows
from tests.plugins.workflow.running import ASYNC

MAX = 4 * 1024**2
LARGE = "x" * (2 * 1024**2)
APPS: list[Chancy] = []


@job(queue="async", max_attempts=1)
async def grow() -> None:
    await Workflows().extend(APPS[0], Workflow("more").add(size.job(LARGE), "more"))


@job(queue="async", max_attempts=1)
async def size(value: str) -> int:
    return len(value)


async def test_steps_and_signals_may_be_as_large_as_the_application_says(flows_dsn: str) -> None:
    flows = Workflows()
    APPS.clear()
    app = Chancy(flows_dsn, queues=[ASYNC], plugins=[flows], max_payload=MAX)
    async with app as chancy, Worker(chancy):
        APPS.append(chancy)
        flow = Workflow("w").add(size.job(LARGE), "size").add(grow.job(), "grow")
        flow.wait_for("go").add(size.job(From("go")), "signalled")
        reference = await chancy.push(flow)
        await reference.signal("go", LARGE)
        found = await reference.result(10)
        assert found == {"size": len(LARGE), "more": len(LARGE), "signalled": len(LARGE)}
        with psycopg.connect(flows_dsn) as connection:
            chancy.sync_push(Workflow("w").add(size.job(LARGE)), within=connection)
        with pytest.raises(PayloadTooLarge, match="at most 4,194,304 bytes"):
            await chancy.push(Workflow("w").add(size.job(LARGE * 2)))
        with pytest.raises(PayloadTooLarge, match="at most 4,194,304 bytes"):
            await reference.signal("go", LARGE * 2)


async def test_callbacks_may_be_as_large_as_the_application_says(batches_dsn: str) -> None:
    batches = Batches()
    app = Chancy(batches_dsn, queues=[ASYNC], plugins=[batches], max_payload=MAX)
    async with app as chancy:
        batch = Batch(name="b", on_finish=size.job(LARGE))
        await batches.push(chancy, batch, [size.job("x")])
