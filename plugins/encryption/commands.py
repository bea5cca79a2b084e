"""The ``chancy encryption`` commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.encryption.keyring import Keyring
from chancy.plugins.encryption.rotation import BATCH, MAX_BATCH, Rotation, RotationCounts


def commands_of(keyring: Keyring) -> click.Group:
    """The commands of an application with these keys."""

    @click.group()
    def encryption() -> None:
        """Show with which keys unfinished work is encrypted, and change the key.

        \b
        Example:
          chancy encryption status
        """

    encryption.add_command(_status(keyring))
    encryption.add_command(_rotate(keyring))
    return encryption


def _status(keyring: Keyring) -> click.Command:
    @click.command()
    @as_json
    @click.pass_obj
    def status(line: CommandLine, /, json_: bool) -> None:
        """Count unfinished work by key: jobs, dead letters, steps, callbacks, entries of cron.

        Reads all of it. Finished jobs, and jobs in Redis, are not counted.

        \b
        Example:
          chancy encryption status
        """
        counts = _run(line, keyring, BATCH, dry_run=True)
        rows = [
            {"table": table, "key": key, "use": _use(key, keyring), "rows": count}
            for (table, key), count in sorted(counts.keys.items())
        ]
        if json_:
            line.script(rows)
        else:
            line.table(("table", "key", "use", "rows"), [list(row.values()) for row in rows])

    return status


def _use(key: str, keyring: Keyring) -> str:
    if key == keyring.current:
        return "encrypts"
    return "decrypts" if key in keyring.ids else "unknown"


def _rotate(keyring: Keyring) -> click.Command:
    @click.command()
    @click.option(
        "--batch",
        type=click.IntRange(1, MAX_BATCH),
        default=BATCH,
        show_default=True,
        help="The most rows of a transaction.",
    )
    @click.option("--dry-run", is_flag=True, help="Only count the rows.")
    @as_json
    @click.pass_obj
    def rotate(line: CommandLine, /, batch: int, dry_run: bool, json_: bool) -> None:
        """Encrypt unfinished work and dead letters with the first key of the application.

        Safe to interrupt, to repeat, and to run beside workers. Exits 1 if something cannot be
        decrypted. Finished jobs, jobs in Redis, and lines of job logs keep their key: keep an old
        key while they are read.

        \b
        Example:
          chancy encryption rotate --dry-run
          chancy encryption rotate
        """
        counts = _run(line, keyring, batch, dry_run=dry_run)
        if json_:
            line.script(
                {
                    "dry_run": dry_run,
                    "rows": counts.rows,
                    "old": counts.old,
                    "changed": counts.changed,
                    "busy": counts.busy,
                    "unreadable": dict(counts.unreadable),
                }
            )
        elif dry_run:
            line.line(f"{counts.old:,} of {counts.rows:,} rows have another key")
        else:
            busy = f"; {counts.busy:,} were in use: repeat the command" if counts.busy else ""
            line.line(f"{counts.changed:,} of {counts.rows:,} rows encrypted again{busy}")
        if counts.unreadable:
            named = ", ".join(f"{key!r} ({count:,})" for key, count in counts.unreadable.items())
            refuse(f"rows with keys that are not known here, or do not fit: {named}")

    return rotate


def _run(line: CommandLine, keyring: Keyring, batch: int, *, dry_run: bool) -> RotationCounts:
    async def main(chancy: Application) -> RotationCounts:
        with _bar() as progress:
            rotation = Rotation(chancy, keyring, batch=batch)
            return await rotation.run(dry_run=dry_run, progress=progress)

    return line.run(main)


@contextmanager
def _bar() -> Generator[Callable[[RotationCounts], None] | None]:
    """A progress bar on stderr, if it is a terminal. The number of rows is not known before."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("encrypt"), BarColumn(), TextColumn("{task.completed:,.0f} rows")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("encrypt", total=None)
        yield lambda counts: bar.update(task, completed=counts.rows)
