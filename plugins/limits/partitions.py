"""The partitions of queues with rules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.plugin.tables import from_row
from chancy.plugins.limits.ruled_claims import SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition with held jobs.

    :param key: the value of the partition key; if the rules have several, that of the sequence, or
        a JSON array without one.
    :param held: its held jobs, up to 1,000.
    :param oldest_at: when the first of them was pushed.
    :param rule: the number of the rule, from 1, whose slots are taken.
    :param ready_s: the seconds until a token is there, or a pause ends.
    :param blocked_by: a failed job that blocks its sequence.
    """

    key: str
    held: int
    oldest_at: datetime | None
    rule: int | None
    ready_s: float | None
    blocked_by: UUID | None


class Partitions:
    """The partitions in the database of an application.

    :raises ConfigurationError: the broker does not offer SQL.
    """

    def __init__(self, broker: Broker) -> None:
        self._tables = SQL.on(broker)

    async def waiting(self, queue: str, limit: int) -> list[Partition]:
        """The partitions whose held jobs have waited longest, up to a limit."""
        rows = await self._tables.fetch("waiting", queue, limit)
        return [from_row(Partition, row) for row in rows]

    async def skip(self, queue: str, key: str | None) -> list[UUID]:
        """Let a sequence go on behind failed jobs that block it; None: all.

        Returns these jobs.

        :param key: the value of the sequence.
        """
        return [row[0] for row in await self._tables.fetch("skip", queue, key)]

    async def resume(self, queue: str, key: str | None) -> list[str]:
        """End the pauses of a rate limit that jobs asked for, without adding tokens; None: all.

        Returns the values that were paused, ``""`` for the queue as a whole.

        :param key: the value of the rate limit.
        """
        return [row[0] for row in await self._tables.fetch("resume", queue, key)]
