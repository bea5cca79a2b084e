"""``chancy dead``."""

from __future__ import annotations

import json
import sys
from typing import Any
from uuid import UUID

import click

from chancy.plugin.commands import NO, as_json, complain, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.dead_letter.ages import Rate, filtered, selected, state, wanted
from chancy.plugins.dead_letter.letter import DeadLetter, LetterFilter, facts
from chancy.plugins.dead_letter.replaying import MAX_ATTEMPTS, Progress, ReplayOptions, Walk
from chancy.plugins.dead_letter.store import BATCH, MAX_COUNT, MAX_FOUND, Letters


@click.group()
def dead() -> None:
    """List, show, replay and purge jobs that failed for good.

    \b
    Example:
      chancy dead list --queue mail --newer-than 2h
    """


@dead.command("list")
@filtered
@state
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_FOUND),
    default=50,
    show_default=True,
    help="At most so many.",
)
@click.option(
    "--before", type=click.UUID, metavar="ID", help="Older than this: the last of a page."
)
@as_json
@click.pass_obj
def list_(line: CommandLine, /, limit: int, before: UUID | None, json_: bool, **given: Any) -> None:
    """List dead letters, those that died last first.

    \b
    Example:
      chancy dead list --error shop.errors.CardDeclined --newer-than 1d
      chancy dead list --json | jq -r '.[].id'
    """
    asked = wanted(given)
    found = line.run(lambda chancy: Letters(chancy.broker).find(asked, limit=limit, before=before))
    if json_:
        line.script([facts(one) for one in found])
        return
    line.table(
        ("id", "died", "queue", "function", "reason", "error", "message", "replayed as"),
        [
            (
                one.id,
                one.died_at,
                one.queue,
                one.func,
                one.reason,
                one.error,
                one.message,
                one.replayed_as,
            )
            for one in found
        ],
    )
    if len(found) == limit:
        click.echo(f"the next page: --before {found[-1].id}", err=True)


@dead.command()
@click.argument("id", type=click.UUID)
@as_json
@click.pass_obj
def show(line: CommandLine, id: UUID, json_: bool) -> None:
    """Show one dead letter with its arguments and failures. Exits 1 if there is none.

    \b
    Example:
      chancy dead show 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
    """
    found = line.run(lambda chancy: Letters(chancy.broker).get(id))
    if found is None:
        refuse(f"there is no dead letter {id}")
    if json_:
        line.script(facts(found))
    else:
        _describe(line, found)


def _describe(line: CommandLine, one: DeadLetter) -> None:
    described = facts(one)
    errors = described.pop("errors")
    for name, value in described.items():
        if value is not None:
            text = json.dumps(value) if isinstance(value, dict | list) else value
            line.line(f"{name:14}{text}")
    for error in errors:
        types = error.get("types")
        name = types[0] if isinstance(types, list) and types else "error"
        where = (
            f"attempt {error.get('attempt')}, {error.get('at')}, worker {error.get('worker_id')}"
        )
        line.line(f"{where}: {name}: {error.get('message', '')}")
        if error.get("trace"):
            line.line(f"  {error['trace']}".rstrip().replace("\n", "\n  "))


