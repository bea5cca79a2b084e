"""The ``chancy demo`` command."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from chancy.cli import output
from chancy.plugin.commands import refuse

T = TypeVar("T")

_FURTHER = """\
Next, with your own server:
  chancy migrate upgrade --dsn postgresql://localhost/shop
  chancy worker --app shop.jobs:chancy --dsn postgresql://localhost/shop
The source archive has a tutorial, docs/tutorial, and twenty lines to copy, examples/quickstart."""


@click.command()
@click.option(
    "--dsn",
    metavar="DSN",
    help="Use this server, in its schema chancy_demo, instead of a private one.",
)
@click.option("--modules", type=click.IntRange(1), metavar="N", help="Index N modules only.")
@click.option("--dashboard", is_flag=True, help="Then serve the dashboard until Ctrl-C.")
def demo(dsn: str | None, modules: int | None, dashboard: bool) -> None:
    """Index Python's standard library: two jobs for each module, checked without a queue.

    Processes parse the modules; the event loop reads and hashes them. Some jobs fail once and are
    retried, and one fails for good. The totals of the jobs' results are then computed again
    directly; exits 1 if a total differs.

    \b
    Example:
      chancy demo
      chancy demo --dsn postgresql://localhost/postgres --modules 100
      chancy demo --dashboard
    """
    from chancy.cli.demo import course, totals

    if dashboard:
        course.check_dashboard()
    signal.signal(signal.SIGTERM, _interrupt)
    # Without a handler Python prints warnings, such as those of the intended failures.
    logging.getLogger("chancy").setLevel(logging.ERROR)
    logging.getLogger("chancy.attempts").setLevel(logging.CRITICAL)
    began = time.monotonic()
    paths = course.find(modules)
    click.echo(f"{len(paths):,} modules of {course.stdlib()}, without tests and packages")
    with tempfile.TemporaryDirectory(prefix="chancy-demo-") as scratch, _server(dsn) as place:
        planned = course.plan(paths, Path(scratch))
        run = asyncio.run(_stoppable(course.run(place, planned)))
        if dashboard:
            asyncio.run(_stoppable(course.show(place, planned)))
    click.echo("checking every total without a queue")
    by_jobs, direct = totals.of_jobs(run.finished), totals.directly(paths, planned)
    wrong = [name for name in by_jobs if by_jobs[name] != direct[name]]
    rows = [
        (name, _shown(total), _shown(direct[name]), "WRONG" if name in wrong else "right")
        for name, total in by_jobs.items()
    ]
    output.table(("total", "by jobs", "directly", ""), rows)
    speed = len(run.finished) / run.elapsed_s
    took = time.monotonic() - began
    click.echo(f"{speed:,.0f} jobs/s over {run.elapsed_s:.1f} s; {took:.1f} s in all")
    if dsn is not None:
        click.echo(f"the jobs are kept in schema {course.SCHEMA}, which you may drop")
    if wrong:
        refuse(f"the jobs and the direct computation differ in: {', '.join(wrong)}")
    click.echo(f"every total is right\n\n{_FURTHER}")


@contextmanager
def _server(dsn: str | None) -> Generator[str]:
    if dsn is not None:
        yield dsn
        return
    from chancy.embedded import PostgresServer

    click.echo("starting a private Postgres")
    with PostgresServer() as server:
        yield server.dsn()


async def _stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Await the work; SIGTERM cancels it, as SIGINT does by default, so that it can clean up."""
    task = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _shown(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
