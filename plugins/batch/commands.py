"""``chancy batch``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import click

from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.batch.calls import MAX_FOUND, BatchCalls
from chancy.plugins.batch.record import BatchFilter, BatchRecord, BatchState, CallbackRecord
from chancy.states import State

_STATES = [state.label for state in BatchState]
#: Jobs that have failed or were cancelled that `show` prints.
_BAD = 20


@click.group()
def batch() -> None:
    """List, show and cancel batches.

    \b
    Example:
      chancy batch list --state running
    """


@batch.command("list")
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
    """List batches, newest first.

    \b
    Example:
      chancy batch list --name import --state failed
      chancy batch list --json | jq '.[].id'
    """
    wanted = BatchFilter(
        name=name,
        states=[BatchState[one.upper()] for one in state],
        before=before,
        limit=limit,
    )
    found = line.run(lambda chancy: BatchCalls(chancy.broker).find(wanted))
    if json_:
        line.script([_facts(one) for one in found])
        return
    line.table(
        ("id", "name", "state", "jobs", "pending", "failed", "cancelled", "pushed", "finished"),
        [
            (
                one.id,
                one.name,
                _state(one),
                one.progress.total,
                one.progress.pending,
                one.progress.failed,
                one.progress.cancelled,
                one.pushed_at,
                one.finished_at,
            )
            for one in found
        ],
    )


@batch.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def show(line: CommandLine, id: UUID, json_: bool) -> None:
    """Show a batch, its callbacks, and jobs that did not succeed. Exits 1 if there is none.

    \b
    Example:
      chancy batch show 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    found, callbacks, bad = line.run(lambda chancy: _whole(chancy, id))
    if found is None:
        refuse(f"there is no batch {id}")
    if json_:
        line.script(
            _facts(found)
            | {
                "callbacks": [
                    {
                        "on": one.on.label,
                        "job": str(one.job_id),
                        "func": one.func,
                        "pushed_at": _time(one.pushed_at),
                    }
                    for one in callbacks
                ],
                "bad": [{"id": str(job), "state": state.label} for job, state in bad],
            }
        )
        return
    progress = found.progress
    line.line(
        f"batch {found.id} {found.name!r} is {_state(found)}: {progress.fraction:.0%} of "
        f"{progress.total:,} jobs have ended, {progress.failed:,} failed, "
        f"{progress.cancelled:,} cancelled"
    )
    if callbacks:
        line.table(
            ("on", "function", "job", "pushed"),
            [(one.on.label, one.func, one.job_id, one.pushed_at) for one in callbacks],
        )
    if bad:
        line.table(("job", "state"), [(job, state.label) for job, state in bad])


@batch.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def cancel(line: CommandLine, id: UUID, json_: bool) -> None:
    """Cancel the jobs of a batch that wait, and ask those that run to stop.

    Exits 1 if there is none, or it has ended.

    \b
    Example:
      chancy batch cancel 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    done = line.run(lambda chancy: BatchCalls(chancy.broker).cancel(id))
    if json_:
        line.script({"cancelled": done})
    if not done:
        refuse(f"batch {id} is not there, or has ended")
    if not json_:
        line.line(f"batch {id} is being cancelled")


async def _whole(
    chancy: Application, id: UUID
) -> tuple[BatchRecord | None, Sequence[CallbackRecord], Sequence[tuple[UUID, State]]]:
    calls = BatchCalls(chancy.broker)
    return await calls.get(id), await calls.callbacks(id), await calls.bad(id, None, _BAD)


def _state(one: BatchRecord) -> str:
    if one.state.final:
        return one.state.label
    return "open" if one.open else "stopping" if one.stop_asked_at else one.state.label


def _facts(one: BatchRecord) -> dict[str, Any]:
    progress = one.progress
    return {
        "id": str(one.id),
        "name": one.name,
        "state": one.state.label,
        "open": one.open,
        "total": progress.total,
        "pending": progress.pending,
        "succeeded": progress.succeeded,
        "failed": progress.failed,
        "cancelled": progress.cancelled,
        "pushed_at": _time(one.pushed_at),
        "stop_asked_at": _time(one.stop_asked_at),
        "finished_at": _time(one.finished_at),
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
