"""The ``chancy push`` command."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from chancy.cli import output, shell_completion
from chancy.cli.options import DATETIME, CommandTarget, as_json, on_target
from chancy.job.definition import Job, QueuedJob
from chancy.plugin.commands import Seconds, read_arguments, read_json, with_settings

if TYPE_CHECKING:
    from chancy.app.app import Chancy


@click.command()
@on_target
@click.argument("func", shell_complete=shell_completion.functions)
@click.option(
    "--arg", "single", multiple=True, metavar="NAME=JSON", help="One argument. Repeatable."
)
@click.option("--args", "several", metavar="JSON", help="All arguments, as a JSON object.")
@click.option(
    "--queue",
    metavar="NAME",
    help="Override the queue of the function.",
    shell_complete=shell_completion.queues,
)
@click.option("--priority", type=int, help="-100 to 100; higher runs first.")
@click.option("--delay", type=Seconds(), metavar="S", help="Run the job S seconds from now.")
@click.option("--run-at", type=DATETIME, metavar="ISO", help="Run the job at this time.")
@click.option(
    "--expires-in", type=Seconds(), metavar="S", help="Cancel the job unless it starts within S."
)
@click.option(
    "--expires-at", type=DATETIME, metavar="ISO", help="Cancel the job unless it starts by then."
)
@click.option("--max-attempts", type=int, help="The maximum number of attempts.")
@click.option("--no-validate", is_flag=True, help="Push a function that cannot be imported here.")
@click.option("--wait", type=Seconds(), metavar="S", help="Wait up to S seconds for the result.")
@as_json
def push(
    target: CommandTarget,
    func: str,
    single: tuple[str, ...],
    several: str | None,
    delay: float | None,
    run_at: datetime | None,
    expires_in: float | None,
    expires_at: datetime | None,
    no_validate: bool,
    wait: float | None,
    json_: bool,
    **settings: Any,
) -> None:
    """Push a job. FUNC is package.module.function.

    Prints the id and, with --wait, the state and the result. With --wait, exits 1 if the job
    failed, was cancelled, or is not finished in time.

    \b
    Example:
      chancy push shop.jobs.send --arg 'to="ann@example.com"' --arg copies=2 --delay 60
      chancy push shop.jobs.send --args '{"to": "ann@example.com"}' --wait 30
    """
    if delay is not None and run_at is not None:
        raise click.UsageError("--delay and --run-at exclude each other: pass one of them")
    if expires_in is not None and expires_at is not None:
        raise click.UsageError("--expires-in and --expires-at exclude each other: pass one of them")
    arguments = _arguments(single, several)
    expires = expires_at if expires_in is None else timedelta(seconds=expires_in)

    async def main() -> QueuedJob | None:
        async with target.opened() as chancy:
            job = _job(chancy, func, arguments, validate=not no_validate, **settings)
            if delay is not None:
                job = job.with_delay(delay)
            elif run_at is not None:
                job = job.with_run_at(run_at)
            job = job if expires is None else job.with_expires_at(expires)
            reference = await chancy.push(job, validate=not no_validate)
            if not json_:
                output.line(reference.id)  # also if the wait is interrupted
            elif wait is None:
                output.script({"id": str(reference.id)})
            return None if wait is None else await reference.wait(wait)

    finished = asyncio.run(main())
    if finished is not None:
        output.finished(finished, json_=json_)


def _job(
    chancy: Chancy,
    func: str,
    arguments: dict[str, Any],
    *,
    validate: bool,
    **settings: Any,
) -> Job:
    """The job, with the settings of its function (if imported) overridden by the options."""
    if validate:
        # JSON has no dates: decode the options as stored arguments are decoded.
        values = chancy.registry.signature(func).decode_given(json.dumps(arguments))
        job = Job.from_func(chancy.registry.find(func), **values)
    else:
        job = Job(func=func, arguments=arguments)
    return with_settings(job, **settings)


def _arguments(single: tuple[str, ...], several: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if several is not None:
        value = read_json(several, "--args")
        if not isinstance(value, dict):
            raise click.UsageError("--args must be a JSON object, for example '{\"n\": 1}'")
        found |= value
    return found | read_arguments(single)
