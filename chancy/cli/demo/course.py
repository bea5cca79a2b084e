"""Runs the demo on one server: finds modules, pushes jobs, runs them, reads them back."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from uuid import UUID

import click

from chancy.app.app import Chancy
from chancy.cli.demo import jobs
from chancy.errors import ConfigurationError, WaitTimeout
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
#: Seconds between two lines of progress, where there is no terminal.
_LINE_EVERY_S = 2.0
#: Folders of the standard library that are not indexed.
_LEFT_OUT = {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}
#: Displays the number of finished jobs of each queue.
_Show = Callable[[Mapping[str, int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """The finished jobs of the demo, and the seconds from the push to the last of them."""

    finished: dict[UUID, QueuedJob]
    elapsed_s: float


def stdlib() -> Path:
    """The directory of the standard library of this Python."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def find(limit: int | None = None) -> list[Path]:
    """The modules in order of path, without installed packages and tests.

    :param limit: the maximum number, spread evenly over all of them.
    """
    every = sorted(_walk(stdlib()))
    if not every:
        raise ConfigurationError(
            f"{stdlib()} has no Python files: this Python is installed without its sources"
        )
    if limit is None or limit >= len(every):
        return every
    return [every[index * len(every) // limit] for index in range(limit)]


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


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
        with _shown_progress(Counter(job.queue for job in planned)) as show:
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


@contextmanager
def _shown_progress(totals: Mapping[str, int]) -> Generator[_Show]:
    """Show the progress towards these totals until the block ends."""
    if not sys.stdout.isatty():
        yield _lines(totals)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TextColumn("jobs")) as progress:
        bars = {name: progress.add_task(name, total=total) for name, total in totals.items()}

        def show(done: Mapping[str, int]) -> None:
            for name, bar in bars.items():
                progress.update(bar, completed=done.get(name, 0))

        yield show


def _lines(totals: Mapping[str, int]) -> _Show:
    last = time.monotonic()

    def show(done: Mapping[str, int]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _LINE_EVERY_S or done == totals:
            last = now
            click.echo(", ".join(f"{q}: {done.get(q, 0):,} of {n:,}" for q, n in totals.items()))

    return show
