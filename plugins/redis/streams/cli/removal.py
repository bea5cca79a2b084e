"""``chancy redis stream remove``: removal of a processor."""

from __future__ import annotations

from dataclasses import asdict

import click

from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import CommandLine
from chancy.plugins.redis.streams.cli.arguments import PROCESSOR, STREAM, declared, run
from chancy.plugins.redis.streams.inspection import Inspection


@click.command()
@STREAM
@PROCESSOR
@click.option("--force", is_flag=True, help="Even if workers run it, or died running it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def remove(
    line: CommandLine, stream: str, processor: str, force: bool, yes: bool, json_: bool
) -> None:
    """Remove a processor that is no longer used, with its position and its dead letters.

    Until then the stream keeps every event that the processor has not acknowledged, and fills up.
    With --force, workers that still run the processor start it again. Exits 1 if workers run it, or
    if there is no such processor.

    \b
    Example:
      chancy redis stream remove orders bill
    """
    target = declared(stream)
    inspection = Inspection(target, processor)
    reports, found = run(target, inspection.report), run(target, inspection.members)
    alive = [member for member in found if member.lease_s > 0]
    if alive and not force:
        refuse(
            f"{len(alive)} workers run the processor {processor} of {stream}: stop them, wait "
            f"{max(member.lease_s for member in alive):.0f} s if they were killed, or pass --force"
        )
    if not yes:
        click.confirm(
            f"Remove the processor {processor} of {stream}, with "
            f"{sum(report.pending for report in reports):,} pending events and "
            f"{sum(report.dead for report in reports):,} dead letters?",
            abort=True,
            err=True,
        )
    removed = run(target, inspection.remove)
    if json_:
        line.script(asdict(removed))
    else:
        line.line(
            f"removed from {removed.partitions} partitions, with {removed.pending:,} pending "
            f"events and {removed.letters:,} dead letters"
        )
    if not removed.partitions and not found:
        refuse(f"nothing is stored of a processor {processor} of {stream}")
