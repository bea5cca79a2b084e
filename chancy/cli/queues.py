"""``chancy queue``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chancy.broker.values import QueueCounts, WorkerRecord
from chancy.cli import bounds, facts, output
from chancy.cli.counting import Counted, counted
from chancy.cli.exits import AWAY, NO, complain
from chancy.cli.options import MOMENT, CommandTarget, as_json, on_target
from chancy.job.limits import Limit
from chancy.plugin.commands import Seconds
from chancy.queue.executor_options import EXECUTORS, ExecutorName, Options
from chancy.queue.queue import Queue

if TYPE_CHECKING:
    from chancy.app.app import Chancy

T = TypeVar("T")
#: Queues, each with what is wrong with its row.
_Found = list[tuple[Queue, list[str]]]


@click.group()
def queue() -> None:
    """List, declare, pause, resume and delete queues. Workers follow within a second.

    \b
    Example:
      chancy queue declare mail --executor async --concurrency 50
      chancy queue pause mail --for 600
    """


@queue.command("list")
@on_target
@as_json
def list_(target: CommandTarget, json_: bool) -> None:
    """List queues with their settings and how many jobs they have.

    A count ends at 100,000+. Queues that have jobs but are not declared are listed, too; what is
    wrong with a row, and which workers cannot serve a queue and why, is said on stderr. So is why
    counts are not known, - or null: their broker is away, which exits with 4, or is none of
    this application.

    \b
    Example:
      chancy queue list
      chancy queue list --json | jq '.[] | select(.paused) | .name'
    """

    async def main() -> tuple[_Found, Counted, Sequence[WorkerRecord]]:
        async with target.opened() as chancy:
            queues = await _queues(chancy)
            return (
                queues,
                await counted(chancy, [one for one, _ in queues]),
                await chancy.get_workers(),
            )

    found, (counts, unknown, away), workers = asyncio.run(main())
    for complaint in unknown:
        complain(complaint)
    if json_:
        _script(found, counts, workers)
    else:
        _tell(found, counts, workers)
    if away:
        sys.exit(AWAY)


def _script(found: _Found, counts: facts.Counts, workers: Sequence[WorkerRecord]) -> None:
    output.script(
        [
            {
                **facts.facts(one),
                **facts.count(counts, one.name),
                "declared": True,
                "wrong": wrong,
                "broken": _broken(workers, one.name),
            }
            for one, wrong in found
        ]
        + [
            {"name": name, **facts.count(counts, name), "declared": False}
            for name in _undeclared(found, counts)
        ]
    )


def _tell(found: _Found, counts: facts.Counts, workers: Sequence[WorkerRecord]) -> None:
    rows = [facts.row(one, counts, len(_broken(workers, one.name))) for one, _ in found]
    rows += [
        [name, "(not declared)", *[None] * 6, "", *facts.shown(counts, name)]
        for name in _undeclared(found, counts)
    ]
    output.table((*facts.COLUMNS, *QueueCounts._fields), rows)
    for one, wrong in found:
        for complaint in wrong:
            complain(complaint)
        for where in _broken(workers, one.name):
            complain("queue {}: worker {worker} on {host}: {why}".format(one.name, **where))


def _undeclared(found: _Found, counts: facts.Counts) -> Sequence[str]:
    """Queues that have jobs, and no row."""
    return sorted(counts.keys() - {one.name for one, _ in found})


def _broken(workers: Sequence[WorkerRecord], name: str) -> list[dict[str, str]]:
    """The workers that cannot serve a queue, and why."""
    return [
        {"worker": str(one.id), "host": one.host, "why": one.broken[name]}
        for one in workers
        if name in one.broken
    ]


async def _queues(chancy: Chancy) -> _Found:
    """The queues, each with what is wrong with its row."""
    from chancy.postgres import rows
    from chancy.postgres.broker import PostgresBroker

    broker = chancy.control
    if isinstance(broker, PostgresBroker):
        return [rows.queue(row) for row in await broker.fetch(broker.sql.queues, None)]
    return [(one, []) for one in await chancy.get_queues()]


@queue.command()
@on_target
@click.argument("name")
@click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default="process",
    show_default=True,
    help="What runs the jobs.",
)
@click.option("--concurrency", type=int, help="Jobs that one worker runs at a time.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="PATTERN",
    help="Only workers with such a tag; again for more.",
)
@click.option(
    "--poll-interval",
    type=float,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between looks while notifications fail.",
)
@click.option(
    "--keep-finished/--no-keep-finished",
    default=True,
    show_default=True,
    help="Keep finished jobs in the history.",
)
@bounds.bounded
@bounds.placed
@click.option("--upsert", is_flag=True, help="Change the settings of a queue that is there.")
@as_json
def declare(
    target: CommandTarget,
    name: str,
    executor: ExecutorName,
    concurrency: int | None,
    tags: tuple[str, ...],
    poll_interval: float,
    keep_finished: bool,
    limits: tuple[Limit, ...],
    options: Options | None,
    broker: str,
    broker_options: Mapping[str, Any],
    upsert: bool,
    json_: bool,
) -> None:
    """Store a queue, or with --upsert change its settings. A pause stays as it is.

    Exits 1 if the queue is there with other settings and --upsert was not given.

    \b
    Example:
      chancy queue declare video --tag 'gpu=.*' --concurrency 1 --upsert
      chancy queue declare reports --time-limit 600 --memory-limit 512 --max-jobs 100
    """
    wanted = Queue(
        name=name,
        executor=executor,
        concurrency=concurrency,
        tags=frozenset(tags),
        poll_interval_s=poll_interval,
        keep_finished=keep_finished,
        limits=limits,
        options=options,
        broker=broker,
        broker_options=broker_options,
    )
    stored = asyncio.run(_with(target, lambda chancy: chancy.declare(wanted, upsert=upsert)))
    if json_:
        output.script(facts.facts(stored))
    differs = {
        key
        for key, value in facts.facts(wanted).items()
        if key not in ("paused", "resume_at") and value != facts.facts(stored)[key]
    }
    if differs:
        complain(f"queue {name!r} is there with another {', '.join(sorted(differs))}: use --upsert")
        sys.exit(NO)
    if not json_:
        output.line(f"queue {name} is declared")


@queue.command()
@on_target
@click.argument("name")
@click.option("--resume-at", type=MOMENT, metavar="ISO", help="When it goes on by itself.")
@click.option("--for", "for_s", type=Seconds(), metavar="S", help="Go on after so many seconds.")
def pause(
    target: CommandTarget, name: str, resume_at: datetime | None, for_s: float | None
) -> None:
    """Let no more jobs of a queue be claimed. What runs goes on.

    \b
    Example:
      chancy queue pause mail
      chancy queue pause mail --for 600
    """
    if resume_at is not None and for_s is not None:
        raise click.UsageError("--resume-at and --for are two moments: give one of them")
    if for_s is not None:
        resume_at = datetime.now(UTC) + timedelta(seconds=for_s)
    until = f" until {output.cell(resume_at)}" if resume_at else ""
    done = asyncio.run(_with(target, lambda chancy: chancy.pause_queue(name, resume_at=resume_at)))
    _say(done, name, f"is paused{until}")


@queue.command()
@on_target
@click.argument("name")
def resume(target: CommandTarget, name: str) -> None:
    """Let the jobs of a paused queue be claimed again.

    \b
    Example:
      chancy queue resume mail
    """
    _say(asyncio.run(_with(target, lambda chancy: chancy.resume_queue(name))), name, "is active")


@queue.command()
@on_target
@click.argument("name")
def delete(target: CommandTarget, name: str) -> None:
    """Forget a queue. Its jobs stay, and run once it is declared again.

    \b
    Example:
      chancy queue delete mail
    """
    done = asyncio.run(_with(target, lambda chancy: chancy.delete_queue(name)))
    _say(done, name, "is deleted; its jobs stay")


async def _with(target: CommandTarget, act: Callable[[Chancy], Awaitable[T]]) -> T:
    async with target.opened() as chancy:
        return await act(chancy)


def _say(done: bool, name: str, what: str) -> None:
    if not done:
        complain(f"there is no queue {name!r}")
        sys.exit(NO)
    output.line(f"queue {name} {what}")
