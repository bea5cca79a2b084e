"""The ``chancy job`` commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from chancy.app.diagnosis import Why
from chancy.app.selection import SelectedJobs
from chancy.broker.values import Cancellation, JobFilter
from chancy.cli import output, shell_completion
from chancy.cli.exits import NO
from chancy.cli.job_changes import BulkOptions, delete, move, prioritize, reschedule, selecting
from chancy.cli.options import CommandTarget, as_json, on_target
from chancy.errors import WaitTimeout
from chancy.job.definition import QueuedJob
from chancy.plugin.commands import Seconds, refuse
from chancy.states import State

if TYPE_CHECKING:
    from chancy.app.app import Chancy

_STATES = [state.label for state in State]


class JobCommands(click.Group):
    """The group ``job``, to which plugins add commands, such as ``job logs``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        from chancy.cli import extensions, main

        name = f"job {cmd_name}"
        found = extensions.find(name, words=ctx.meta.get(main.WORDS, ()), taken=())
        if found is None and name in main.ELSEWHERE:
            raise click.UsageError(main.unknown(name), ctx)
        return found


@click.group(cls=JobCommands)
def job() -> None:
    """List, show, explain and wait for jobs; run them now, cancel, move and delete them.

    \b
    Example:
      chancy job list --state failed
    """


@job.command("list")
@on_target
@click.option(
    "--state", multiple=True, type=click.Choice(_STATES), help="Only this state. Repeatable."
)
@click.option(
    "--queue", metavar="NAME", help="Only this queue.", shell_complete=shell_completion.queues
)
@click.option("--func", metavar="PATH", help="Only this function.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="The maximum number of jobs.",
)
@click.option(
    "--before",
    type=click.UUID,
    metavar="ID",
    help="Only jobs older than this one: the last of a page.",
)
@as_json
def list_(
    target: CommandTarget,
    state: tuple[str, ...],
    limit: int,
    json_: bool,
    **conditions: Any,
) -> None:
    """List jobs, newest first.

    \b
    Example:
      chancy job list --state failed --state cancelled --queue mail --limit 10
      chancy job list --json | jq -r '.[].id'
    """
    wanted = JobFilter(states=frozenset(map(State.parse, state)), limit=limit, **conditions)
    jobs = target.run(lambda chancy: chancy.find_jobs(wanted))
    if json_:
        output.script([output.job(job) for job in jobs])
        return
    output.table(
        ("id", "state", "queue", "function", "attempt", "pushed", "last error"),
        [
            (
                job.id,
                job.state.label,
                job.queue,
                job.func,
                f"{job.attempt}/{job.max_attempts}",
                job.pushed_at,
                job.errors[-1].get("message") if job.errors else None,
            )
            for job in jobs
        ],
    )
    if len(jobs) == limit:
        click.echo(f"next page: --before {jobs[-1].id}", err=True)


@job.command()
@on_target
@click.argument("id", type=click.UUID, shell_complete=shell_completion.job_ids)
@as_json
def show(target: CommandTarget, id: UUID, json_: bool) -> None:
    """Show a job with its arguments, errors and result. Exits 1 if it does not exist.

    \b
    Example:
      chancy job show 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
    """

    found = target.run(lambda chancy: chancy.get_job(id))
    if found is None:
        refuse(f"there is no job {id}")
    if json_:
        output.script(output.job(found))
    else:
        _describe(found)


@job.command()
@on_target
@click.argument("id", type=click.UUID, shell_complete=shell_completion.job_ids)
@click.option(
    "--timeout", type=Seconds(), metavar="S", help="The maximum number of seconds to wait."
)
@as_json
def wait(target: CommandTarget, id: UUID, timeout: float | None, json_: bool) -> None:
    """Wait until a job is finished. Exits 0 if it succeeded, else 1.

    \b
    Example:
      chancy job wait 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10 --timeout 60
    """

    async def finished(chancy: Chancy) -> QueuedJob:
        if await chancy.get_job(id) is None:
            raise WaitTimeout(f"there is no job {id} to wait for")
        return await chancy.wait_for(id, timeout)

    output.finished(target.run(finished), json_=json_)