@dead.command()
@click.argument("ids", type=click.UUID, nargs=-1)
@filtered
@click.option("--all", "all_", is_flag=True, help="All that meet the conditions, or all there are.")
@click.option("--limit", type=click.IntRange(1), help="At most so many, the oldest first.")
@click.option(
    "--rate", type=Rate(), metavar="N/s", help="Let so many be due a second: 10, 10/s, 100/m."
)
@click.option("--force", is_flag=True, help="Also letters that were replayed before.")
@click.option("--to-queue", metavar="NAME", help="Another queue than the letter's.")
@click.option(
    "--max-attempts", type=click.IntRange(1, MAX_ATTEMPTS), help="Other attempts than the letter's."
)
@as_json
@click.pass_obj
def replay(
    line: CommandLine,
    /,
    ids: tuple[UUID, ...],
    all_: bool,
    limit: int | None,
    rate: float | None,
    force: bool,
    to_queue: str | None,
    max_attempts: int | None,
    json_: bool,
    **given: Any,
) -> None:
    """Push the jobs of dead letters again, with a fresh budget. Exits 1 if an id could not be.

    Safe to interrupt and to repeat: what was replayed is not replayed again without --force.

    \b
    Example:
      chancy dead replay 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
      chancy dead replay --error httpx.ConnectTimeout --newer-than 2h --rate 10/s
      chancy dead replay --all
    """
    by_filter = selected(ids, all_, given)
    asked = wanted(given) if by_filter else LetterFilter(ids=ids)
    terms = ReplayOptions(rate=rate, force=force, queue=to_queue, max_attempts=max_attempts)

    async def main(chancy: Application) -> tuple[int, dict[UUID, UUID]]:
        count, jobs = 0, dict[UUID, UUID]()
        async for batch in Walk(Letters(chancy.broker), asked, limit).replay(
            terms, _said("replayed")
        ):
            count += len(batch)
            if not by_filter:  # otherwise there may be millions
                jobs.update(batch)
        return count, jobs

    count, found = line.run(main)
    missed = [id for id in ids if id not in found]
    _tell_replayed(line, count, found, missed, json_=json_)


def _tell_replayed(
    line: CommandLine, count: int, found: dict[UUID, UUID], missed: list[UUID], *, json_: bool
) -> None:
    if json_:
        jobs = {str(id): str(job) for id, job in found.items()}
        line.script({"replayed": count, "jobs": jobs, "missed": [str(id) for id in missed]})
    else:
        line.line(f"{count:,} replayed")
        if found:
            line.table(("letter", "job"), list(found.items()))
    for id in missed:
        complain(
            f"{id} was not replayed: there is no such letter, it was replayed before, or an "
            "unfinished job has its unique key"
        )
    if missed:
        sys.exit(NO)


@dead.command()
@click.argument("ids", type=click.UUID, nargs=-1)
@filtered
@state
@click.option("--all", "all_", is_flag=True, help="All that meet the conditions, or all there are.")
@click.option("--limit", type=click.IntRange(1), help="At most so many, the oldest first.")
@click.option("--yes", is_flag=True, help="Do not ask: what is purged is lost.")
@as_json
@click.pass_obj
def purge(
    line: CommandLine,
    /,
    ids: tuple[UUID, ...],
    all_: bool,
    limit: int | None,
    yes: bool,
    json_: bool,
    **given: Any,
) -> None:
    """Forget dead letters for good. Exits 1 if there is none of an id.

    With conditions or --all it says how many there are, and does it with --yes. --state counts
    for these, not for ids.

    \b
    Example:
      chancy dead purge 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
      chancy dead purge --state replayed --older-than 7d --yes
    """
    by_filter = selected(ids, all_, given)
    asked = wanted(given) if by_filter else LetterFilter(ids=ids)
    if by_filter and not yes:
        count = line.run(lambda chancy: Letters(chancy.broker).count(asked))
        shown = f"{count:,}" if count <= MAX_COUNT else f"{MAX_COUNT:,}+"
        raise click.UsageError(
            f"this forgets {shown if limit is None else min(count, limit)} dead letters for "
            "good: give --yes if that is meant"
        )
    done = line.run(
        lambda chancy: Walk(Letters(chancy.broker), asked, limit).purge(_said("purged"))
    )
    if json_:
        line.script({"purged": done})
    else:
        line.line(f"{done:,} purged")
    missing = 0 if by_filter else min(len(set(ids)), limit or len(ids)) - done
    if missing:
        refuse(f"{missing} of the ids {'is' if missing == 1 else 'are'} of no dead letter")


def _said(what: str) -> Progress:
    """Tells on stderr how far a long command is."""

    def progress(done: int) -> None:
        if done >= BATCH:
            click.echo(f"{done:,} {what} so far", err=True)

    return progress
