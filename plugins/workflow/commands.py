"""``chancy workflow``."""

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
from chancy.plugins.workflow.drawing import dot, mermaid
from chancy.plugins.workflow.flows import MAX_FOUND, WorkflowCalls, WorkflowFilter
from chancy.plugins.workflow.record import (
    StepRecord,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
)
from chancy.plugins.workflow.reference import WorkflowReference
from chancy.plugins.workflow.waiting import waiting_for

T = TypeVar("T")

_STATES = [state.label for state in WorkflowState]


@click.group()
def workflow() -> None:
    """List, show, cancel and retry workflows, signal them, and draw them.

    \b
    Example:
      chancy workflow list --state failed
    """


@workflow.command("list")
@click.option("--name", help="Only those of this name.")
@click.option("--state", type=click.Choice(_STATES), multiple=True, help="Only in this state.")
@click.option("--before", type=click.UUID, help="Only older ones: the last of the page before.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_FOUND),
    default=50,
    show_default=True,
    help="At most so many.",
)
@as_json
@click.pass_obj
def list_(
    line: CommandLine,
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
        states=[WorkflowState[one.upper()] for one in state],
        before=before,
        limit=limit,
    )
    found = line.run(lambda chancy: WorkflowCalls(chancy.broker).find(wanted))
    if json_:
        line.script([_facts(one) for one in found])
        return
    line.table(
        ("id", "name", "state", "steps", "pushed", "finished", "error"),
        [
            (
                one.id,
                one.name,
                one.state.label,
                one.steps,
                one.pushed_at,
                one.finished_at,
                one.error,
            )
            for one in found
        ],
    )


@workflow.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def show(line: CommandLine, id: UUID, json_: bool) -> None:
    """Show a workflow and its steps, with states and times. Exits 1 if there is none.

    \b
    Example:
      chancy workflow show 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    found, steps, progress = line.run(lambda chancy: _whole(chancy, id))
    if found is None:
        _unknown(id)
    if json_:
        shown = _facts(found) | {"progress": progress and _facts(progress)}
        line.script(shown | {"steps": [_facts(one) for one in steps]})
        return
    done = f"{progress.fraction:.0%} of {progress.total} steps" if progress else "no steps"
    line.line(f"workflow {found.id} {found.name!r} is {found.state.label}: {done} are done")
    if found.error:
        line.line(found.error)
    line.table(
        ("step", "state", "function", "started", "took s", "run", "job", "error"),
        [
            (
                one.name,
                one.state.value,
                one.func,
                one.started_at,
                None if one.took_s is None else f"{one.took_s:.3f}",
                one.run,
                one.job_id,
                one.error and f"{one.error.get('type')}: {one.error.get('message')}",
            )
            for one in steps
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
    help="Of which kind.",
)
@click.pass_obj
def export(line: CommandLine, id: UUID, format_: str) -> None:
    """Draw a workflow, its steps coloured by their states. Exits 1 if there is none.

    \b
    Example:
      chancy workflow export 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11 --format dot | dot -Tsvg
    """
    found, steps, _ = line.run(lambda chancy: _whole(chancy, id))
    if found is None:
        _unknown(id)
    match format_:
        case "json":
            line.script(_facts(found) | {"steps": [_facts(one) for one in steps]})
        case "dot":
            line.line(dot(found.name, steps).rstrip())
        case _:
            line.line(mermaid(steps).rstrip())


@workflow.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def cancel(line: CommandLine, id: UUID, json_: bool) -> None:
    """End a workflow: what runs is asked to stop, and the rest never begins.

    Exits 1 if there is none, or it has ended in another way.

    \b
    Example:
      chancy workflow cancel 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    done = line.run(lambda chancy: WorkflowCalls(chancy.broker).cancel(id))
    if json_:
        line.script({"cancelled": done})
    if not done:
        refuse(f"workflow {id} is not there, or has ended in another way")
    if not json_:
        line.line(f"workflow {id} is cancelled")


@workflow.command()
@click.argument("id", type=click.UUID)
@click.option("--from", "step", help="Run this step and all behind it again, too.")
@as_json
@click.pass_obj
def retry(line: CommandLine, id: UUID, step: str | None, json_: bool) -> None:
    """Run what has failed or was cancelled again, and go on from there.

    \b
    Example:
      chancy workflow retry 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
      chancy workflow retry 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11 --from parse
    """
    count = _allowed(line, lambda chancy: _reference(chancy, id).retry(step))
    if json_:
        line.script({"steps": count})
    else:
        line.line(f"{count} steps of workflow {id} are run again")


@workflow.command()
@click.argument("id", type=click.UUID)
@click.argument("name")
@click.option("--payload", help="What the step gives, as JSON.")
@as_json
@click.pass_obj
def signal(line: CommandLine, id: UUID, name: str, payload: str | None, json_: bool) -> None:
    """Give a signal to the step of this name, which waits for it, or will.

    \b
    Example:
      chancy workflow signal 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11 approved --payload '{"by": "eve"}'
    """
    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as error:
        raise click.BadParameter(f"{error}: pass JSON", param_hint="--payload") from None
    sent = _allowed(line, lambda chancy: _reference(chancy, id).signal(name, value))
    if json_:
        line.script({"sent": sent})
    else:
        line.line(f"signal {name} is sent" if sent else f"there was a signal {name} before")


def _allowed(line: CommandLine, work: Callable[[Application], Awaitable[T]]) -> T:
    """Run, and answer no if the workflow does not allow it."""

    async def main(chancy: Application) -> T | PushError:
        try:
            return await work(chancy)
        except PushError as error:
            return error

    found = line.run(main)
    if isinstance(found, PushError):
        refuse(str(found))
    return found


def _reference(chancy: Application, id: UUID) -> WorkflowReference:
    return WorkflowReference(id, chancy, lambda: waiting_for(chancy.broker, chancy.clock))


async def _whole(
    chancy: Application, id: UUID
) -> tuple[WorkflowRecord | None, list[StepRecord], WorkflowProgress | None]:
    flows = WorkflowCalls(chancy.broker)
    return await flows.get(id), await flows.steps(id), await flows.progress(id)


def _facts(one: WorkflowRecord | StepRecord | WorkflowProgress) -> dict[str, Any]:
    return {field.name: _plain(getattr(one, field.name)) for field in fields(one)}


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


def _unknown(id: UUID) -> NoReturn:
    refuse(f"there is no workflow {id}")
