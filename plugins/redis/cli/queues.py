"""``chancy redis doctor``, ``info``, ``task`` and ``dlq``: the server, and the queues in it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import click

from chancy.plugin.commands import as_json
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugins.dead_letter import DeadLetter, DeadLetters, LetterFilter
from chancy.plugins.dead_letter.letter import facts
from chancy.plugins.redis.cli.report import info, redis_queues, task
from chancy.plugins.redis.maintenance.doctor import examine
from chancy.plugins.redis.relay.purge import purge as forget
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.shard_client import linked

#: Where the commands find the settings of the plugin.
SETTINGS = "chancy.redis.settings"
#: The exit code when the answer is no.
_NO = 1
_PAGE = 500

_LETTERS = DeadLetters()
QUEUE = click.option("--queue", metavar="NAME", help="Only letters of this queue.")


@click.command("info")
@click.pass_obj
def info_(line: CommandLine) -> None:
    """Print, as JSON, the queues in Redis with up to 100 of their jobs in each state, and who
    serves them. Exits 4 if Redis cannot be reached.

    \b
    Example:
      chancy redis info --app shop.jobs:chancy | jq '.queues[].counts'
    """
    settings: RedisSettings = click.get_current_context().meta[SETTINGS]

    async def main(chancy: Application) -> dict[str, Any]:
        # What is asked of all brokers leaves out one that is away.
        async with linked(settings) as link:
            await link.open()
            found = await info(chancy)
            await link.command("EXISTS", link.tag)
            return found

    line.script(line.run(main))


@click.command("task")
@click.argument("id")
@click.pass_obj
def task_(line: CommandLine, id: str) -> None:
    """Print a job as JSON. Exits 1 with {"error": …} if there is none.

    \b
    Example:
      chancy redis task 0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10 --app shop.jobs:chancy
    """
    try:
        wanted = UUID(id)
    except ValueError:
        # Whatever a script took for one, it gets the same answer.
        found = None
    else:
        found = line.run(lambda chancy: task(chancy, wanted))
    if found is None:
        line.script({"error": f"there is no job {id}, or it is kept no longer"})
        sys.exit(_NO)
    line.script(found)


@click.command()
@as_json
@click.pass_obj
def doctor(line: CommandLine, json_: bool) -> None:
    """Look whether the server is set as jobs need it. Exits 1 if something is to be done.

    Only Redis is spoken to. What it does not tell, as hosted servers do not, is left out.

    \b
    Example:
      chancy redis doctor --app shop.jobs:chancy
    """
    settings: RedisSettings = click.get_current_context().meta[SETTINGS]
    found = asyncio.run(examine(settings))
    if json_:
        line.script([one.as_json() for one in found])
    else:
        rows = [("ok" if one.ok else "warn", one.about, one.found, one.todo) for one in found]
        # No table: that would cut what is found, such as the error of a server that is away.
        rows.insert(0, ("", "about", "found", "to do"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            line.line("  ".join(padded).rstrip())
    if not all(one.ok for one in found):
        sys.exit(_NO)


@click.group()
def dlq() -> None:
    """Read, replay and purge the dead letters of queues in Redis, as JSON.

    It is `chancy dead` for these queues; only letters that were not replayed count. A job that
    failed becomes a letter within the sweep of the dead letters, half a minute by default.

    \b
    Example:
      chancy redis dlq read --app shop.jobs:chancy --queue mail
    """


@dlq.command()
@QUEUE
@click.pass_obj
def read(line: CommandLine, queue: str | None) -> None:
    """Print the letters, those that died last first.

    \b
    Example:
      chancy redis dlq read --app shop.jobs:chancy | jq -r '.[].id'
    """

    async def main(chancy: Application) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        for wanted in await _wanted(chancy, queue):
            before: UUID | None = None
            while page := await _LETTERS.find(chancy, wanted, limit=_PAGE, before=before):
                found += page
                before = page[-1].id
        return found

    line.script([facts(one) for one in line.run(main)])


@dlq.command()
@QUEUE
@click.pass_obj
def replay(line: CommandLine, queue: str | None) -> None:
    """Push the jobs of the letters again, with all their attempts; prints how many.

    \b
    Example:
      chancy redis dlq replay --app shop.jobs:chancy --queue mail
    """

    async def main(chancy: Application) -> dict[str, Any]:
        filters = await _wanted(chancy, queue)
        return {"replayed": sum([await _LETTERS.replay_all(chancy, one) for one in filters])}

    line.script(line.run(main))


@dlq.command()
@QUEUE
@click.option("--yes", is_flag=True, help="Do not ask: what is purged is lost.")
@click.pass_obj
def purge(line: CommandLine, queue: str | None, yes: bool) -> None:
    """Forget the letters and their jobs for good, with --yes; prints how many.

    Nothing is left of the jobs in Redis and in the history.

    \b
    Example:
      chancy redis dlq purge --app shop.jobs:chancy --queue mail --yes
    """
    if not yes:
        raise click.UsageError("this forgets dead letters for good: give --yes if that is meant")

    settings: RedisSettings = click.get_current_context().meta[SETTINGS]

    async def main(chancy: Application) -> dict[str, Any]:
        purged = 0
        for wanted in await _wanted(chancy, queue):
            while page := await _LETTERS.find(chancy, wanted, limit=_PAGE):
                ids = [one.id for one in page]
                await forget(settings, chancy.broker, ids)
                some = await _LETTERS.purge_all(chancy, replace(wanted, ids=ids))
                purged += some
                if not some:
                    break
        return {"purged": purged}

    line.script(line.run(main))


async def _wanted(chancy: Application, queue: str | None) -> Sequence[LetterFilter]:
    return [
        LetterFilter(queue=one.name, replayed=False) for one in await redis_queues(chancy, queue)
    ]
