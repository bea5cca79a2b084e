"""The commands that change jobs in bulk, and the options by which they select them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO
from uuid import UUID

import click

from chancy.app.selection import BulkProgress, ChangedJobs, JobSelection, SelectedJobs
from chancy.cli import output, shell_completion
from chancy.cli.options import DATETIME, CommandTarget, as_json, on_target
from chancy.job.fields import PRIORITIES
from chancy.plugin.commands import Age, Seconds, where_option
from chancy.states import State

if TYPE_CHECKING:
    from chancy.app.app import Chancy

#: A bulk change, given the jobs and its keyword arguments ``dry_run`` and ``progress``.
Work = Callable[..., Awaitable[ChangedJobs]]

_CONDITIONS = (
    click.option(
        "--queue", metavar="NAME", help="Only this queue.", shell_complete=shell_completion.queues
    ),
    click.option("--func", metavar="PATH", help="Only this function: a path, a pattern or a name."),
    click.option(
        "--state",
        multiple=True,
        type=click.Choice([state.label for state in State]),
        help="Only this state. Repeatable.",
    ),
    click.option(
        "--older",
        type=Age(),
        metavar="AGE",
        help="At least this old: 90 (seconds), 15m, 2h, 7d, 4w.",
    ),
    click.option("--newer", type=Age(), metavar="AGE", help="At most this old."),
    where_option,
    click.option("--error", metavar="TEXT", help="Only with this text in the last failure."),
    click.option("--all", "every", is_flag=True, help="All jobs, without any condition."),
    click.option("--dry-run", is_flag=True, help="Only count the jobs."),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    as_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """The conditions of a command, and how it is to run."""

    wanted: JobSelection
    every: bool
    dry_run: bool
    yes: bool
    json_: bool

    def by_ids(self, ids: Sequence[UUID]) -> bool:
        """Whether a command is given ids instead of conditions; `click.UsageError` for both."""
        if not ids:
            return False
        if self.every or self.dry_run or not self.wanted.empty:
            raise click.UsageError("pass either ids, or conditions, but not both")
        return True

    def run(self, target: CommandTarget, verb: str, done: str, work: Work) -> None:
        """Change the selected jobs, after a confirmation, and print the counts.

        :param verb: what is done, for the question: ``cancel``.
        :param done: what was done, for the result: ``cancelled``.
        """
        if self.wanted.empty and not self.every:
            raise click.UsageError(
                f"pass conditions such as --queue and --older, or --all to {verb} every job"
            )
        if self.every and not self.wanted.empty:
            raise click.UsageError("pass either conditions, or --all, but not both")
        if not (self.yes or self.dry_run or _on_terminal(sys.stdin)):
            raise click.UsageError(
                "pass --yes to confirm without a terminal, or --dry-run to count the jobs"
            )

        async def count(chancy: Chancy) -> ChangedJobs:
            return await work(chancy.select_jobs(self.wanted), dry_run=True)

        if self.dry_run:
            self._print(target.run(count), verb, done)
            return
        total = None
        if not self.yes:
            total = target.run(count).matched
            # Outside the event loop, which would ignore the first Ctrl-C.
            click.confirm(f"{verb.capitalize()} {_jobs(total)}?", abort=True, err=True)

        async def change(chancy: Chancy) -> ChangedJobs:
            with _bar(verb, total) as progress:
                return await work(chancy.select_jobs(self.wanted), progress=progress)

        self._print(target.run(change), verb, done)

    def _print(self, counts: ChangedJobs, verb: str, done: str) -> None:
        if self.json_:
            output.script({"dry_run": self.dry_run, **counts._asdict()})
        elif self.dry_run:
            output.line(f"{_jobs(counts.matched)} to {verb}")
        else:
            asked = f", {counts.asked:,} running ones asked to stop" if counts.asked else ""
            output.line(f"{counts.changed:,} of {_jobs(counts.matched)} {done}{asked}")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _on_terminal(stream: TextIO) -> bool:
    return stream.isatty()


@contextmanager
def _bar(verb: str, total: int | None) -> Generator[BulkProgress | None]:
    """A progress bar on stderr, if it is a terminal."""
    if not _on_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TextColumn("jobs"), console=Console(stderr=True)) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda counts: bar.update(task, completed=counts.matched)


def selecting(function: Callable[..., None]) -> Callable[..., None]:
    """Add the conditions to a command, which is passed `BulkOptions`."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> None:
        given = {
            "states": frozenset(map(State.parse, kwargs.pop("state"))),
            "older_than": kwargs.pop("older"),
            "newer_than": kwargs.pop("newer"),
            "where": kwargs.pop("where") or {},
        }
        wanted = JobSelection(**given, **{n: kwargs.pop(n) for n in ("queue", "func", "error")})
        own = {name: kwargs.pop(name) for name in ("every", "dry_run", "yes", "json_")}
        function(*args, BulkOptions(wanted=wanted, **own), **kwargs)

    for option in reversed(_CONDITIONS):
        command = option(command)
    return command


@click.command()
@on_target
@click.option("--to-queue", metavar="NAME", required=True, help="The queue, which is declared.")
@selecting
def move(target: CommandTarget, bulk: BulkOptions, to_queue: str) -> None:
    """Move waiting jobs to another queue, behind its pending jobs. Running jobs stay.

    \b
    Example:
      chancy job move --to-queue bulk-mail --queue mail --where tenant_id=42
    """

    bulk.run(target, "move", "moved", lambda jobs, **how: jobs.move(to_queue, **how))


@click.command()
@on_target
@click.option(
    "--priority",
    type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]),
    required=True,
    help="The new priority: higher runs first.",
)
@selecting
def prioritize(target: CommandTarget, bulk: BulkOptions, priority: int) -> None:
    """Give waiting jobs another priority. Running jobs are left as they are.

    \b
    Example:
      chancy job prioritize --priority 50 --queue mail --func send --older 10m
    """

    bulk.run(
        target, "prioritize", "prioritized", lambda jobs, **how: jobs.prioritize(priority, **how)
    )


@click.command()
@on_target
@click.option("--delay", type=Seconds(), metavar="S", help="Run them S seconds from now.")
@click.option(
    "--run-at", type=DATETIME, metavar="ISO", help="Run them at this time, with its zone."
)
@selecting
def reschedule(
    target: CommandTarget, bulk: BulkOptions, delay: float | None, run_at: datetime | None
) -> None:
    """Run waiting jobs at another time. Running jobs are left as they are.

    \b
    Example:
      chancy job reschedule --delay 3600 --queue mail --error "rate limit"
      chancy job reschedule --run-at 2030-01-31T09:00:00+01:00 --queue mail
    """
    when = run_at if delay is None else delay
    if when is None or (delay is not None and run_at is not None):
        raise click.UsageError("pass either --delay or --run-at")

    bulk.run(target, "reschedule", "rescheduled", lambda jobs, **how: jobs.reschedule(when, **how))


@click.command()
@on_target
@selecting
def delete(target: CommandTarget, bulk: BulkOptions) -> None:
    """Delete finished jobs permanently. Dead letters remain.

    Jobs that finished within the last minute stay; with failed jobs among the states, as by
    default, those of the last ten minutes.

    \b
    Example:
      chancy job delete --state succeeded --func send --older 7d --dry-run
    """
    bulk.run(target, "delete", "deleted", SelectedJobs.delete)
