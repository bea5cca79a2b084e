"""The command ``chancy workflow``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import fields
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import click

from chancy.errors import PushError
from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.workflow.calls import MAX_FOUND, WorkflowCalls, WorkflowFilter
from chancy.plugins.workflow.drawing import dot, mermaid
from chancy.plugins.workflow.record import (
    StepRecord,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
)
from chancy.plugins.workflow.reference import WorkflowReference, waiter_for

T = TypeVar("T")

_STATES = [state.label for state in WorkflowState]


@click.group()
def workflow() -> None:
    """List, show, cancel, retry, signal and export workflows.

    \b
    Example:
      chancy workflow list --state failed
    """


@workflow.command("list")
@click.option("--name", help="Only workflows of this name.")
@click.option(
    "--state",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only workflows in this state; repeatable.",
)
@click.option(
    "--before",
    type=click.UUID,
    help="Only workflows older than this id: the last of the previous page.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_FOUND),
    default=50,
    show_default=True,
    help="The most workflows to list.",
)
@as_json
@click.pass_obj
def list_(
    cli: CommandLine,
    name: str | None,
    state: tuple[str, ...],
    before: UUID | None,
    limit: int,
    json_: bool,
) -> None:
    """List workflows, newest first.

    \b
    Example:
      chancy workflow list --name import --state failed
      chancy workflow list --json | jq '.[].id'
    """
    wanted = WorkflowFilter(
        name=name,
        states=[WorkflowState[label.upper()] for label in state],
        before=before,
        limit=limit,
    )
    found = cli.run(lambda chancy: WorkflowCalls(chancy.broker).find(wanted))
    if json_:
        cli.script([_as_dict(record) for record in found])
        return
    cli.table(
        ("id", "name", "state", "steps", "pushed", "finished", "error"),
        [
            (
                record.id,
                record.name,
                record.state.label,
                record.steps,
                record.pushed_at,
                record.finished_at,
                record.error,
            )
            for record in found
        ],
    )


@workflow.command()
@click.argument("id", type=click.UUID)
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
        shown = _as_dict(found) | {"progress": progress and _as_dict(progress)}
        cli.script(shown | {"steps": [_as_dict(step) for step in steps]})
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
@click.argument("id", type=click.UUID)
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
            cli.script(_as_dict(found) | {"steps": [_as_dict(step) for step in steps]})
        case "dot":
            cli.line(dot(found.name, steps).rstrip())
        case _:
            cli.line(mermaid(steps).rstrip())


@workflow.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def cancel(cli: CommandLine, id: UUID, json_: bool) -> None:
    """Cancel a workflow: running steps are asked to stop, the others never start.

    Exits with status 1 if it does not exist, or has ended otherwise.

    \b
    Example:
      chancy workflow cancel 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    done = cli.run(lambda chancy: WorkflowCalls(chancy.broker).cancel(id))
    if json_:
        cli.script({"cancelled": done})
    if not done:
        refuse(f"workflow {id} does not exist, or has ended otherwise")
    if not json_:
        cli.line(f"workflow {id} is cancelled")


@workflow.command()
@click.argument("id", type=click.UUID)
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
@click.argument("id", type=click.UUID)
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
    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as error:
        raise click.BadParameter(f"{error}: pass JSON", param_hint="--payload") from None
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
    return WorkflowReference(id, chancy, lambda: waiter_for(chancy.broker, chancy.clock))


async def _load(
    chancy: Application, id: UUID
) -> tuple[WorkflowRecord | None, list[StepRecord], WorkflowProgress | None]:
    calls = WorkflowCalls(chancy.broker)
    return await calls.get(id), await calls.steps(id), await calls.progress(id)


def _as_dict(record: WorkflowRecord | StepRecord | WorkflowProgress) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case IntEnum():
            return value.name.lower()
        case Enum():
            return value.value
        case UUID():
            return str(value)
        case tuple():
            return list(value)
        case _:
            return value


def _refuse_unknown(id: UUID) -> NoReturn:
    refuse(f"there is no workflow {id}")
