"""The ``chancy worker`` commands."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

import click

from chancy.cli import logs, output, shell_completion
from chancy.cli.exits import NO, complain
from chancy.cli.options import CommandTarget, as_json, on_target
from chancy.cli.serving import (
    HEARTBEAT_S,
    HEARTBEAT_TIMEOUT_S,
    UNKNOWN_AFTER_S,
    ServeOptions,
    run,
)
from chancy.errors import BrokerError, ConfigurationError, StatementFailed
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
    help="Serve these queues, not those of the application; '*' serves all.",
    shell_complete=shell_completion.queue_list,
)
@click.option(
    "--processors",
    metavar="A,B",
    envvar="CHANCY_PROCESSORS",
    show_envvar=True,
    help="Run only these processors of streams.",
)
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="A tag of this worker. Repeatable."
)
@click.option(
    "--processes",
    type=click.IntRange(0, 256),
    default=1,
    show_default=True,
    envvar="CHANCY_PROCESSES",
    show_envvar=True,
    help="Worker processes to run under a supervisor; 0 runs one worker in this process.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    metavar="N",
    envvar="CHANCY_CONCURRENCY",
    show_envvar=True,
    help="Jobs a worker runs at a time, for each queue; overrides the queue's own setting.",
)
@click.option(
    "--prefetch-limit",
    type=click.IntRange(0),
    metavar="N",
    help="Jobs a worker claims in addition to those it runs, for each queue.",
)
@click.option(
    "--children",
    type=click.IntRange(1),
    metavar="N",
    help="Child processes a worker's process queues share; default: one for each core, or the "
    "greatest concurrency of a queue.",
)
@click.option(
    "--unknown-after",
    type=Seconds(0.001),
    default=UNKNOWN_AFTER_S,
    show_default=True,
    metavar="S",
    envvar="CHANCY_UNKNOWN_AFTER",
    show_envvar=True,
    help="Seconds without a live worker that knows a job's function after which the job fails.",
)
@click.option("--burst", is_flag=True, help="Exit when the queues have no pending jobs.")
@click.option(
    "--shutdown-timeout",
    type=Seconds(),
    default=25.0,
    show_default=True,
    metavar="S",
    help="Seconds running jobs have to finish at shutdown.",
)
@click.option(
    "--heartbeat",
    type=Seconds(0.01),
    default=HEARTBEAT_S,
    show_default=True,
    metavar="S",
    help="Seconds between heartbeats.",
)
@click.option(
    "--heartbeat-timeout",
    type=Seconds(0.02),
    default=HEARTBEAT_TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="Seconds without a heartbeat after which a worker is presumed dead.",
)
@click.option(
    "--restart-blocked",
    type=Seconds(1.0),
    metavar="S",
    help="Kill and restart a worker whose event loop is blocked for S seconds; default: never.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    envvar="CHANCY_METRICS",
    show_envvar=True,
    help="Serve Prometheus metrics and health checks here, further worker processes on the next "
    "ports; needs the plugin chancy.metrics.",
)
@click.option(
    "--log-level",
    type=click.Choice(logs.LEVELS),
    default="info",
    show_default=True,
    envvar="CHANCY_LOG_LEVEL",
    show_envvar=True,
    help="The lowest level to log.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="CHANCY_LOG_FORMAT",
    show_envvar=True,
    help="Log as plain text or as one JSON object a line.",
)
def worker(
    target: CommandTarget,
    queues: str | None,
    processors: str | None,
    processes: int,
    restart_blocked: float | None,
    metrics: str | None,
    **served: Any,
) -> None:
    """Run jobs until SIGTERM or SIGINT; a second signal stops at once.

    At shutdown, running jobs have --shutdown-timeout seconds to finish; the rest are released
    and run on another worker. Without --app, the jobs come from the modules in `imports` and the
    patterns in `allow` of the settings. The supervisor sends heartbeats for its workers and
    replaces workers that die. Under systemd, set KillMode=mixed, so that only the supervisor is
    signalled. Use the same --heartbeat-timeout for all workers of an application.

    \b
    Example:
      chancy worker --app shop.jobs:chancy --queues mail,default --tag gpu=a100
      chancy worker --app shop.jobs:chancy --processes 4 --log-format json
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if restart_blocked is not None and processes == 0:
        raise click.UsageError("--restart-blocked needs the supervisor: --processes of 1 or more")
    options = ServeOptions(
        queues=_names(queues, "--queues names no queue"),
        processors=_names(processors, "--processors names no processor"),
        **served,
    )
    logs.install(options.log_level, options.log_format)
    if metrics is not None:
        os.environ["CHANCY_METRICS"] = metrics  # for the plugin, also in worker processes
    if processes > 0:
        _supervise(target, options, processes, restart_blocked)
    run(_application(target), options)


@worker.command("list")
@on_target
@as_json
def list_(target: CommandTarget, json_: bool) -> None:
    """List registered workers with the seconds since each one's last heartbeat.

    \b
    Example:
      chancy worker list
      chancy worker list --json | jq '.[] | select(.heartbeat_age_s > 15)'
    """

    workers = target.run(lambda chancy: chancy.get_workers())
    if json_:
        output.script(
            [
                {
                    "id": str(worker.id),
                    "host": worker.host,
                    "pid": worker.pid,
                    "queues": list(worker.queues),
                    "broken": dict(worker.broken),
                    "unknown": list(worker.unknown),
                    "tags": sorted(worker.tags),
                    "version": worker.version,
                    "started_at": worker.started_at and worker.started_at.isoformat(),
                    "heartbeat_age_s": round(worker.heartbeat_age_s, 3),
                    "blocked_s": round(worker.blocked_s, 3),
                    "memory_bytes": worker.memory_bytes,
                    "stop_asked_at": worker.stop_asked_at and worker.stop_asked_at.isoformat(),
                }
                for worker in workers
            ]
        )
        return
    output.table(
        ("id", "host", "pid", "version", "started", "heartbeat s", "queues", "broken"),
        [
            (
                worker.id,
                worker.host,
                worker.pid,
                worker.version,
                worker.started_at,
                f"{worker.heartbeat_age_s:.1f}",
                " ".join(worker.queues) or None,
                " ".join(worker.broken) or None,
            )
            for worker in workers
        ],
    )


