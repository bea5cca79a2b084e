"""``chancy redis stream reset|lag|members|resume|remove``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from chancy.plugins.redis.streams.inspection import (
    Inspection,
    MemberReport,
    PartitionReport,
    check_start,
    processors,
)
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
    inspection = run(target, lambda: inspected(target, processor))
    check_start(start)
    _refuse_if_alive(run(target, inspection.members), f"the processor {processor} of {stream}")
    if not yes:
        reports = run(target, inspection.report)
        click.confirm(
            f"Restart the processor {processor} of {stream} at {start} and discard "
            f"{sum(report.pending for report in reports):,} pending events?",
            abort=True,
            err=True,
        )
    discarded, busy = run(target, lambda: inspection.reset(start))
    if json_:
        line.script({"discarded": discarded, "busy": busy})
    else:
        line.line(
            f"{target.partitions - len(busy)} partitions reset, {discarded:,} events discarded"
        )
    if busy:
        numbers = ", ".join(map(str, busy))
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
        line.script([asdict(report) for report in found])
    elif each:
        rows = [[column(report) for column in _EACH.values()] for report in found]
        line.table(tuple(_EACH), rows)
    else:
        groups: dict[tuple[str, str], list[PartitionReport]] = {}
        for report in found:
            groups.setdefault((report.stream, report.processor), []).append(report)
        rows = [[column(parts) for column in _SUMMED.values()] for parts in groups.values()]
        line.table(tuple(_SUMMED), rows)
    for report in found:
        if report.parked is not None:
            click.echo(
                f"chancy: {report.stream} {report.processor}: partition {report.partition} is "
                f"parked at {report.parked_id}: {shown(report.parked)}",
                err=True,
            )
        if report.halted is not None:
            click.echo(
                f"chancy: {report.stream} {report.processor}: partition {report.partition} is "
                f"halted by its worker: {shown(report.halted)}",
                err=True,
            )


async def _reports(stream: Stream[Any], processor: str | None) -> list[PartitionReport]:
    if processor is not None:
        return list(await (await inspected(stream, processor)).report())
    return [
        report
        for name in await processors(stream)
        for report in await Inspection(stream, name).report()
    ]


#: The columns for each partition.
_EACH: Mapping[str, Callable[[PartitionReport], object]] = {
    "stream": lambda report: report.stream,
    "processor": lambda report: report.processor,
    "partition": lambda report: report.partition,
    "owner": lambda report: "parked" if report.parked is not None else report.owner,
    "epoch": lambda report: report.epoch,
    "length": lambda report: report.length,
    "lag": lambda report: _lag([report]) if report.lag >= 0 else "not started",
    "pending": lambda report: report.pending,
    "first pending": lambda report: report.first_pending,
    "oldest s": lambda report: _oldest([report]),
    "dead": lambda report: report.dead,
    "dead dropped": lambda report: report.dead_dropped,
    "dropped": lambda report: report.dropped,
    "lost": lambda report: report.lost,
}
#: The columns for each processor, from its partitions.
_SUMMED: Mapping[str, Callable[[Sequence[PartitionReport]], object]] = {
    "stream": lambda parts: parts[0].stream,
    "processor": lambda parts: parts[0].processor,
    "partitions": len,
    "owned": lambda parts: sum(report.owner is not None for report in parts),
    "parked": lambda parts: sum(report.parked is not None for report in parts),
    "halted": lambda parts: sum(report.halted is not None for report in parts),
    "lag": lambda parts: _lag(parts),
    "pending": lambda parts: sum(report.pending for report in parts),
    "oldest s": lambda parts: _oldest(parts),
    "dead": lambda parts: sum(report.dead for report in parts),
    "dead dropped": lambda parts: sum(report.dead_dropped for report in parts),
    "dropped": lambda parts: sum(report.dropped for report in parts),
    "lost": lambda parts: sum(report.lost for report in parts),
}


def _lag(parts: Sequence[PartitionReport]) -> int | str:
    total = sum(report.length if report.lag < 0 else report.lag for report in parts)
    return f"{total}+" if any(report.at_least for report in parts) else total


def _oldest(parts: Sequence[PartitionReport]) -> str | None:
    pending = [report.idle_s for report in parts if report.pending]
    return f"{max(pending):.1f}" if pending else None


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
    inspection = run(target, lambda: inspected(target, processor))
    found = run(target, inspection.members)
    if json_:
        line.script([asdict(member) for member in found])
        return
    line.table(
        ("member", "lease s", "assigned", "owned"),
        [
            (
                member.member,
                f"{member.lease_s:.1f}",
                _numbers(member.assigned),
                _numbers(member.owned),
            )
            for member in found
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
    if not force:
        _refuse_if_alive(found, f"the processor {processor} of {stream}", ", or pass --force")
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


def _refuse_if_alive(members: Sequence[MemberReport], what: str, more: str = "") -> None:
    alive = [member.lease_s for member in members if member.lease_s > 0]
    if alive:
        refuse(
            f"{len(alive)} workers run {what}: stop them, {'' if more else 'or '}wait "
            f"{max(alive):.0f} s if they were killed{more}"
        )
