"""``chancy worker``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from chancy.cli import logs, output
from chancy.cli.exits import NO, complain
from chancy.cli.options import CommandTarget, as_json, on_target
from chancy.cli.serving import HEARTBEAT_S, HEARTBEAT_TIMEOUT_S, ServeOptions, run
from chancy.errors import BrokerError, ConfigurationError
from chancy.plugin.commands import Seconds
from chancy.queue.queue import MAX_CONCURRENCY

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.broker.values import WorkerRecord


@click.group(invoke_without_command=True)
@on_target
@click.option(
    "--queues",
    metavar="A,B",
    envvar="CHANCY_QUEUES",
    show_envvar=True,
    help="Serve only these queues.",
)
@click.option(
    "--processors",
    metavar="A,B",
    envvar="CHANCY_PROCESSORS",
    show_envvar=True,
    help="Run only these processors of streams.",
)
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="A tag of this worker; again for more."
)
@click.option(
    "--processes",
    type=click.IntRange(0, 256),
    default=1,
    show_default=True,
    envvar="CHANCY_PROCESSES",
    show_envvar=True,
    help="Workers to run under a supervisor; 0: one, in this process.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    metavar="N",
    envvar="CHANCY_CONCURRENCY",
    show_envvar=True,
    help="Jobs of each queue that a worker runs at a time, whatever the queue says.",
)
@click.option(
    "--most-ahead",
    type=click.IntRange(0),
    metavar="N",
    help="Jobs of each queue that a worker claims at most beside those that it runs.",
)
@click.option("--burst", is_flag=True, help="End when the queues have no pending jobs.")
@click.option(
    "--shutdown-timeout",
    type=Seconds(),
    default=25.0,
    show_default=True,
    metavar="S",
    help="Seconds that running jobs get at the end.",
)
@click.option(
    "--heartbeat",
    type=Seconds(0.01),
    default=HEARTBEAT_S,
    show_default=True,
    metavar="S",
    help="Seconds between two signs of life.",
)
@click.option(
    "--heartbeat-timeout",
    type=Seconds(0.02),
    default=HEARTBEAT_TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="Seconds without one after which its jobs are run by others.",
)
@click.option(
    "--log-level",
    type=click.Choice(logs.LEVELS),
    default="info",
    show_default=True,
    envvar="CHANCY_LOG_LEVEL",
    show_envvar=True,
    help="The least level to log.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="CHANCY_LOG_FORMAT",
    show_envvar=True,
    help="Lines for people or for a collector.",
)
def worker(
    target: CommandTarget,
    queues: str | None,
    processors: str | None,
    tags: tuple[str, ...],
    processes: int,
    concurrency: int | None,
    most_ahead: int | None,
    burst: bool,
    shutdown_timeout: float,
    heartbeat: float,
    heartbeat_timeout: float,
    log_level: str,
    log_format: logs.Format,
) -> None:
    """Run jobs until SIGTERM or SIGINT; a second one ends at once.

    Running jobs get --shutdown-timeout seconds to end; what is left is given back and runs
    elsewhere. Without --app, the jobs are those of the modules in `imports` and the patterns in
    `allow` of the settings. A supervisor beats for the workers and replaces those that die; for
    systemd, KillMode=mixed leaves the signals to it. All workers of an application should have
    the same --heartbeat-timeout.

    \b
    Example:
      chancy worker --app shop.jobs:chancy --queues mail,default --tag gpu=a100
      chancy worker --app shop.jobs:chancy --processes 4 --log-format json
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    orders = ServeOptions(
        queues=_names(queues, "--queues names no queue"),
        processors=_names(processors, "--processors names no processor"),
        tags=tags,
        concurrency=concurrency,
        most_ahead=most_ahead,
        burst=burst,
        shutdown_timeout=shutdown_timeout,
        heartbeat=heartbeat,
        heartbeat_timeout=heartbeat_timeout,
        log_level=log_level,
        log_format=log_format,
    )
    logs.install(log_level, log_format)
    if processes > 0:
        _supervise(target, orders, processes)
    run(_application(target), orders)


@worker.command("list")
@on_target
@as_json
def list_(target: CommandTarget, json_: bool) -> None:
    """List the workers that are registered, and when each last said that it lives.

    \b
    Example:
      chancy worker list
      chancy worker list --json | jq '.[] | select(.silent_s > 15)'
    """

    async def main() -> Sequence[WorkerRecord]:
        async with target.opened() as chancy:
            return await chancy.get_workers()

    found = asyncio.run(main())
    if json_:
        output.script(
            [
                {
                    "id": str(one.id),
                    "host": one.host,
                    "pid": one.pid,
                    "queues": list(one.queues),
                    "broken": dict(one.broken),
                    "tags": sorted(one.tags),
                    "version": one.version,
                    "started_at": one.started_at and one.started_at.isoformat(),
                    "silent_s": round(one.silent_s, 3),
                }
                for one in found
            ]
        )
        return
    output.table(
        ("id", "host", "pid", "version", "started", "silent s", "queues", "broken"),
        [
            (
                one.id,
                one.host,
                one.pid,
                one.version,
                one.started_at,
                f"{one.silent_s:.1f}",
                " ".join(one.queues) or None,
                " ".join(one.broken) or None,
            )
            for one in found
        ],
    )


@worker.command()
@on_target
@click.option(
    "--within",
    type=Seconds(),
    default=HEARTBEAT_TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="The last beat may be so many seconds ago.",
)
def health(target: CommandTarget, within: float) -> None:
    """Exit 0 if the database answers and a worker of this host lives, else 1 with the reason.

    For the health check of a container: HEALTHCHECK CMD ["chancy", "worker", "health"].

    \b
    Example:
      chancy worker health || echo unhealthy
    """
    from chancy.worker.tags import host

    async def main() -> Sequence[WorkerRecord]:
        async with target.opened() as chancy:
            return await chancy.get_workers()

    try:
        found = asyncio.run(main())
    except BrokerError as error:
        complain(f"the database does not answer: {error}")
        sys.exit(NO)
    here = [one for one in found if one.host == host()]
    living = [one for one in here if one.silent_s <= within]
    if not living:
        silent = min((one.silent_s for one in here), default=None)
        last = "none is registered" if silent is None else f"the last beat was {silent:.0f} s ago"
        complain(f"the database answers, but no worker of host {host()} lives: {last}")
        sys.exit(NO)
    output.line(f"healthy: the database answers, {len(living)} of host {host()} live")


def _supervise(target: CommandTarget, orders: ServeOptions, processes: int) -> NoReturn:
    """Run workers in processes of their own."""
    from chancy.worker.supervisor.supervisor import Supervisor

    command = [sys.executable, "-m", "chancy.cli", "worker"]
    command += [*target.arguments(), *orders.arguments()]
    supervisor = Supervisor(command, processes=processes, once=orders.burst)
    sys.exit(asyncio.run(supervisor.run()))


def _names(text: str | None, none: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise click.UsageError(none)
    return names


def _application(target: CommandTarget) -> Chancy:
    """The application whose functions this worker knows."""
    from chancy.cli import application

    chancy = target.application()
    settings = target.settings()
    for module in settings.imports:
        application.load(module, what="imports")
    if settings.app:
        chancy.registry.allow += settings.allow
    if not (settings.app or settings.imports or settings.allow):
        raise ConfigurationError(
            "this worker would know no function, and fail every job that it claims: give --app, "
            "or imports or allow (CHANCY_IMPORTS, CHANCY_ALLOW, or in [tool.chancy])"
        )
    return chancy