@worker.command()
@on_target
@click.argument("id", type=click.UUID, shell_complete=shell_completion.worker_ids)
@as_json
def stop(target: CommandTarget, id: UUID, json_: bool) -> None:
    """Ask a worker to shut down as at SIGTERM. Exits with 1 if there is no such worker.

    It claims nothing more; its running jobs have its --shutdown-timeout to finish, and the rest are
    released. Under a supervisor another worker takes its place: stop the supervisor to have fewer.

    \b
    Example:
      chancy worker stop 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """

    found = target.run(lambda chancy: chancy.stop_worker(id))
    if json_:
        output.script({"worker": str(id), "found": found})
    elif found:
        output.line(f"{id} is asked to stop")
    else:
        complain(f"there is no worker {id}: see chancy worker list")
    if not found:
        sys.exit(NO)


@worker.command()
@on_target
@click.option(
    "--within",
    type=Seconds(),
    default=HEARTBEAT_TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="The maximum age of the last heartbeat, in seconds.",
)
@click.option(
    "--blocked",
    type=Seconds(),
    default=30.0,
    show_default=True,
    metavar="S",
    help="The maximum seconds for which the event loop of a worker may be blocked.",
)
@as_json
def health(target: CommandTarget, within: float, blocked: float, json_: bool) -> None:
    """Exit 0 if the database responds and a worker on this host is alive, else 1 with the reason.

    A worker on this host whose event loop is blocked by a job also exits with 1.

    Use it as the health check of a container: HEALTHCHECK CMD ["chancy", "worker", "health"].

    \b
    Example:
      chancy worker health || echo unhealthy
    """
    from chancy.worker.tags import host

    async def main() -> Sequence[WorkerRecord]:
        async with target.application() as chancy:
            try:
                # Not `opened`: running workers continue beside the tables of a newer release.
                return await chancy.get_workers()
            except StatementFailed:
                await chancy.check_tables()
                raise

    try:
        workers = asyncio.run(main())
    except StatementFailed as error:
        _unhealthy(f"the workers cannot be read: {error}", json_=json_)
    except BrokerError as error:
        _unhealthy(f"the database does not respond: {error}", json_=json_)
    here = [worker for worker in workers if worker.host == host()]
    alive = [worker for worker in here if worker.heartbeat_age_s <= within]
    if not alive:
        heartbeat_age_s = min((worker.heartbeat_age_s for worker in here), default=None)
        last = (
            "none is registered"
            if heartbeat_age_s is None
            else f"the last heartbeat was {heartbeat_age_s:.0f} s ago"
        )
        why = f"the database responds, but no worker on host {host()} is alive: {last}"
        _unhealthy(why, json_=json_)
    stuck = [worker for worker in alive if worker.blocked_s > blocked]
    if stuck:
        longest = max(stuck, key=lambda worker: worker.blocked_s)
        _unhealthy(
            f"the event loop of worker {longest.id} (pid {longest.pid}) on host {host()} has been "
            f"blocked for {longest.blocked_s:.0f} s: see loop_blocked in its log",
            json_=json_,
        )
    if json_:
        output.script({"healthy": True, "reason": None, "alive": len(alive)})
        return
    noun = "1 worker" if len(alive) == 1 else f"{len(alive)} workers"
    output.line(f"healthy: the database responds, {noun} alive on host {host()}")


def _unhealthy(why: str, *, json_: bool) -> NoReturn:
    if json_:
        output.script({"healthy": False, "reason": why, "alive": None})
    else:
        complain(why)
    sys.exit(NO)


def _supervise(
    target: CommandTarget, options: ServeOptions, processes: int, restart_blocked: float | None
) -> NoReturn:
    """Run workers in separate processes."""
    from chancy.worker.supervisor.supervisor import Supervisor

    command = [sys.executable, "-m", "chancy.cli", "worker"]
    command += [*target.arguments(), *options.arguments()]
    supervisor = Supervisor(
        command,
        processes=processes,
        once=options.burst,
        shutdown_timeout_s=options.shutdown_timeout,
        restart_blocked_s=restart_blocked,
    )
    sys.exit(asyncio.run(supervisor.run()))


def _names(text: str | None, error: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise click.UsageError(error)
    return names


def _application(target: CommandTarget) -> Chancy:
    """The application, with the modules in `imports` imported."""
    from chancy.cli import application

    chancy = target.application()
    settings = target.settings()
    for module in settings.imports:
        application.load(module, what="imports")
    plugins = (plugin.get_identifier() for plugin in chancy.hooks.plugins)
    if os.environ.get("CHANCY_METRICS") and "chancy.metrics" not in plugins:
        raise ConfigurationError(
            "--metrics (CHANCY_METRICS) needs the plugin chancy.metrics, which this application "
            "does not have: add Metrics() to its plugins"
        )
    if settings.app:
        chancy.registry.allow += settings.allow
    if not (settings.app or settings.imports or settings.allow):
        raise ConfigurationError(
            "no jobs are registered, so this worker would fail every job it claims: pass --app, "
            "or set imports or allow (CHANCY_IMPORTS, CHANCY_ALLOW, or in [tool.chancy])"
        )
    return chancy
