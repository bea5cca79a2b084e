"""``chancy ledger``."""

from __future__ import annotations

import sys
from typing import Any

import click

from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError
from chancy.plugin.runtime import Application, CommandLine
from chancy.postgres.statements import quoted


async def entries(app: Application) -> list[dict[str, Any]]:
    """The entries, oldest first."""
    store = app.broker
    if not isinstance(store, SqlStore):
        raise ConfigurationError("the ledger is in Postgres")
    rows = await store.fetch(f"select id, note from {quoted(store.schema)}.ledger_entries")
    return [{"id": row[0], "note": row[1]} for row in rows]


@click.group()
def ledger() -> None:
    """Look at the ledger.

    \b
    Example:
      chancy ledger list
    """


@ledger.command("list")
@click.option("--json", "json_", is_flag=True, help="Print JSON for a script.")
@click.pass_obj
def list_(line: CommandLine, json_: bool) -> None:
    """List the entries; exit with 1 if there are none.

    \b
    Example:
      chancy ledger list --json
    """
    found = line.run(entries)
    if json_:
        line.script(found)
    elif found:
        line.table(("id", "note"), [(one["id"], one["note"]) for one in found])
    else:
        line.line("no entries")
        sys.exit(1)
