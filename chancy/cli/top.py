"""The ``chancy top`` command: what queues, workers and functions do, in a terminal."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chancy.app.activity import CAP, Activity, Lookout, QueueActivity
from chancy.cli.options import CommandTarget, on_target
from chancy.errors import BrokerError
from chancy.plugin.commands import Seconds
from chancy.text import elapsed, storable

if TYPE_CHECKING:
    from chancy.app.app import Chancy

#: The rows of queues, and of workers, that are shown.
_MOST_ROWS = 20
#: The functions of one worker that are shown.
_MOST_WORK = 3
#: Columns of an output that is no terminal, unless the variable COLUMNS has more.
_COLUMNS = 140


@click.command()
@on_target
@click.option("--once", is_flag=True, help="Print one frame and exit, as without a terminal.")
@click.option(
    "--interval",
    type=Seconds(0.2),
    default=1.0,
    show_default=True,
    metavar="S",
    help="The seconds between two frames.",
)
def top(target: CommandTarget, once: bool, interval: float) -> None:
    """Show queues, workers, the latest failures and the slowest functions, until Ctrl-C.

    A frame reads the ends of indexes only, so it costs the same with ten million jobs. Counts stop
    at 10,000+. Rates are those since the last frame; the first shows the last 10 seconds.

    \b
    Example:
      chancy top
      chancy top --once
    """

    async def main() -> None:
        async with target.opened() as chancy:
            lookout = Lookout(chancy)
            if once or not sys.stdout.isatty():
                console = _console()
                with console.capture() as captured:
                    console.print(frame(await lookout.look(), chancy.schema))
                click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
            else:
                await _live(chancy, lookout, interval)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        if once:
            raise


async def _live(chancy: Chancy, lookout: Lookout, interval: float) -> None:
    shown: RenderableType = Text("…")
    with Live(shown, console=_console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = frame(await lookout.look(), chancy.schema)
                live.update(shown, refresh=True)
            except BrokerError as error:
                why = f"the last look failed, trying again: {storable(str(error), 500)}"
                live.update(Group(Text(why, style="red"), Text(), shown), refresh=True)
            await asyncio.sleep(interval)


def _console() -> Console:
    width = None if sys.stdout.isatty() else max(_COLUMNS, shutil.get_terminal_size().columns)
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)


def frame(activity: Activity, schema: str) -> RenderableType:
    """One frame."""
    parts: list[RenderableType] = [_head(activity, schema)]
    for name, why in activity.away.items():
        parts.append(Text(f"the broker {name} is unavailable: {storable(why, 300)}", style="red"))
    for title, table in (
        ("", _queues(activity)),
        ("", _workers(activity)),
        ("Latest failures", _failures(activity)),
        ("Longest runs of the last jobs", _functions(activity)),
    ):
        if table.row_count:
            parts.append(Text())
            if title:
                parts.append(Text(title, style="bold"))
            parts.append(table)
    return Group(*parts)


def _head(activity: Activity, schema: str) -> Text:
    at = datetime.fromtimestamp(activity.at, UTC)
    per_s = sum(queue.per_s or 0.0 for queue in activity.queues)
    window = elapsed(activity.since_s)
    workers = sum(not worker.dead for worker in activity.workers)
    dead = len(activity.workers) - workers
    count = f"{workers} worker{'s' * (workers != 1)}{f', {dead} dead' if dead else ''}"
    return Text(
        f"chancy  schema {storable(schema, 64)}  {at:%Y-%m-%d %H:%M:%S}Z  {count}  "
        f"{per_s:,.1f} jobs/s in the last {window}",
        style="bold",
        no_wrap=True,
        overflow="ellipsis",
    )


def _queues(activity: Activity) -> Table:
    table = _table(
        ("queue", "state"),
        ("pending", "oldest", "running", "scheduled", "held", "jobs/s", "workers"),
    )
    longest_first = sorted(activity.queues, key=lambda one: (-_waited_s(one), one.name))
    for one in longest_first[:_MOST_ROWS]:
        oldest_s = None if one.backlog is None else one.backlog.oldest_s
        table.add_row(
            *_texts(
                one.name,
                _state(one),
                "0" if one.backlog is None else one.backlog.shown_pending,
                "-" if oldest_s is None else elapsed(oldest_s),
                _count(one.running, "running" in activity.capped),
                _count(one.scheduled, "scheduled" in activity.capped),
                "0" if one.backlog is None else one.backlog.shown_held,
                "-" if one.per_s is None else f"{one.per_s:,.1f}",
                f"{one.workers}",
            )
        )
    _rest(table, len(activity.queues))
    return table


def _waited_s(one: QueueActivity) -> float:
    return (one.backlog.oldest_s or 0.0) if one.backlog else -1.0


def _state(one: QueueActivity) -> str:
    if one.queue is None:
        return "not declared"
    return "paused" if one.queue.paused else "active"


def _count(count: int, capped: bool) -> str:
    """A count; with a + if some jobs of this state were not counted."""
    return f"{min(count, CAP):,}{'+' if capped else ''}"


def _workers(activity: Activity) -> Table:
    table = _table(("worker", "host", "runs"), ("pid", "queues", "heartbeat"))
    for worker in activity.workers[:_MOST_ROWS]:
        runs = [work for work in activity.running if work.worker_id == worker.id]
        work = [
            f"{one.func}{f' ×{one.jobs}' if one.jobs > 1 else ''} {elapsed(one.longest_s)}"
            for one in runs[:_MOST_WORK]
        ]
        more = [f"{len(runs) - _MOST_WORK} more"] if len(runs) > _MOST_WORK else []
        table.add_row(
            *_texts(
                f"{worker.id}",
                worker.host,
                ", ".join([*work, *more]) or "-",
                f"{worker.pid}",
                f"{len(worker.queues)}",
                f"{elapsed(worker.heartbeat_age_s)} ago{', dead' * worker.dead}",
            ),
            style="red" if worker.dead else None,
        )
    _rest(table, len(activity.workers))
    return table


def _failures(activity: Activity) -> Table:
    table = _table(("ago", "queue", "function", "then", "error"))
    for one in activity.failures:
        table.add_row(
            *_texts(
                elapsed(one.ago_s),
                one.queue,
                one.func,
                "retried" if one.retried else "failed",
                ": ".join(text for text in (one.error, one.message.partition("\n")[0]) if text),
            )
        )
    return table


def _functions(activity: Activity) -> Table:
    table = _table(("function",), ("jobs", "failed", "mean", "longest"))
    for one in activity.functions:
        table.add_row(
            *_texts(
                one.func,
                f"{one.jobs}",
                f"{one.failed}",
                elapsed(one.mean_s),
                elapsed(one.longest_s),
            )
        )
    return table


def _table(left: Sequence[str], right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in left:
        # The last of these takes the room that is left, and loses its end.
        last = name == left[-1]
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=None if last else 3)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    return table


def _texts(*values: str) -> Iterable[Text]:
    """Cells without control characters: names and errors are data."""
    return [Text(storable(value, 200).replace("\n", " ")) for value in values]


def _rest(table: Table, count: int) -> None:
    if count > _MOST_ROWS:
        table.add_row(Text(f"… and {count - _MOST_ROWS} more"))
