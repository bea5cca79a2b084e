"""The ``chancy limits`` commands."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import click

from chancy.errors import ConfigurationError
from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import Application, CommandLine
from chancy.plugin.tables import facts
from chancy.plugins.limits.partitions import Partition, Partitions
from chancy.queue.queue import DEFAULT_BROKER, Queue, check_declared
from chancy.queue.rules import Rule
from chancy.text import shown

#: The most partitions that `list_` shows.
_MOST = 1_000


@click.group()
def limits() -> None:
    """Show the partitions of queues with rules, skip failed jobs that block a sequence, and end
    pauses of rate limits.

    \b
    Example:
      chancy limits list crawl
    """


@limits.command("list")
@click.argument("queue")
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=20,
    show_default=True,
    help="The most partitions.",
)
@as_json
@click.pass_obj
def list_(line: CommandLine, queue: str, limit: int, json_: bool) -> None:
    """List the partitions of a queue whose held jobs have waited longest, and why they wait.

    Held jobs of a partition are counted up to 1,000.

    \b
    Example:
      chancy limits list ledger
      chancy limits list ledger --json | jq '.[] | select(.blocked_by) | .key'
    """

    async def main(chancy: Application) -> tuple[list[Partition], Sequence[Rule]]:
        declared = await _declared(chancy, queue)
        return await Partitions(chancy.broker).waiting(queue, limit), declared.rules

    found, rules = line.run(main)
    if json_:
        line.script([facts(partition) for partition in found])
        return
    line.table(
        ("partition", "held", "oldest", "waits for"),
        [(part.key, part.held, part.oldest_at, _reason(part, rules)) for part in found],
    )
    if any(part.blocked_by for part in found):
        line.line(
            "A failed job blocks its sequence until it is replayed, if its dead letter is still "
            "there, or skipped. For the command, ask `chancy job why` about a job behind it"
        )


async def _declared(chancy: Application, name: str) -> Queue:
    queues = await chancy.broker.queues()
    check_declared(name, queues)
    return next(queue for queue in queues if queue.name == name)


def _reason(part: Partition, rules: Sequence[Rule]) -> str:
    if part.blocked_by is not None:
        return f"the failed job {part.blocked_by}"
    if part.rule is not None:
        known = part.rule <= len(rules)
        return f"a slot of {rules[part.rule - 1] if known else 'a rule of its queue'}"
    # A partition that was skipped is ready at once, whatever its rules.
    if part.ready_s is not None and part.ready_s > 0:
        return f"a rate limit, {part.ready_s:.1f} s"
    return "its turn"


@limits.command()
@click.argument("queue")
@click.argument("key", required=False)
@click.option("--all", "every", is_flag=True, help="All partitions of the queue.")
@as_json
@click.pass_obj
def skip(line: CommandLine, queue: str, key: str | None, every: bool, json_: bool) -> None:
    """Let a partition go on behind failed jobs that block its sequence.

    The failed jobs stay dead letters. Exits 1 if no job blocks the partition. Put -- before a KEY
    that begins with a dash.

    \b
    Example:
      chancy limits skip ledger account-7
      chancy limits skip ledger -- -7
      chancy limits skip ledger --all
    """
    if (key is None) != every:
        raise click.UsageError("name a partition, or pass --all")

    async def main(chancy: Application) -> list[UUID]:
        await _declared(chancy, queue)
        return await Partitions(chancy.broker).skip(queue, key)

    skipped = line.run(main)
    if json_:
        line.script({"skipped": [str(id) for id in skipped]})
    if not skipped:
        refuse(f"no failed job blocks {'a partition' if key is None else key} of {queue}")
    if not json_:
        line.line(f"skipped {', '.join(map(str, skipped))}")


@limits.command()
@click.argument("queue")
@click.argument("key", required=False)
@as_json
@click.pass_obj
def resume(line: CommandLine, queue: str, key: str | None, json_: bool) -> None:
    """End the pause of a rate limit that a job asked for by RateLimited.

    KEY is the value of the rate limit, as chancy job why shows it; without it, all pauses of the
    queue end. No tokens are added. The job that asked for the pause waits for its own time: chancy
    job retry runs it now. Exits 1 if nothing is paused. Put -- before a KEY that begins with a
    dash.

    \b
    Example:
      chancy limits resume crawl example.org
      chancy limits resume crawl
    """

    async def main(chancy: Application) -> list[str]:
        declared = await _declared(chancy, queue)
        if declared.broker != DEFAULT_BROKER:
            raise ConfigurationError(
                f"queue {queue!r} is in the broker {declared.broker!r}: pauses can be ended only "
                "in Postgres"
            )
        return await Partitions(chancy.broker).resume(queue, key)

    resumed = line.run(main)
    if json_:
        line.script({"resumed": resumed})
    if not resumed:
        wanted = "" if key is None else f" for {shown(key)}"
        refuse(f"no rate limit of {queue} is paused{wanted}")
    if not json_:
        line.line(f"resumed {', '.join(value or 'the queue' for value in resumed)}")
