"""The command ``chancy job logs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import click

from chancy.broker.values import JobFilter
from chancy.plugin.commands import Id, as_json, complain, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugins.job_logs.lines import SQL, STEP, LogLine, read, shown

#: Seconds between two polls for new lines, and to wait for the last lines of a finished job.
_LOOK_S, _LATE_S = 0.5, 2.0


async def _newest(chancy: Application) -> Sequence[tuple[UUID, str]]:
    found = await chancy.broker.find(JobFilter(limit=200))
    return [(job.id, f"{job.state.label} {job.queue} {job.func}") for job in found]


@click.command("job logs")
@click.argument("id", type=Id(_newest))
@click.option("--follow", "-f", is_flag=True, help="Wait for further lines until the job ends.")
@as_json
@click.pass_obj
def logs(cli: CommandLine, id: UUID, follow: bool, json_: bool) -> None:
    """Print what a job has logged. Exits with status 1 if there is neither a line nor a job.

    \b
    Example:
      chancy job logs 0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11 --follow
    """

    def show(line: LogLine) -> None:
        if json_:
            cli.script(facts(line))
        else:
            at = line.at.isoformat(sep=" ", timespec="milliseconds")
            cli.line(f"{at} {line.attempt} {line.level_name} {line.text}")

    known, dropped = cli.run(lambda chancy: _show(chancy, id, follow, show))
    if not known:
        refuse(f"there is no job {id}, and no line of it")
    if dropped:
        complain("the job has reached its limit of 1 MB: its later lines were dropped")


async def _show(
    chancy: Application, id: UUID, follow: bool, show: Callable[[LogLine], None]
) -> tuple[bool, bool]:
    """Print the lines of a job; returns whether the job exists, and whether it has reached its
    limit."""
    tables, clock = SQL.on(chancy.broker), chancy.clock
    after, dropped, left_s = 0, False, _LATE_S
    while True:
        for line in (lines := shown(await read(tables, id, after, STEP))):
            show(line)
            after, dropped = line.number, line.last
        if len(lines) == STEP:
            continue
        job = (await chancy.broker.get([id])).get(id)
        if job is None or job.state.final:
            left_s -= _LOOK_S
        if not follow or dropped or left_s <= 0:
            return job is not None or after > 0, dropped
        await clock.sleep(_LOOK_S)
