"""``chancy redis stream reset|lag|members|resume``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import CommandLine
from chancy.plugins.redis.streams.cli.arguments import (
    PROCESSOR,
    STREAM,
    STREAMS,
    declared,
    inspected,
    run,
)
from chancy.plugins.redis.streams.inspection import Inspection, PartitionReport, processors
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.text import shown


@click.command()
@STREAM
@PROCESSOR
@click.option(
    "--start",
    default="0",
    show_default=True,
    metavar="ID",
    help="0: all stored events; $: new events only; or the id of an event, to start after it.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def reset(
    line: CommandLine, stream: str, processor: str, start: str, yes: bool, json_: bool
) -> None:
    """Restart a processor from a position in the stream. Its workers must be stopped.

    Pending events are discarded; those after the new position are delivered again. Quarantines are
    lifted. Exits 1 if workers run the processor.

    \b
    Example:
      chancy redis stream reset orders bill --start 0
    """
    target = declared(stream)
    look = run(target, lambda: inspected(target, processor))
    if not re.fullmatch(r"\$|\d{1,20}(-\d{1,20})?", start):
        raise click.UsageError(f"--start {shown(start)}: pass 0, $, or the id of an event")
    alive = [one for one in run(target, look.members) if one.lease_s > 0]
    if alive:
        refuse(
            f"{len(alive)} workers run the processor {processor} of {stream}: stop them, or wait "
            f"{max(one.lease_s for one in alive):.0f} s if they were killed"
        )
    if not yes:
        reports = run(target, look.report)
        click.confirm(
            f"Restart the processor {processor} of {stream} at {start} and discard "
            f"{sum(one.pending for one in reports):,} pending events?",
            abort=True,
            err=True,
        )
    forgotten, busy = run(target, lambda: look.reset(start))
    if json_:
        line.script({"forgotten": forgotten, "busy": [one.partition for one in busy]})
    else:
        line.line(
            f"{target.partitions - len(busy)} partitions reset, {forgotten:,} events discarded"
        )
    if busy:
        numbers = ", ".join(str(one.partition) for one in busy)
        refuse(f"partitions owned by a worker were not reset: {numbers}")


@click.command()
@click.argument("stream", required=False)
@click.argument("processor", required=False)
@click.option("--partitions", "each", is_flag=True, help="Show one line per partition.")
@as_json
@click.pass_obj
def lag(
    line: CommandLine, stream: str | None, processor: str | None, each: bool, json_: bool
) -> None:
    """Show the unread and unacknowledged events of processors.

    Without arguments, shows all streams and processors. Works without running workers.

    \b
    Example:
      chancy redis stream lag
      chancy redis stream lag orders bill --partitions
    """
    streams: Streams = click.get_current_context().meta[STREAMS]
    wanted = list(streams.streams) if stream is None else [declared(stream)]
    found: list[PartitionReport] = []
    for target in wanted:
        found += run(target, partial(_reports, target, processor))
    if json_:
        line.script([asdict(one) for one in found])
    elif each:
        line.table(_EACH, [_row(one) for one in found])
    else:
        line.table(_SUMMED, _sums(found))
    for one in found:
        if one.parked is not None:
            click.echo(
                f"chancy: {one.stream} {one.processor}: partition {one.partition} is parked at "
                f"{one.parked_id}: {shown(one.parked)}",
                err=True,
            )
        if one.halted is not None:
            click.echo(
                f"chancy: {one.stream} {one.processor}: partition {one.partition} is halted by its "
                f"worker: {shown(one.halted)}",
                err=True,
            )


async def _reports(stream: Stream[Any], processor: str | None) -> list[PartitionReport]:
    if processor is not None:
        return list(await (await inspected(stream, processor)).report())
    return [
        one for name in await processors(stream) for one in await Inspection(stream, name).report()
    ]


_SUMMED = (
    "stream",
    "processor",
    "partitions",
    "owned",
    "parked",
    "halted",
    "lag",
    "pending",
    "oldest s",
    "dead",
    "dropped",
    "lost",
)
_EACH = (
    "stream",
    "processor",
    "partition",
    "owner",
    "epoch",
    "length",
    "lag",
    "pending",
    "first pending",
    "oldest s",
    "dead",
    "dropped",
    "lost",
)


def _row(one: PartitionReport) -> Sequence[object]:
    return (
        one.stream,
        one.processor,
        one.partition,
        "parked" if one.parked is not None else one.owner,
        one.epoch,
        one.length,
        one.lag if one.lag >= 0 else "not started",
        one.pending,
        one.first_pending,
        f"{one.idle_s:.1f}" if one.pending else None,
        one.dead,
        one.dropped,
        one.lost,
    )


def _sums(found: Sequence[PartitionReport]) -> list[Sequence[object]]:
    groups: dict[tuple[str, str], list[PartitionReport]] = {}
    for one in found:
        groups.setdefault((one.stream, one.processor), []).append(one)
    return [
        (
            stream,
            processor,
            len(parts),
            sum(one.owner is not None for one in parts),
            sum(one.parked is not None for one in parts),
            sum(one.halted is not None for one in parts),
            sum(one.length if one.lag < 0 else one.lag for one in parts),
            sum(one.pending for one in parts),
            f"{max(one.idle_s for one in parts):.1f}" if any(p.pending for p in parts) else None,
            sum(one.dead for one in parts),
            sum(one.dropped for one in parts),
            sum(one.lost for one in parts),
        )
        for (stream, processor), parts in groups.items()
    ]


@click.command()
@STREAM
@PROCESSOR
@as_json
@click.pass_obj
def members(line: CommandLine, stream: str, processor: str, json_: bool) -> None:
    """Show the workers of a processor, with their assigned and owned partitions.

    \b
    Example:
      chancy redis stream members orders bill
    """
    target = declared(stream)
    look = run(target, lambda: inspected(target, processor))
    found = run(target, look.members)
    if json_:
        line.script([asdict(one) for one in found])
        return
    line.table(
        ("member", "lease s", "assigned", "owned"),
        [
            (one.member, f"{one.lease_s:.1f}", _numbers(one.assigned), _numbers(one.owned))
            for one in found
        ],
    )


def _numbers(numbers: Sequence[int]) -> str:
    """Format partition numbers as ranges: 0-3 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return " ".join(f"{a[0]}-{a[-1]}" if len(a) > 1 else str(a[0]) for a in parts)


@click.command()
@STREAM
@PROCESSOR
@click.option(
    "--partition",
    "only",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@as_json
@click.pass_obj
def resume(
    line: CommandLine, stream: str, processor: str, only: tuple[int, ...], json_: bool
) -> None:
    """Resume parked and halted partitions, starting with the event that failed.

    Exits 1 if no partition was parked or halted.

    \b
    Example:
      chancy redis stream resume orders bill --partition 3
    """
    target = declared(stream)
    lifted = run(target, lambda: Inspection(target, processor).resume(only or None))
    if not lifted:
        run(target, lambda: inspected(target, processor))
    if json_:
        line.script({str(number): error for number, error in lifted.items()})
    else:
        line.table(("partition", "stopped by"), list(lifted.items()))
    if not lifted:
        refuse(f"no partition of {stream} is parked or halted for {processor}")
