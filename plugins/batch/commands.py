"""The command ``chancy batch``."""

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
#: The most failed or cancelled jobs that `show` prints.
_BAD = 20


@click.group()
def batch() -> None:
    """List, show and cancel batches.

    \b
    Example:
      chancy batch list --state running
    """


@batch.command("list")
@click.option("--name", help="Only batches of this name.")
@click.option(
    "--state",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only batches in this state; repeatable.",
)
@click.option(
    "--before",
    type=click.UUID,
    help="Only batches older than this id: the last of the previous page.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_FOUND),
    default=50,
    show_default=True,
    help="The most batches to list.",
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
    """List batches, newest first.

    \b
    Example:
      chancy batch list --name import --state failed
      chancy batch list --json | jq '.[].id'
    """
    wanted = BatchFilter(
        name=name,
        states=[BatchState[label.upper()] for label in state],
        before=before,
        limit=limit,
    )
    found = cli.run(lambda chancy: BatchCalls(chancy.broker).find(wanted))
    if json_:
        cli.script([_as_dict(record) for record in found])
        return
    cli.table(
        ("id", "name", "state", "jobs", "pending", "failed", "cancelled", "pushed", "finished"),
        [
            (
                record.id,
                record.name,
                _state(record),
                record.progress.total,
                record.progress.pending,
                record.progress.failed,
                record.progress.cancelled,
                record.pushed_at,
                record.finished_at,
            )
            for record in found
        ],
    )


@batch.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def show(cli: CommandLine, id: UUID, json_: bool) -> None:
    """Show a batch, its callbacks, and jobs that did not succeed.

    Exits with status 1 if it does not exist.

    \b
    Example:
      chancy batch show 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    found, callbacks, bad = cli.run(lambda chancy: _load(chancy, id))
    if found is None:
        refuse(f"there is no batch {id}")
    if json_:
        cli.script(
            _as_dict(found)
            | {
                "callbacks": [
                    {
                        "on": callback.on.label,
                        "job": str(callback.job_id),
                        "func": callback.func,
                        "pushed_at": _time(callback.pushed_at),
                    }
                    for callback in callbacks
                ],
                "bad": [{"id": str(job), "state": state.label} for job, state in bad],
            }
        )
        return
    progress = found.progress
    cli.line(
        f"batch {found.id} {found.name!r} is {_state(found)}: {progress.fraction:.0%} of "
        f"{progress.total:,} jobs have ended, {progress.failed:,} failed, "
        f"{progress.cancelled:,} cancelled"
    )
    if callbacks:
        cli.table(
            ("on", "function", "job", "pushed"),
            [
                (callback.on.label, callback.func, callback.job_id, callback.pushed_at)
                for callback in callbacks
            ],
        )
    if bad:
        cli.table(("job", "state"), [(job, state.label) for job, state in bad])


@batch.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def cancel(cli: CommandLine, id: UUID, json_: bool) -> None:
    """Cancel the waiting jobs of a batch, and ask running ones to stop.

    Exits with status 1 if it does not exist, or has ended.

    \b
    Example:
      chancy batch cancel 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    done = cli.run(lambda chancy: BatchCalls(chancy.broker).cancel(id))
    if json_:
        cli.script({"cancelled": done})
    if not done:
        refuse(f"batch {id} does not exist, or has ended")
    if not json_:
        cli.line(f"batch {id} is being cancelled")


async def _load(
    chancy: Application, id: UUID
) -> tuple[BatchRecord | None, Sequence[CallbackRecord], Sequence[tuple[UUID, State]]]:
    calls = BatchCalls(chancy.broker)
    return await calls.get(id), await calls.callbacks(id), await calls.bad(id, None, _BAD)


def _state(record: BatchRecord) -> str:
    if record.state.final:
        return record.state.label
    return "open" if record.open else "stopping" if record.stop_asked_at else record.state.label


def _as_dict(record: BatchRecord) -> dict[str, Any]:
    progress = record.progress
    return {
        "id": str(record.id),
        "name": record.name,
        "state": record.state.label,
        "open": record.open,
        "total": progress.total,
        "pending": progress.pending,
        "succeeded": progress.succeeded,
        "failed": progress.failed,
        "cancelled": progress.cancelled,
        "pushed_at": _time(record.pushed_at),
        "stop_asked_at": _time(record.stop_asked_at),
        "finished_at": _time(record.finished_at),
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
