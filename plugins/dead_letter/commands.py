"""The ``chancy dead`` commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

import click

from chancy.plugin.commands import NO, Id, as_json, complain, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.dead_letter.ages import Rate, filter_from, filtered, selects_by_filter, state
from chancy.plugins.dead_letter.letter import DeadLetter, LetterFilter, letter_facts
from chancy.plugins.dead_letter.replaying import MAX_ATTEMPTS, Progress, ReplayOptions, Walk
from chancy.plugins.dead_letter.store import (
    BATCH,
    MAX_COUNT,
    MAX_FOUND,
    MAX_GROUPS_PAGE,
    Group,
    LetterPosition,
    Letters,
)
from chancy.queue.queue import check_declared

T = TypeVar("T")


async def _newest(chancy: Application) -> Sequence[tuple[UUID, str]]:
    found = await Letters(chancy.broker).find(LetterFilter(), limit=200)
    return [(one.id, f"{one.queue} {one.func} {one.error}") for one in found]


@click.group()
def dead() -> None:
    """List, show, replay and purge jobs, and events of streams, that failed for good.

    Failures that no worker has filed yet, such as recent ones in Redis, are filed first. For an
    event, --queue is its stream and --func its processor: orders/bill.

    \b
    Example:
      chancy dead list --queue mail --newer 2h
    """


@dead.command("list")
@filtered
@state
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_FOUND),
    default=50,
    show_default=True,
    help="The most dead letters to list.",
)
@click.option(
    "--before",
    type=click.UUID,
    metavar="ID",
    help="Only older ones: pass the last id of the previous page.",
)
@as_json
@click.pass_obj
def list_(
    line: CommandLine, /, limit: int, before: UUID | None, json_: bool, **options: Any
) -> None:
    """List dead letters, newest first.

    \b
    Example:
      chancy dead list --error shop.errors.CardDeclined --newer 1d
      chancy dead list --json | jq -r '.[].id'
    """
    wanted = filter_from(options)
    found = _run(line, lambda letters, _: letters.find(wanted, limit=limit, before=before))
    if json_:
        line.script([letter_facts(letter) for letter in found])
        return
    names = ("id", "died_at", "queue", "func", "reason", "error", "message", "replayed_as")
    line.table(
        ("id", "died", "queue", "function", "reason", "error", "message", "replayed as"),
        list(map(attrgetter(*names), found)),
    )
    if len(found) == limit:
        click.echo(f"next page: --before {found[-1].id}", err=True)


@dead.command()
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_GROUPS_PAGE),
    default=50,
    show_default=True,
    help="The most groups to list.",
)
@click.option(
    "--before",
    type=click.UUID,
    metavar="ID",
    help="Only groups with older failures: pass the last newest id of the previous page.",
)
@as_json
@click.pass_obj
def groups(line: CommandLine, limit: int, before: UUID | None, json_: bool) -> None:
    """List groups of dead letters of the same kind, the one with the latest failure first.

    Dead letters of a group have the same function, reason, error and message except for numbers
    and quoted values. Replay or purge a group by its fingerprint.

    \b
    Example:
      chancy dead groups
      chancy dead replay --fingerprint 3f0c2a9d41b7e655 --rate 10/s
    """

    async def find(letters: Letters, _: Application) -> list[Group]:
        last = None
        if before is not None:
            newest = await letters.get(before)
            if newest is None:
                refuse(f"there is no dead letter {before}")
            last = LetterPosition(newest.died_at, newest.id)
        return await letters.groups(limit=limit, after=last)

    found = _run(line, find)
    if json_:
        line.script([facts(group) for group in found])
        return
    names = ("fingerprint", "waiting", "replayed", "last", "queue", "function", "error", "message")
    line.table(
        names,
        [
            (
                one.fingerprint,
                one.waiting,
                one.replayed,
                one.newest,
                one.queue,
                one.func,
                one.error or one.reason,
                one.message,
            )
            for one in found
        ],
    )
    if len(found) == limit:
        click.echo(f"next page: --before {found[-1].newest_id}", err=True)


@dead.command()
@click.argument("id", type=Id(_newest))
@as_json
@click.pass_obj
def show(line: CommandLine, id: UUID, json_: bool) -> None:
    """Show one dead letter with its arguments and failures. Exits 1 if there is none.

    \b
    Example:
      chancy dead show 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
    """
    found = _run(line, lambda letters, _: letters.get(id))
    if found is None:
        refuse(f"there is no dead letter {id}")
    if json_:
        line.script(letter_facts(found))
    else:
        _describe(line, found)


def _describe(line: CommandLine, letter: DeadLetter) -> None:
    described = letter_facts(letter)
    errors = described.pop("errors")
    for name, value in described.items():
        if value is not None:
            text = json.dumps(value) if isinstance(value, dict | list) else value
            line.line(f"{name:14}{text}")
    for error in errors:
        types = error.get("types")
        name = types[0] if isinstance(types, list) and types else "error"
        origin = (
            f"attempt {error.get('attempt')}, {error.get('at')}, worker {error.get('worker_id')}"
        )
        line.line(f"{origin}: {name}: {error.get('message', '')}")
        if error.get("trace"):
            line.line(f"  {error['trace']}".rstrip().replace("\n", "\n  "))


@dead.command()
@click.argument("ids", type=Id(_newest), nargs=-1)
@filtered
@click.option("--all", "all_", is_flag=True, help="All dead letters that match the filters.")
@click.option("--limit", type=click.IntRange(1), help="The most dead letters, oldest first.")
@click.option(
    "--rate", type=Rate(), metavar="N/s", help="Jobs that become due a second: 10, 10/s, 100/m."
)
@click.option("--force", is_flag=True, help="Also replay dead letters that were replayed before.")
@click.option("--dry-run", is_flag=True, help="Only count the dead letters.")
@click.option("--to-queue", metavar="NAME", help="Push to this queue instead.")
@click.option(
    "--max-attempts", type=click.IntRange(1, MAX_ATTEMPTS), help="Replace the number of attempts."
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
    dry_run: bool,
    to_queue: str | None,
    max_attempts: int | None,
    json_: bool,
    **options: Any,
) -> None:
    """Push the jobs of dead letters again, with all attempts; send events of streams again.

    Exits 1 if an id is not replayed. --rate, --to-queue and --max-attempts are for jobs.

    Safe to interrupt and to repeat: without --force no dead letter is replayed twice.

    \b
    Example:
      chancy dead replay 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
      chancy dead replay --error httpx.ConnectTimeout --newer 2h --rate 10/s
      chancy dead replay --all
    """
    by_filter = selects_by_filter(ids, all_, options)
    wanted = filter_from(options) if by_filter else LetterFilter(ids=ids)
    replay_options = ReplayOptions(
        rate=rate, force=force, queue=to_queue, max_attempts=max_attempts
    )

    async def count_all(letters: Letters, chancy: Application) -> int:
        await _check_queue(chancy, to_queue)
        return await letters.count(wanted if force else replace(wanted, replayed=False))

    if dry_run:
        _report_count(line, _run(line, count_all), limit, json_=json_)
        return

    async def main(letters: Letters, chancy: Application) -> tuple[int, dict[UUID, UUID]]:
        await _check_queue(chancy, to_queue)
        count, jobs = 0, dict[UUID, UUID]()
        async for batch in Walk(letters, wanted, limit).replay(
            replay_options, chancy.prepare_stored, _progress("replayed")
        ):
            count += len(batch)
            if not by_filter:  # a filter may match millions
                jobs.update(batch)
        return count, jobs

    count, found = _run(line, main)
    missed = [id for id in ids if id not in found]
    _report_replayed(line, count, found, missed, json_=json_)


async def _check_queue(chancy: Application, queue: str | None) -> None:
    """Refuse a queue that is not declared: the jobs would wait there, and count as replayed."""
    if queue is not None:
        check_declared(queue, await chancy.broker.queues())


def _report_count(line: CommandLine, count: int, limit: int | None, *, json_: bool) -> None:
    count = count if limit is None else min(count, limit)
    if json_:
        line.script({"dry_run": True, "replayed": count})
    else:
        line.line(f"{count:,} to replay" if count <= MAX_COUNT else f"{MAX_COUNT:,}+ to replay")


def _report_replayed(
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
            f"{id} was not replayed: there is no such dead letter, it was replayed before "
            "(repeat with --force), an unfinished job has its unique key, or it is an event of a "
            "stream that this application does not declare"
        )
    if missed:
        sys.exit(NO)


@dead.command()
@click.argument("ids", type=Id(_newest), nargs=-1)
@filtered
@state
@click.option("--all", "all_", is_flag=True, help="All dead letters that match the filters.")
@click.option("--limit", type=click.IntRange(1), help="The most dead letters, oldest first.")
@click.option("--yes", is_flag=True, help="Confirm: purged dead letters are lost.")
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
    **options: Any,
) -> None:
    """Delete dead letters permanently. Exits 1 if an id has no dead letter.

    With filters or --all, it only reports how many match unless you pass --yes. --state applies
    to filters and --all, not to ids.

    \b
    Example:
      chancy dead purge 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10
      chancy dead purge --state replayed --older 7d --yes
    """
    by_filter = selects_by_filter(ids, all_, options)
    wanted = filter_from(options) if by_filter else LetterFilter(ids=ids)
    if by_filter and not yes:
        count = _run(line, lambda letters, _: letters.count(wanted))
        shown = f"{count:,}" if count <= MAX_COUNT else f"{MAX_COUNT:,}+"
        raise click.UsageError(
            f"this deletes {shown if limit is None else min(count, limit)} dead letters "
            "permanently: pass --yes to confirm"
        )
    done = _run(line, lambda letters, _: Walk(letters, wanted, limit).purge(_progress("purged")))
    if json_:
        line.script({"purged": done})
    else:
        line.line(f"{done:,} purged")
    missing = 0 if by_filter else min(len(set(ids)), limit or len(ids)) - done
    if missing:
        refuse(f"{missing} of the ids {'has' if missing == 1 else 'have'} no dead letter")


def _run(line: CommandLine, work: Callable[[Letters, Application], Awaitable[T]]) -> T:
    """Run a coroutine function with the dead letters, after missing ones were filed."""

    async def main(chancy: Application) -> T:
        await DeadLetters().file_missing(chancy)
        return await work(Letters(chancy.broker), chancy)

    return line.run(main)


def _progress(action: str) -> Progress:
    """Report the progress of a long command on stderr."""

    def progress(done: int) -> None:
        if done >= BATCH:
            click.echo(f"{done:,} {action} so far", err=True)

    return progress
