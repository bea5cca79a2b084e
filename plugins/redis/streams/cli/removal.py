"""``chancy redis stream forget|dead``: what a processor has left behind."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import CommandLine
from chancy.plugins.redis.streams.cli.arguments import PROCESSOR, STREAM, declared, inspected, run
from chancy.plugins.redis.streams.dead_letters import read_dead_letters
from chancy.plugins.redis.streams.inspection import Inspection


@click.command()
@STREAM
@PROCESSOR
@click.option("--force", is_flag=True, help="Although workers have it, or had it when they died.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def forget(
    line: CommandLine, stream: str, processor: str, force: bool, yes: bool, json_: bool
) -> None:
    """Forget a processor that is no more: how far it was, and its dead letters.

    Until then the stream keeps for it what it has not acknowledged, and is full in the end. Workers
    that have it although it is forced begin it anew. Exits 1 if there are such workers, or there
    is no such processor.

    \b
    Example:
      chancy redis stream forget orders bill
    """
    target = declared(stream)
    look = Inspection(target, processor)
    reports, found = run(target, look.report), run(target, look.members)
    alive = [one for one in found if one.lease_s > 0]
    if alive and not force:
        refuse(
            f"{len(alive)} workers have the processor {processor} of {stream}: stop them, wait "
            f"{max(one.lease_s for one in alive):.0f} s if they were killed, or give --force"
        )
    if not yes:
        click.confirm(
            f"the processor {processor} of {stream} is forgotten, with "
            f"{sum(one.pending for one in reports):,} pending events and "
            f"{sum(one.dead for one in reports):,} dead letters. Go on?",
            abort=True,
            err=True,
        )
    gone = run(target, look.forget)
    if json_:
        line.script(asdict(gone))
    else:
        line.line(
            f"{gone.partitions} partitions forgotten, with {gone.pending:,} pending events and "
            f"{gone.letters:,} dead letters"
        )
    if not gone.partitions and not found:
        refuse(f"there is nothing of a processor {processor} of {stream}")


@click.command()
@STREAM
@PROCESSOR
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Letters at most, from the first partition on.",
)
@click.option(
    "--partition", "only", type=click.IntRange(0), multiple=True, help="Only this; repeatable."
)
@as_json
@click.pass_obj
def dead(
    line: CommandLine, stream: str, processor: str, limit: int, only: tuple[int, ...], json_: bool
) -> None:
    """Show the dead letters of a processor, partition by partition, the newest of each.

    They are those of its policy, Ignore(keep=True) or Retry; those of the middleware DeadLetters
    are in a stream.

    \b
    Example:
      chancy redis stream dead orders bill --partition 3
    """
    target = declared(stream)
    found = run(target, lambda: read_dead_letters(target, processor, limit, only or None))
    if not found:
        run(target, lambda: inspected(target, processor))
    if json_:
        line.script([asdict(one) for one in found])
    else:
        line.table(
            ("partition", "id", "failed at", "error", "record"),
            [
                (one.partition, one.id, one.failed_at, one.error, json.dumps(one.record))
                for one in found
            ],
        )
    if len(found) == limit:
        click.echo(
            f"chancy: these are {limit:,}; there may be more, in the partitions from "
            f"{found[-1].partition} on: give --limit or --partition",
            err=True,
        )
