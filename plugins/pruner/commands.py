"""``chancy prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError
from chancy.plugin.commands import as_json
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.pruner.sweep import statement

if TYPE_CHECKING:
    from chancy.plugins.pruner import Pruner


def prune_command(pruner: Pruner) -> click.Command:
    """The command, with the settings of the plugin of an application."""

    @click.command("prune")
    @click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
    @as_json
    @click.pass_obj
    def prune(line: CommandLine, dry_run: bool, json_: bool) -> None:
        """Prune the history once, as the settings of the plugin chancy.pruner say.

        Makes the partitions of the days to come, drops those of old days, and applies every rule.
        What workers do by themselves; for those who would rather do it by a schedule.

        \b
        Example:
          chancy prune --app shop.jobs:chancy --dry-run
        """

        async def main(app: Application) -> tuple[list[str], list[int]]:
            store = app.broker
            if not isinstance(store, SqlStore):
                raise ConfigurationError(
                    f"the history is pruned in Postgres, and {type(store).__name__} does not "
                    "offer SQL statements: use an application on Postgres"
                )
            if dry_run:
                sql = statement("old_days", store.schema)
                dropped = [str(row[0]) for row in await store.fetch(sql, pruner.keep_days)]
            else:
                dropped = await pruner.prune(store)
            return dropped, await pruner.apply(store, app.clock.sleep, dry_run=dry_run)

        dropped, removed = line.run(main)
        if json_:
            rules = [
                {"rule": str(rule), "jobs": jobs}
                for rule, jobs in zip(pruner.rules, removed, strict=True)
            ]
            line.script({"dry_run": dry_run, "partitions": dropped, "rules": rules})
            return
        word = "would go" if dry_run else "gone"
        rows = [(name, "all") for name in dropped]
        rows += [(f"rule {r}", f"{n:,}") for r, n in zip(pruner.rules, removed, strict=True)]
        line.table(("what", f"jobs {word}"), rows)

    return prune
