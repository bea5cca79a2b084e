"""The due jobs by queue: their number, and how long the oldest one has waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chancy.broker.contract import Broker
from chancy.broker.optional import CountsElsewhere, SqlStore
from chancy.broker.values import QueueCounts
from chancy.plugin.tables import PluginSql
from chancy.postgres.drivers.base import Connection

#: The statements of the folder ``sql`` next to this module.
SQL = PluginSql("chancy.app", "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The due jobs of one queue that no worker has claimed.

    :param pending: the number of pending jobs; more than ``cap``: counting stopped there.
    :param held: the number of jobs held by rules or until a worker knows their function; likewise.
    :param oldest_s: seconds for which the oldest job has waited; None if its broker does not know.
    """

    pending: int
    cap: int
    oldest_s: float | None
    held: int = 0

    @property
    def shown(self) -> str:
        """The number of both as text: ``10,000+`` if counting stopped."""
        return self._shown(self.pending + self.held)

    @property
    def shown_pending(self) -> str:
        """The number of pending jobs, likewise."""
        return self._shown(self.pending)

    @property
    def shown_held(self) -> str:
        """The number of held jobs, likewise."""
        return self._shown(self.held)

    def _shown(self, number: int) -> str:
        return f"{min(number, self.cap):,}{'+' if number > self.cap else ''}"


async def backlogs(session: Connection | SqlStore, schema: str) -> Mapping[str, Backlog]:
    """The queues with due jobs in Postgres, the longest wait first.

    Costs the same with ten million rows.
    """
    rows = await session.fetch(SQL.statement("backlog", schema))
    return {
        queue: Backlog(pending=pending, cap=cap, oldest_s=oldest_s, held=held)
        for queue, oldest_s, cap, pending, held in rows
    }


async def counted_elsewhere(
    broker: Broker,
) -> tuple[Mapping[str, QueueCounts], Mapping[str, str]]:
    """The counts of queues in other brokers, and the errors of brokers that are unavailable."""
    if not isinstance(broker, CountsElsewhere):
        return {}, {}
    found, errors = await broker.counts_elsewhere()
    return {queue: one for counts in found.values() for queue, one in counts.items()}, errors
