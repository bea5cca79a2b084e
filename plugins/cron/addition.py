"""``chancy cron add``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click

from chancy.errors import InvalidArguments
from chancy.job.definition import Job
from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.cron.entry import Entry, Overlap, StoredEntry, facts
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
    type=click.Choice([one.value for one in Misfire]),
    default=Misfire.ONE.value,
    show_default=True,
    help="What becomes of ticks that nobody fired in time.",
)
@click.option("--grace", type=float, metavar="S", help="How late `skip` still fires (default 60).")
@click.option(
    "--backfill",
    type=click.IntRange(1, MAX_BACKFILL),
    metavar="N",
    help="Ticks that `all` fires at most (default 100).",
)
@click.option(
    "--overlap",
    type=click.Choice([one.value for one in Overlap]),
    default=Overlap.ALLOW.value,
    show_default=True,
    help="What becomes of a tick while an earlier job is unfinished.",
)
@click.option("--jitter", type=float, default=0.0, metavar="S", help="Put jobs off by up to this.")
@click.option("--queue", metavar="NAME", help="The queue, instead of the function's own.")
@click.option("--priority", type=int, help="-100 to 100; higher runs first.")
@click.option("--max-attempts", type=int, help="Attempts that may fail, at most.")
@click.option("--upsert", is_flag=True, help="Change an entry that is there.")
@click.option("--no-validate", is_flag=True, help="The function need not be importable here.")
@as_json
@click.pass_obj
def add(line: CommandLine, /, name: str, json_: bool, upsert: bool, **given: Any) -> None:
    """Add an entry: NAME, when, and package.module.function.

    SCHEDULE is one word to the shell: minute, hour, day of month, month, day of week, and seconds
    if you need them. Exits 1 if there is an entry of this name and --upsert was not given.

    \b
    Example:
      chancy cron add report '0 6 * * mon-fri' shop.jobs.report --zone Europe/Berlin
      chancy cron add sweep '@hourly' shop.jobs.sweep --arg days=30 --overlap skip --upsert
    """
    arguments = _arguments(given["single"])

    async def main(chancy: Application) -> StoredEntry | None:
        entries = Entries(chancy.broker)
        entry = _entry(name, _job(chancy, arguments, **_some(given, _OF_JOB)), given)
        return await entries.get(name) if await entries.add(entry, upsert=upsert) else None

    found = line.run(main)
    if found is None:
        refuse(f"cron entry {shown(name)} is there: use --upsert to change it")
    if json_:
        line.script(facts(found))
    else:
        line.line(f"cron entry {name} is due next at {found.upcoming(1)[0].isoformat()}")


_OF_JOB = ("func", "queue", "priority", "max_attempts", "no_validate")


def _some(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names}


def _entry(name: str, job: Job, given: dict[str, Any]) -> Entry:
    entry = Entry(
        name,
        given["schedule"],
        job,
        zone=given["zone"],
        misfire=given["misfire"],
        overlap=given["overlap"],
        jitter_s=given["jitter"],
    )
    if given["grace"] is not None:
        entry = replace(entry, grace_s=given["grace"])
    return entry if given["backfill"] is None else replace(entry, backfill_limit=given["backfill"])


def _job(
    chancy: Application,
    arguments: dict[str, Any],
    *,
    func: str,
    queue: str | None,
    priority: int | None,
    max_attempts: int | None,
    no_validate: bool,
) -> Job:
    if no_validate:
        job = Job(func=func, arguments=arguments)
    else:
        chancy.registry.check(func)
        job = Job.from_func(chancy.registry.find(func), **arguments)
    if queue is not None:
        job = job.with_queue(queue)
    if priority is not None:
        job = job.with_priority(priority)
    return job if max_attempts is None else job.with_max_attempts(max_attempts)


def _arguments(single: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in single:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--arg {shown(text)} must look like NAME=JSON")
        try:
            found[name] = json.loads(value)
        except ValueError as error:
            # What begins like this was not meant as text.
            meant = value[:1] not in ("{", "[", '"')
            hint = f"; text needs quotes inside the shell's: '{name}={json.dumps(value)}'"
            raise InvalidArguments(
                f"--arg {name}: {shown(value)} is not JSON ({error}){hint if meant else ''}"
            ) from None
    return found
