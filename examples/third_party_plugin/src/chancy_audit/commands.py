from typing import Any

import click

from chancy.broker import SqlStore
from chancy.plugin import Application, CommandLine
from chancy.postgres.statements import quoted


async def entries(app: Application) -> list[dict[str, Any]]:
    """The newest entries."""
    store = app.broker
    assert isinstance(store, SqlStore)
    sql = f"select at, what from {quoted(store.schema)}.audit_entries order by at desc limit 100"
    return [{"at": at.isoformat(), "what": what} for at, what in await store.fetch(sql)]


@click.group()
def audit() -> None:
    """Look at the audit.

    \b
    Example:
      chancy audit list
    """


@audit.command("list")
@click.option("--json", "json_", is_flag=True, help="Print JSON for a script.")
@click.pass_obj
def list_(line: CommandLine, json_: bool) -> None:
    """List the newest entries.

    \b
    Example:
      chancy audit list --json
    """
    found = line.run(entries)
    if json_:
        line.script(found)
    else:
        line.table(("at", "what"), [(one["at"], one["what"]) for one in found])
