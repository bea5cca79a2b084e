"""The ``chancy cron`` commands."""

from __future__ import annotations

from typing import TypeVar
from zoneinfo import ZoneInfo

import click

from chancy.plugin.commands import as_json, complain, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugins.cron.addition import add
from chancy.plugins.cron.entry import StoredEntry
from chancy.plugins.cron.store import MAX_KEPT, Entries, Fired
from chancy.text import shown

T = TypeVar("T")


@click.group()
def cron() -> None:
    """List, add, pause, run and remove cron entries.

    \b
    Example:
      chancy cron list --app shop.jobs:chancy
    """


cron.add_command(add)


@cron.command("list")
@as_json
@click.pass_obj
def list_(line: CommandLine, json_: bool) -> None:
    """List the entries with their next and last ticks, in UTC.

    Problems of entries are reported on stderr.

    \b
    Example:
      chancy cron list --app shop.jobs:chancy
      chancy cron list --json | jq '.[] | select(.paused_at) | .name'
    """

    async def main(chancy: Application) -> list[StoredEntry]:
        return await Entries(chancy.broker).every()

    entries = line.run(main)
    if json_:
        line.script([facts(entry) for entry in entries])
        return
    line.table(
        ("name", "schedule", "zone", "function", "queue", "state", "next tick", "last tick"),
        [
            (
                entry.name,
                entry.schedule,
                entry.zone,
                entry.func,
                entry.queue,
                _state(entry),
                None if _state(entry) != "active" else entry.next_at,
                entry.last_tick,
            )
            for entry in entries
        ],
    )
    for entry in entries:
        if entry.problem is not None:
            complain(f"cron entry {shown(entry.name)} cannot be fired: {shown(entry.problem)}")


def _state(entry: StoredEntry) -> str:
    if entry.paused_at:
        return "paused"
    if entry.source == "lapsed":
        return "lapsed"
    return "invalid" if entry.problem else "active"


@cron.command()
@click.argument("name")
@as_json
@click.pass_obj
def pause(line: CommandLine, name: str, json_: bool) -> None:
    """Stop firing the ticks of an entry. Exits 1 if there is none with this name.

    \b
    Example:
      chancy cron pause report
    """
    found = line.run(lambda chancy: Entries(chancy.broker).pause(name))
    _report(line, found, name, "paused", json_=json_)


@cron.command()
@click.argument("name")
@as_json
@click.pass_obj
def resume(line: CommandLine, name: str, json_: bool) -> None:
    """Fire the ticks of a paused entry again, from now on.

    \b
    Example:
      chancy cron resume report
    """
    found = line.run(lambda chancy: Entries(chancy.broker).resume(name))
    _report(line, found, name, "active", json_=json_)


@cron.command()
@click.argument("name")
@as_json
@click.pass_obj
def remove(line: CommandLine, name: str, json_: bool) -> None:
    """Delete an entry and its history; its jobs stay.

    An entry of the code is stored again by the next worker that starts with it: pause it instead.

    \b
    Example:
      chancy cron remove report
    """
    found = line.run(lambda chancy: Entries(chancy.broker).remove(name))
    _report(line, found, name, "removed", json_=json_)


def _report(line: CommandLine, found: bool, name: str, state: str, *, json_: bool) -> None:
    if json_:
        line.script({"entry": name, "found": found})
    _known(found or None, name)
    if not json_:
        line.line(f"cron entry {name} is {state}")


@cron.command()
@click.argument("name")
@as_json
@click.pass_obj
def run(line: CommandLine, name: str, json_: bool) -> None:
    """Push the job of an entry now, even if it is paused. The schedule is not affected.

    Prints the id of the job. Exits 1 if there is no such entry.

    \b
    Example:
      chancy cron run report
      chancy job wait $(chancy cron run report)
    """
    id = _known(
        line.run(lambda chancy: Entries(chancy.broker).run(name, chancy.prepare_stored)), name
    )
    if json_:
        line.script({"id": str(id)})
    else:
        line.line(id)


@cron.command("next")
@click.argument("name")
@click.option(
    "--count",
    type=click.IntRange(1, 1_000),
    default=5,
    show_default=True,
    help="The number of ticks.",
)
@as_json
@click.pass_obj
def next_(line: CommandLine, name: str, count: int, json_: bool) -> None:
    """Show the next ticks of an entry in its time zone and in UTC, as if it were not paused.

    \b
    Example:
      chancy cron next report --count 3
    """
    entry = _known(line.run(lambda chancy: Entries(chancy.broker).get(name)), name)
    upcoming = entry.upcoming(count)  # checks the zone
    ticks = [(tick.astimezone(ZoneInfo(entry.zone)), tick) for tick in upcoming]
    if json_:
        line.script([{"local": a.isoformat(), "utc": b.isoformat()} for a, b in ticks])
    else:
        line.table((entry.zone, "UTC"), [(f"{a:%a %Y-%m-%d %H:%M:%S %z}", b) for a, b in ticks])


@cron.command()
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_KEPT),
    default=50,
    show_default=True,
    help="The most ticks to show.",
)
@as_json
@click.pass_obj
def history(line: CommandLine, name: str, limit: int, json_: bool) -> None:
    """Show the history of an entry's ticks, newest first.

    \b
    Example:
      chancy cron history report --limit 10
    """

    async def main(chancy: Application) -> list[Fired] | None:
        entries = Entries(chancy.broker)
        ticks = await entries.history(name, limit)
        return ticks if ticks or await entries.get(name) else None

    ticks = _known(line.run(main), name)
    if json_:
        line.script([facts(tick) for tick in ticks])
        return
    line.table(
        ("tick", "fired", "job", "what", "missed before"),
        [(tick.tick, tick.fired_at, tick.job_id, _result(tick), tick.missed) for tick in ticks],
    )


def _result(tick: Fired) -> str:
    if tick.skipped:
        return f"skipped: {tick.skipped}"
    return "manual" if tick.manual else "fired"


def _known(found: T | None, name: str) -> T:
    """Return ``found``; if it is None, exit with status 1: there is no such entry."""
    if found is None:
        refuse(f"there is no cron entry {shown(name)}")
    return found
