"""The command ``chancy batch``."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import click

from chancy.plugin.commands import Id, as_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugin.tracking.commands import cancel_group, listing
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.record import (
    BatchFilter,
    BatchRecord,
    BatchState,
    CallbackRecord,
    batch_facts,
)
from chancy.states import State

#: The most failed or cancelled jobs that `show` prints.
_BAD = 20


async def _newest(chancy: Application) -> Sequence[tuple[UUID, str]]:
    found = await BatchCalls(chancy.broker).find(BatchFilter(limit=200))
    return [(one.id, f"{one.state.label} {one.name}") for one in found]


@click.group()
def batch() -> None:
    """List, show and cancel batches.

    \b
    Example:
      chancy batch list --state running
    """


@batch.command("list")
@listing("batches", BatchState, BatchFilter)
def list_(cli: CommandLine, wanted: BatchFilter, json_: bool) -> None:
    """List batches, newest first.

    \b
    Example:
      chancy batch list --name import --state failed
      chancy batch list --json | jq '.[].id'
    """
    found = cli.run(lambda chancy: BatchCalls(chancy.broker).find(wanted))
    counts = ("jobs", "pending", "failed", "cancelled")
    columns = ("id", "name", "state", *counts, "pushed", "finished")
    if json_:
        cli.script([batch_facts(one) for one in found])
    else:
        cli.table(columns, map(_cells, found))


def _cells(record: BatchRecord) -> Sequence[object]:
    progress = record.progress
    counts = progress.total, progress.pending, progress.failed, progress.cancelled
    return record.id, record.name, _state(record), *counts, record.pushed_at, record.finished_at


@batch.command()
@click.argument("id", type=Id(_newest))
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
            batch_facts(found)
            | {
                "callbacks": [
                    {"on": callback.on.label, "job": str(callback.job_id)}
                    | {name: facts(callback)[name] for name in ("func", "pushed_at")}
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
@click.argument("id", type=Id(_newest))
@as_json
@click.pass_obj
def cancel(cli: CommandLine, id: UUID, json_: bool) -> None:
    """Cancel the waiting jobs of a batch, and ask running ones to stop.

    Exits with status 1 if it does not exist, or has ended.

    \b
    Example:
      chancy batch cancel 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11
    """
    cancel_group(cli, BatchCalls, id, done="is being cancelled", json_=json_)


async def _load(
    chancy: Application, id: UUID
) -> tuple[BatchRecord | None, Sequence[CallbackRecord], Sequence[tuple[UUID, State]]]:
    calls = BatchCalls(chancy.broker)
    return await calls.get(id), await calls.callbacks(id), await calls.bad(id, None, _BAD)


def _state(record: BatchRecord) -> str:
    if record.state.final:
        return record.state.label
    return "open" if record.open else "stopping" if record.stop_asked_at else record.state.label
