"""``chancy cron``."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from chancy.plugin.commands import as_json, complain
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.cron.addition import add
from chancy.plugins.cron.answers import unknown
from chancy.plugins.cron.entry import StoredEntry, facts
from chancy.plugins.cron.store import MAX_KEPT, Entries, Fired
from chancy.text import shown


@click.group()
def cron() -> None:
    """List, add, pause, run and remove what is pushed by the clock.

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

    What is wrong with an entry is said on stderr.

    \b
    Example:
      chancy cron list --app shop.jobs:chancy
      chancy cron list --json | jq '.[] | select(.paused_at) | .name'
    """

    async def main(chancy: Application) -> list[StoredEntry]:
        return await Entries(chancy.broker).every()

    found = line.run(main)
    if json_:
        line.script([facts(one) for one in found])
        return
    line.table(
        ("name", "schedule", "zone", "function", "queue", "state", "next tick", "last tick"),
        [
            (
                one.name,
                one.schedule,
                one.zone,
                one.func,
                one.queue,
                _state(one),
                None if _state(one) != "active" else one.next_at,
                one.last_tick,
            )
            for one in found
        ],
    )
    for one in found:
        if one.problem is not None:
            complain(f"cron entry {shown(one.name)} cannot be fired: {shown(one.problem)}")


def _state(one: StoredEntry) -> str:
    if one.paused_at:
        return "paused"
    if one.source == "lapsed":
        return "lapsed"
    return "invalid" if one.problem else "active"


@cron.command()
@click.argument("name")
@click.pass_obj
def pause(line: CommandLine, name: str) -> None:
    """Fire no more ticks of an entry. Exits 1 if there is none of this name.

    \b
    Example:
      chancy cron pause report
    """
    _done(line.run(lambda chancy: Entries(chancy.broker).pause(name)), name)
    line.line(f"cron entry {name} is paused")


@cron.command()
@click.argument("name")
@click.pass_obj
def resume(line: CommandLine, name: str) -> None:
    """Fire the ticks of a paused entry again, those from now on.

    \b
    Example:
      chancy cron resume report
    """
    _done(line.run(lambda chancy: Entries(chancy.broker).resume(name)), name)
    line.line(f"cron entry {name} is active")


@cron.command()
@click.argument("name")
@click.pass_obj
def remove(line: CommandLine, name: str) -> None:
    """Forget an entry and its history; its jobs stay.

    One that is in the code comes back with the next worker that starts with it: pause it.

    \b
    Example:
      chancy cron remove report
    """
    _done(line.run(lambda chancy: Entries(chancy.broker).remove(name)), name)
    line.line(f"cron entry {name} is removed")


@cron.command()
@click.argument("name")
@as_json
@click.pass_obj
def run(line: CommandLine, name: str, json_: bool) -> None:
    """Push the job of an entry now, paused or not. Its ticks go on as they would have.

    Prints the id of the job. Exits 1 if there is no such entry.

    \b
    Example:
      chancy cron run report
      chancy job wait $(chancy cron run report)
    """
    id = line.run(lambda chancy: Entries(chancy.broker).run(name))
    _done(id is not None, name)
    if json_:
        line.script({"id": str(id)})
    else:
        line.line(id)


@cron.command("next")
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many."
)
@as_json
@click.pass_obj
def next_(line: CommandLine, name: str, count: int, json_: bool) -> None:
    """Show the next ticks of an entry in its time zone and in UTC, as if it were not paused.

    \b
    Example:
      chancy cron next report --count 3
    """
    found = _found(line, name)
    upcoming = found.upcoming(count)  # which checks the zone
    ticks = [(tick.astimezone(ZoneInfo(found.zone)), tick) for tick in upcoming]
    if json_:
        line.script([{"local": a.isoformat(), "utc": b.isoformat()} for a, b in ticks])
    else:
        line.table((found.zone, "UTC"), [(f"{a:%a %Y-%m-%d %H:%M:%S %z}", b) for a, b in ticks])


@cron.command()
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_KEPT),
    default=50,
    show_default=True,
    help="At most so many.",
)
@as_json
@click.pass_obj
def history(line: CommandLine, name: str, limit: int, json_: bool) -> None:
    """Show what became of the last ticks of an entry, newest first.

    \b
    Example:
      chancy cron history report --limit 10
    """

    async def main(chancy: Application) -> list[Fired] | None:
        entries = Entries(chancy.broker)
        ticks = await entries.history(name, limit)
        return ticks if ticks or await entries.get(name) else None

    found = line.run(main)
    if found is None:
        unknown(name)
    if json_:
        line.script([_facts_of(one) for one in found])
        return
    line.table(
        ("tick", "fired", "job", "what", "missed before"),
        [
            (
                one.tick,
                one.fired_at,
                one.job_id,
                f"skipped: {one.skipped}" if one.skipped else "manual" if one.manual else "fired",
                one.missed,
            )
            for one in found
        ],
    )


def _facts_of(one: Fired) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(one, name) for name in one.__slots__}
    for name, value in found.items():
        found[name] = value.isoformat() if isinstance(value, datetime) else value
    return found | {"job_id": one.job_id and str(one.job_id)}


def _found(line: CommandLine, name: str) -> StoredEntry:
    return line.run(lambda chancy: Entries(chancy.broker).get(name)) or unknown(name)


def _done(done: bool, name: str) -> None:
    if not done:
        unknown(name)
