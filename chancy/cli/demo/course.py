"""Runs the demo on one server: declares queues, pushes jobs, runs them, reads them back."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from uuid import UUID

import click

from chancy.app.app import Chancy
from chancy.cli.demo import jobs
from chancy.cli.demo.progress import shown
from chancy.errors import WaitTimeout
from chancy.job.definition import Job, QueuedJob
from chancy.plugins.metrics import Metrics
from chancy.plugins.retry import Retries
from chancy.queue.queue import Queue
from chancy.retry import Exponential
from chancy.worker.worker import Worker

SCHEMA = "chancy_demo"
QUEUES = (
    Queue(name="parse", executor="process"),
    Queue(name="read", executor="async", concurrency=64),
)
#: One job of this many fails at its first attempt.
FAILING = 50
_POLL_INTERVAL_S = 0.25
#: Jobs that are pushed each second while the dashboard is shown.
_EACH_SECOND = 5
#: Seconds without a finished job after which the demo gives up.
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """The finished jobs of the demo, and the seconds from the push to the last of them."""

    finished: dict[UUID, QueuedJob]
    elapsed_s: float


def plan(modules: Sequence[Path], scratch: Path) -> list[Job]:
    """Make a job for each module and queue; some fail once, and one cannot succeed.

    :param scratch: an empty directory.
    """
    planned: list[Job] = []
    for number, path in enumerate(modules):
        for factory in (jobs.parse.job, jobs.read.job):
            if len(planned) % FAILING == FAILING // 2:
                made = factory(path=str(path), fails_once=str(scratch / f"tried-{number}"))
            else:
                made = factory(path=str(path))
            planned.append(made)
    hopeless = scratch / "not_python.txt"
    hopeless.write_text("This file is prose, not Python.\n")
    planned.append(jobs.parse.job(path=str(hopeless)).with_max_attempts(2))
    return planned


async def run(dsn: str, planned: Sequence[Job]) -> DemoRun:
    """Run the jobs on a server, in the schema `SCHEMA`."""
    chancy = Chancy(dsn, schema=SCHEMA, plugins=[Retries(Exponential(base_s=0.2))])
    async with chancy:
        await chancy.migrate()
        for queue in QUEUES:
            await chancy.declare(queue, upsert=True)
            await chancy.resume_queue(queue.name)
        async with Worker(chancy, queues=[queue.name for queue in QUEUES]):
            began = time.monotonic()
            async with chancy.transaction() as transaction:
                references = await chancy.push_many(planned, within=transaction)
            took = time.monotonic() - began
            click.echo(f"pushed {len(planned):,} jobs in one transaction, in {took:.2f} s")
            finished = await _finished(chancy, [reference.id for reference in references], planned)
            return DemoRun(finished=finished, elapsed_s=time.monotonic() - began)


def check_dashboard() -> None:
    """Raise `ConfigurationError` if a library that serves the dashboard is missing."""
    from chancy.plugins.dashboard import naming_extra

    with naming_extra():
        import_module("chancy.plugins.dashboard.server")


async def show(dsn: str, planned: Sequence[Job]) -> None:
    """Serve the dashboard on the jobs of the demo, and push some of them again each second."""
    from chancy.plugins.dashboard import Dashboard, DashboardPlugin
    from chancy.plugins.dashboard.server import serve

    chancy = Chancy(dsn, schema=SCHEMA, plugins=[DashboardPlugin(), Metrics(every_s=1.0)])
    async with chancy:
        await chancy.migrate()
        async with Worker(chancy, queues=[queue.name for queue in QUEUES]):
            going = asyncio.create_task(_go_on(chancy, planned), name="chancy demo")
            try:
                await serve(
                    Dashboard(chancy),
                    "127.0.0.1",
                    0,
                    lambda url: click.echo(f"dashboard at {url}, Ctrl-C ends it"),
                )
            finally:
                going.cancel()


async def _go_on(chancy: Chancy, planned: Sequence[Job]) -> None:
    while True:
        await chancy.push_many(random.sample(planned, min(_EACH_SECOND, len(planned))))
        await asyncio.sleep(1)


async def _finished(
    chancy: Chancy, ids: Sequence[UUID], planned: Sequence[Job]
) -> dict[UUID, QueuedJob]:
    """Read the jobs back as they finish. Jobs left when this is stopped are cancelled."""
    waiting = dict.fromkeys(ids)
    finished: dict[UUID, QueuedJob] = {}
    last = time.monotonic()
    try:
        with shown(Counter(job.queue for job in planned)) as show:
            while waiting:
                await asyncio.sleep(_POLL_INTERVAL_S)
                found = await chancy.get_jobs(list(waiting))
                for id, job in found.items():
                    if job.state.final:
                        finished[id] = job
                        del waiting[id]
                        last = time.monotonic()
                show(Counter(job.queue for job in finished.values()))
                if time.monotonic() - last > _PATIENCE_S:
                    raise WaitTimeout(
                        f"no job finished for {_PATIENCE_S:g} s; {len(waiting):,} are left"
                    )
    finally:
        if waiting:
            await chancy.cancel(*waiting)
    return finished
