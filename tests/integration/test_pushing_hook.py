"""The hook `pushing`: plugins change or refuse jobs before they are stored."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from chancy import Chancy, Job, Plugin, PushError
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.workflow import Workflow, Workflows
from tests.faults import tables
from tests.support import jobs


class Named(Plugin):
    def __init__(self, name: str, *needs: str) -> None:
        self.name = name
        self.needs = needs

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.name

    def get_dependencies(self) -> list[str]:
        return list(self.needs)


class Tracing(Named):
    """Notes the order of the hooks in the meta of a job."""

    def pushing(self, job: Job[Any]) -> Job[Any]:
        return job.with_meta(trace=f"{job.meta.get('trace', '')}{self.name}")


class Quota(Named):
    def pushing(self, job: Job[Any]) -> Job[Any]:
        if job.arguments.get("value") == 13:
            raise PushError("over quota")
        return None if job.arguments.get("value") == 14 else job  # type: ignore[return-value]


BATCHES, WORKFLOWS = Batches(), Workflows()
TRACES = "select distinct meta ->> 'trace' from chancy.jobs"


@pytest.fixture
def chancy(dsn: str) -> Chancy:
    # The dependent one is given first, and called last.
    plugins = [Tracing("b", "a"), Tracing("a"), Quota("quota"), BATCHES, WORKFLOWS]
    app = Chancy(dsn, plugins=plugins)
    app.sync_migrate()
    return app


async def test_every_push_of_jobs_passes_the_plugins_in_order(dsn: str, chancy: Chancy) -> None:
    def job(value: int) -> Job[Any]:
        return jobs.note.job(value)

    with chancy:
        chancy.sync_push(job(0))
    async with chancy:
        await chancy.push(job(1))
        await chancy.push_many(job(n) for n in range(2, 5))
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await chancy.push(job(5), within=connection)
        batch = Batch(name="some", on_finish=job(6))
        await BATCHES.push(chancy, batch, [job(7)])
        workflow = Workflow("steps")
        workflow.add(job(8), "only", undo=job(9))
        await WORKFLOWS.push(chancy, workflow)
    assert tables.ask(dsn, TRACES) == [("ab",)]
    assert tables.ask(dsn, "select count(*) from chancy.jobs") == [(8,)]


@pytest.mark.parametrize(
    ("value", "why"), [(13, "over quota"), (14, "'quota': pushing.. returned")]
)
async def test_a_refused_job_stores_nothing_of_its_push(
    dsn: str, chancy: Chancy, value: int, why: str
) -> None:
    async with chancy:
        with pytest.raises(PushError, match=why):
            await chancy.push_many(jobs.note.job(n) for n in (1, value, 2))
    assert tables.ask(dsn, "select count(*) from chancy.jobs") == [(0,)]
