"""``chancy redis doctor``, ``info`` and ``task``: the server and its queues."""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from uuid import UUID

import click

from chancy.plugin.commands import NO, as_json
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.redis.cli.report import info, task
from chancy.plugins.redis.maintenance.doctor import examine
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.shard import linked

#: The key of the plugin's settings in ``click.Context.meta``.
SETTINGS = "chancy.redis.settings"


@click.command("info")
@click.pass_obj
def info_(line: CommandLine) -> None:
    """Print the queues in Redis as JSON, with up to 100 jobs in each state and their workers.

    Exits with status 4 if Redis cannot be reached, or refuses the counts.

    \b
    Example:
      chancy redis info --app shop.jobs:chancy | jq '.queues[].counts'
    """
    settings: RedisSettings = click.get_current_context().meta[SETTINGS]

    async def main(chancy: Application) -> dict[str, Any]:
        # Calls over all brokers skip an unavailable one, so reach the server explicitly.
        async with linked(settings) as client:
            found = await info(chancy)
            await client.command("EXISTS", client.tag)
            return found

    line.script(line.run(main))


@click.command("task")
@click.argument("id")
@click.pass_obj
def task_(line: CommandLine, id: str) -> None:
    """Print a job as JSON. Exits with status 1 and {"error": …} if it does not exist.

    \b
    Example:
      chancy redis task 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10 --app shop.jobs:chancy
    """
    try:
        wanted = UUID(id)
    except ValueError:
        # A malformed id gets the same reply as an unknown one.
        found = None
    else:
        found = line.run(lambda chancy: task(chancy, wanted))
    if found is None:
        line.script({"error": f"job {id} does not exist or is no longer kept"})
        sys.exit(NO)
    line.script(found)


@click.command()
@as_json
@click.pass_obj
def doctor(line: CommandLine, json_: bool) -> None:
    """Check the configuration of the Redis server. Exits with status 1 if action is needed.

    Connects only to Redis. Settings that the server does not expose, as on hosted servers, are
    left out.

    \b
    Example:
      chancy redis doctor --app shop.jobs:chancy
    """
    settings: RedisSettings = click.get_current_context().meta[SETTINGS]
    found = asyncio.run(examine(settings))
    if json_:
        line.script([finding.as_json() for finding in found])
    else:
        rows = [
            ("ok" if finding.ok else "warn", finding.about, finding.found, finding.todo)
            for finding in found
        ]
        # Not a table: that would truncate findings such as a connection error.
        rows.insert(0, ("", "about", "found", "to do"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            line.line("  ".join(padded).rstrip())
    if not all(finding.ok for finding in found):
        sys.exit(NO)
