"""The ``chancy prune`` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chancy.broker.optional import SqlStore
from chancy.errors import LOCK_NOT_AVAILABLE, StatementFailed
from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.pruner.sweep import SQL

if TYPE_CHECKING:
    from chancy.plugins.pruner import Pruner


async def _pruned(pruner: Pruner, store: SqlStore) -> list[str]:
    try:
        return await pruner.prune(store, strict=True)
    except StatementFailed as error:
        if error.sqlstate != LOCK_NOT_AVAILABLE:
            raise
        refuse(
            "another session holds a table of the history, so partitions are still to be made or "
            "dropped: see the transactions in `chancy doctor`, and run this again"
        )


def prune_command(pruner: Pruner) -> click.Command:
    """Build the command with the settings of an application's pruner."""

    @click.command("prune")
    @click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
    @as_json
    @click.pass_obj
    def prune(line: CommandLine, dry_run: bool, json_: bool) -> None:
        """Prune the history once, with the settings of the plugin chancy.pruner.

        Creates the partitions of the next days, drops those of old days, and applies every rule.
        Workers do this automatically; use the command to run it on your own schedule. Exits 1 if
        another session holds a table for longer than 100 ms: run it again.

        \b
        Example:
          chancy prune --app shop.jobs:chancy --dry-run
        """

        async def main(app: Application) -> tuple[list[str], list[int]]:
            tables = SQL.on(app.broker)
            if dry_run:
                rows = await tables.fetch("old_days", pruner.keep_days)
                dropped = [str(row[0]) for row in rows]
            else:
                dropped = await _pruned(pruner, tables.store)
            return dropped, await pruner.apply(tables.store, app.clock.sleep, dry_run=dry_run)

        dropped, removed = line.run(main)
        if json_:
            rules = [
                {"rule": str(rule), "jobs": jobs}
                for rule, jobs in zip(pruner.rules, removed, strict=True)
            ]
            line.script({"dry_run": dry_run, "partitions": dropped, "rules": rules})
            return
        label = "jobs to delete" if dry_run else "jobs deleted"
        rows = [(name, "old" if name == "finished_jobs_default" else "all") for name in dropped]
        rows += [(f"rule {r}", f"{n:,}") for r, n in zip(pruner.rules, removed, strict=True)]
        line.table(("partition or rule", label), rows)

    return prune
