"""The ``chancy cron add`` command."""

from __future__ import annotations

from typing import Any

import click

from chancy.job.definition import Job
from chancy.plugin.commands import as_json, read_arguments, refuse, with_settings
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugins.cron.entry import Entry, Overlap, StoredEntry
from chancy.plugins.cron.misfire import MAX_BACKFILL, Misfire
from chancy.plugins.cron.store import Entries
from chancy.text import shown


@click.command()
@click.argument("name")
@click.argument("schedule")
@click.argument("func")
@click.option("--arg", "single", multiple=True, metavar="NAME=JSON", help="One argument.")
@click.option("--zone", default="UTC", show_default=True, help="Time zone of the schedule.")
@click.option(
    "--misfire",
    type=click.Choice([policy.value for policy in Misfire]),
    default=Misfire.ONE.value,
    show_default=True,
    help="Which missed ticks to fire.",
)
@click.option(
    "--grace", type=float, metavar="S", help="Seconds a tick may be late with `skip` (default 60)."
)
@click.option(
    "--backfill",
    type=click.IntRange(1, MAX_BACKFILL),
    metavar="N",
    help="The most ticks that `all` fires (default 100).",
)
@click.option(
    "--overlap",
    type=click.Choice([policy.value for policy in Overlap]),
    default=Overlap.ALLOW.value,
    show_default=True,
    help="Whether to fire a tick while an earlier job is unfinished.",
)
@click.option(
    "--jitter", type=float, default=0.0, metavar="S", help="Delay jobs by up to S seconds."
)
@click.option("--queue", metavar="NAME", help="The queue, instead of that of the function.")
@click.option("--priority", type=int, help="-100 to 100; higher runs first.")
@click.option("--max-attempts", type=int, help="The most attempts.")
@click.option("--upsert", is_flag=True, help="Replace an existing entry.")
@click.option("--no-validate", is_flag=True, help="Do not import the function to check it.")
@as_json
@click.pass_obj
def add(line: CommandLine, /, name: str, json_: bool, upsert: bool, **options: Any) -> None:
    """Add an entry: NAME, SCHEDULE and FUNC (package.module.function).

    Quote SCHEDULE for the shell: minute, hour, day of month, month, day of week, and optionally
    seconds. Exits 1 if an entry with this name exists, unless you pass --upsert.

    \b
    Example:
      chancy cron add report '0 6 * * mon-fri' shop.jobs.report --zone Europe/Berlin
      chancy cron add sweep '@hourly' shop.jobs.sweep --arg days=30 --overlap skip --upsert
    """
    arguments = read_arguments(options["single"])

    async def main(chancy: Application) -> StoredEntry | None:
        entries = Entries(chancy.broker, chancy.encode_arguments)
        entry = _entry(name, _job(chancy, arguments, options), options)
        return await entries.get(name) if await entries.add(entry, upsert=upsert) else None

    found = line.run(main)
    if found is None:
        refuse(f"cron entry {shown(name)} exists: pass --upsert to replace it")
    if json_:
        line.script(facts(found))
    else:
        line.line(f"cron entry {name}: next tick at {found.upcoming(1)[0].isoformat()}")


def _entry(name: str, job: Job, options: dict[str, Any]) -> Entry:
    given = {name: options[name] for name in ("schedule", "zone", "misfire", "overlap")}
    given |= {"jitter_s": options["jitter"], "grace_s": options["grace"]}
    given |= {"backfill_limit": options["backfill"]}
    values = {name: value for name, value in given.items() if value is not None}
    return Entry(name, job=job, **values)


def _job(chancy: Application, arguments: dict[str, Any], options: dict[str, Any]) -> Job:
    func: str = options["func"]
    if options["no_validate"]:
        job = Job(func=func, arguments=arguments)
    else:
        chancy.registry.check(func)
        job = Job.from_func(chancy.registry.find(func), **arguments)
    settings = {name: options[name] for name in ("queue", "priority", "max_attempts")}
    return with_settings(job, **settings)
