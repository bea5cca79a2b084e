"""The command ``chancy workflow``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar
from uuid import UUID

import click

from chancy.errors import PushError
from chancy.plugin.commands import Id, as_json, read_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugin.tracking.commands import cancel_group, listing
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.drawing import dot, mermaid
from chancy.plugins.workflow.record import (
    StepRecord,
    WorkflowFilter,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
)
from chancy.plugins.workflow.reference import WorkflowReference

T = TypeVar("T")


async def _newest(chancy: Application) -> Sequence[tuple[UUID, str]]:
    found = await WorkflowCalls(chancy.broker).find(WorkflowFilter(limit=200))
    return [(one.id, f"{one.state.label} {one.name}") for one in found]


@click.group()
def workflow() -> None:
    """List, show, cancel, retry, signal and export workflows.

    \b
    Example:
      chancy workflow list --state failed
    """


@workflow.command("list")
@listing("workflows", WorkflowState, WorkflowFilter)
def list_(cli: CommandLine, wanted: WorkflowFilter, json_: bool) -> None:
    """List workflows, newest first.

    \b
    Example:
      chancy workflow list --name import --state failed
      chancy workflow list --json | jq '.[].id'
    """
    found = cli.run(lambda chancy: WorkflowCalls(chancy.broker).find(wanted))
    columns = ("id", "name", "state", "steps", "pushed", "finished", "error")
    if json_:
        cli.script([facts(one) for one in found])
    else:
        cli.table(columns, map(_cells, found))


def _cells(record: WorkflowRecord) -> Sequence[object]:
    state, times = record.state.label, (record.pushed_at, record.finished_at)
    return record.id, record.name, state, record.steps, *times, record.error


@workflow.command()
@click.argument("id", type=Id(_newest))
@as_json
@click.pass_obj
def show(cli: CommandLine, id: UUID, json_: bool) -> None:
    """Show a workflow and its steps. Exits with status 1 if it does not exist.

    \b
    Example:
      chancy workflow show 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    found, steps, progress = cli.run(lambda chancy: _load(chancy, id))
    if found is None:
        _refuse_unknown(id)
    if json_:
        shown = facts(found) | {"progress": progress and facts(progress)}
        cli.script(shown | {"steps": [facts(step) for step in steps]})
        return
    done = f"{progress.fraction:.0%} of {progress.total} steps" if progress else "no steps"
    cli.line(f"workflow {found.id} {found.name!r} is {found.state.label}: {done} are done")
    if found.error:
        cli.line(found.error)
    cli.table(
        ("step", "state", "function", "started", "took s", "run", "job", "error"),
        [
            (
                step.name,
                step.state.value,
                step.func,
                step.started_at,
                None if step.took_s is None else f"{step.took_s:.3f}",
                step.run,
                step.job_id,
                step.error and f"{step.error.get('type')}: {step.error.get('message')}",
            )
            for step in steps
        ],
    )


@workflow.command()
@click.argument("id", type=Id(_newest))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["mermaid", "dot", "json"]),
    default="mermaid",
    show_default=True,
    help="The output format.",
)
@click.pass_obj
def export(cli: CommandLine, id: UUID, format_: str) -> None:
    """Print a diagram of a workflow, its steps coloured by their states.

    Exits with status 1 if it does not exist.

    \b
    Example:
      chancy workflow export 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11 --format dot | dot -Tsvg
    """
    found, steps, _ = cli.run(lambda chancy: _load(chancy, id))
    if found is None:
        _refuse_unknown(id)
    match format_:
        case "json":
            cli.script(facts(found) | {"steps": [facts(step) for step in steps]})
        case "dot":
            cli.line(dot(found.name, steps).rstrip())
        case _:
            cli.line(mermaid(steps).rstrip())


@workflow.command()
@click.argument("id", type=Id(_newest))
@as_json
@click.pass_obj
def cancel(cli: CommandLine, id: UUID, json_: bool) -> None:
    """Cancel a workflow: running steps are asked to stop, the others never start.

    Exits with status 1 if it does not exist, or has ended otherwise.

    \b
    Example:
      chancy workflow cancel 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    cancel_group(cli, WorkflowCalls, id, done="is cancelled", json_=json_)


@workflow.command()
@click.argument("id", type=Id(_newest))
@click.option("--from", "step", help="Also run this step and all steps after it again.")
@as_json
@click.pass_obj
def retry(cli: CommandLine, id: UUID, step: str | None, json_: bool) -> None:
    """Run failed and cancelled steps again, and go on from there.

    \b
    Example:
      chancy workflow retry 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
      chancy workflow retry 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11 --from parse
    """
    count = _run_or_refuse(cli, lambda chancy: _reference(chancy, id).retry(step))
    if json_:
        cli.script({"steps": count})
    else:
        cli.line(f"{count} steps of workflow {id} are run again")


@workflow.command()
@click.argument("id", type=Id(_newest))
@click.argument("name")
@click.option("--payload", help="The result of the step, as JSON.")
@as_json
@click.pass_obj
def signal(cli: CommandLine, id: UUID, name: str, payload: str | None, json_: bool) -> None:
    """Send a signal to the step of this name. It is stored until the step waits for it.

    \b
    Example:
      chancy workflow signal 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11 approved --payload '{"by": "eve"}'
    """
    value = None if payload is None else read_json(payload, "--payload")
    sent = _run_or_refuse(cli, lambda chancy: _reference(chancy, id).signal(name, value))
    if json_:
        cli.script({"sent": sent})
    else:
        cli.line(f"signal {name} is sent" if sent else f"signal {name} was sent before")


def _run_or_refuse(cli: CommandLine, work: Callable[[Application], Awaitable[T]]) -> T:
    """Run a call; print its `PushError` and exit with status 1."""

    async def main(chancy: Application) -> T | PushError:
        try:
            return await work(chancy)
        except PushError as error:
            return error

    found = cli.run(main)
    if isinstance(found, PushError):
        refuse(str(found))
    return found


def _reference(chancy: Application, id: UUID) -> WorkflowReference:
    return WorkflowReference(id, chancy)


async def _load(
    chancy: Application, id: UUID
) -> tuple[WorkflowRecord | None, list[StepRecord], WorkflowProgress | None]:
    calls = WorkflowCalls(chancy.broker)
    return await calls.get(id), await calls.steps(id), await calls.progress(id)


def _refuse_unknown(id: UUID) -> NoReturn:
    refuse(f"there is no workflow {id}")