@job.command()
@on_target
@click.argument("id", type=click.UUID, shell_complete=shell_completion.job_ids)
@as_json
def why(target: CommandTarget, id: UUID, json_: bool) -> None:
    """Explain why a job has not run or is not finished. Exits 1 if it does not exist.

    The most important reason comes first.

    \b
    Example:
      chancy job why 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
    """

    found = target.run(lambda chancy: chancy.why(id))
    if json_:
        output.script([{"why": reason.why.value, "text": reason.text} for reason in found])
    else:
        for reason in found:
            output.line(reason.text)
    if any(reason.why is Why.NOT_THERE for reason in found):
        sys.exit(NO)


@job.command()
@on_target
@click.argument("ids", type=click.UUID, nargs=-1, shell_complete=shell_completion.job_ids)
@click.option("--key", metavar="KEY", help="All jobs that are held on this key.")
@as_json
def release(target: CommandTarget, ids: tuple[UUID, ...], key: str | None, json_: bool) -> None:
    """Release jobs on hold. Exits 1 if one of the ids is not on hold, or no job has the key.

    \b
    Example:
      chancy job release 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
      chancy job release --key invoice-42
    """
    if (key is None) != bool(ids):
        raise click.UsageError("pass either ids, or --key")
    count = target.run(lambda chancy: chancy.release(*ids, key=key))
    if json_:
        output.script({"released": count})
    else:
        output.line(f"{count:,} job{'s' * (count != 1)} released")
    if count < max(len(set(ids)), 1):
        sys.exit(NO)


@job.command()
@on_target
@click.argument("ids", type=click.UUID, nargs=-1, shell_complete=shell_completion.job_ids)
@selecting
def retry(target: CommandTarget, bulk: BulkOptions, ids: tuple[UUID, ...]) -> None:
    """Run scheduled jobs now, including retries. Exits 1 if a job is not scheduled.

    A job that has failed for good runs again with `chancy dead replay ID`.

    \b
    Example:
      chancy job retry 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
      chancy job retry --queue mail --error ConnectTimeout
    """
    if not bulk.by_ids(ids):
        bulk.run(target, "run", "due now", SelectedJobs.run_now)
        return

    async def run(chancy: Chancy) -> tuple[frozenset[UUID], Mapping[UUID, QueuedJob]]:
        moved = await chancy.run_now(*ids)
        return moved, await chancy.get_jobs([id for id in ids if id not in moved])

    moved, others = target.run(run)
    became = {
        id: "due now" if id in moved else others[id].state.label if id in others else "unknown"
        for id in ids
    }
    if bulk.json_:
        output.script({str(id): state for id, state in became.items()})
    else:
        for id, state in became.items():
            output.line(f"{id}  {state}")
    for id in ids:
        if id in others and others[id].state is State.FAILED:
            click.echo(f"job {id} has failed for good: chancy dead replay {id}", err=True)
    if len(moved) < len(set(ids)):
        sys.exit(NO)


@job.command()
@on_target
@click.argument("ids", type=click.UUID, nargs=-1, shell_complete=shell_completion.job_ids)
@selecting
def cancel(target: CommandTarget, bulk: BulkOptions, ids: tuple[UUID, ...]) -> None:
    """Cancel waiting jobs, and ask running jobs to stop. Exits 1 if a job is finished or unknown.

    \b
    Example:
      chancy job cancel 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
      chancy job cancel --queue mail --func send --older 2h --where tenant_id=42 --dry-run
    """
    if not bulk.by_ids(ids):
        bulk.run(target, "cancel", "cancelled", SelectedJobs.cancel)
        return

    found = target.run(lambda chancy: chancy.cancel(*ids))
    if bulk.json_:
        output.script({str(id): found[id].value for id in ids})
    else:
        output.table(("id", "now"), [(id, found[id].value) for id in ids])
    if not {*found.values()} <= {Cancellation.CANCELLED, Cancellation.ASKED}:
        sys.exit(NO)


for _change in (delete, move, prioritize, reschedule):
    job.add_command(_change)


def _describe(job: QueuedJob) -> None:
    fields: dict[str, Any] = output.job(job)
    errors = fields.pop("errors")
    for name, value in fields.items():
        if value is not None:
            text = json.dumps(value) if isinstance(value, dict | list) else value
            output.line(f"{name:14}{text}")
    for number, error in enumerate(errors, 1):
        output.line(f"error {number}: {error.get('message', '')}")
        if error.get("trace"):
            output.line(f"  {error['trace']}".rstrip().replace("\n", "\n  "))
