"""The jobs that are due, by queue: how many, and for how long the oldest has waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from chancy.broker.optional import SqlStore
from chancy.broker.values import QueueCounts
from chancy.errors import BrokerError
from chancy.postgres.drivers.base import Connection
from chancy.postgres.statements import load
from chancy.routing.members import BrokerSet

_SQL = resources.files("chancy.app") / "sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The pending jobs of one queue.

    :param pending: how many there are; more than ``cap`` means that counting stopped there.
    :param oldest_s: seconds for which the oldest has waited; None if its broker cannot tell.
    """

    pending: int
    cap: int
    oldest_s: float | None

    @property
    def shown(self) -> str:
        """The number for people: ``10,000+`` where counting stopped."""
        return f"{min(self.pending, self.cap):,}{'+' if self.pending > self.cap else ''}"


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql`` beside this module."""
    return load(_SQL, name, schema)


async def backlogs(session: Connection | SqlStore, schema: str) -> Mapping[str, Backlog]:
    """The queues with pending jobs in Postgres, the longest wait first.

    Costs the same at ten million rows.
    """
    rows = await session.fetch(statement("backlog", schema))
    return {
        queue: Backlog(pending=pending, cap=cap, oldest_s=max(0.0, oldest_s))
        for queue, oldest_s, cap, pending in rows
    }


async def counted_elsewhere(
    brokers: BrokerSet,
) -> tuple[Mapping[str, QueueCounts], Mapping[str, str]]:
    """The counts of queues in other brokers, and the errors of brokers that are unavailable."""
    found: dict[str, QueueCounts] = {}
    errors: dict[str, str] = {}
    for name in brokers.others:
        try:
            found |= await (await brokers.ready(name)).counts()
        except BrokerError as error:
            errors[name] = str(error)
    return found, errors
