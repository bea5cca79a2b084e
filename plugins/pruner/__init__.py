"""Pruner: the history of finished jobs is kept for a number of days."""

from __future__ import annotations

import logging
import random
from importlib import resources

from chancy.broker import SqlStore
from chancy.errors import BrokerError, ConfigurationError, StatementFailed
from chancy.leader import elected
from chancy.plugin import Plugin, Runtime
from chancy.postgres.statements import load

logger = logging.getLogger("chancy.pruner")

_NOT_ALLOWED = "42501"
#: Turns of the leader for one of a worker that does not lead: the days to come are made for a week.
_RARELY = 8
# The partition was made, or rows came into the default one, at the same moment.
_MET_ANOTHER = frozenset({"23505", "23514", "42P07", "42P17"})


def _met_another(error: BrokerError) -> bool:
    return isinstance(error, StatementFailed) and error.sqlstate in _MET_ANOTHER


class Pruner(Plugin):
    """Makes the partitions of the days to come, and drops those of days long gone.

    The leader does it, and the others rarely: it may not be the one with the role of the owner.
    Both steps find nothing to do when another was first.

    :param keep_days: days (UTC) for which finished jobs are kept, beside today.
    :param every_s: seconds between two looks of the leader.
    """

    def __init__(self, *, keep_days: int = 7, every_s: float = 3600.0) -> None:
        if keep_days < 1:
            raise ConfigurationError(f"keep_days={keep_days} must be at least 1")
        self.keep_days = keep_days
        self.every_s = every_s

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.pruner"

    async def serve(self, runtime: Runtime) -> None:
        broker = runtime.broker
        if not isinstance(broker, SqlStore):
            return
        while True:
            rarely_s = _RARELY * self.every_s * random.uniform(0.8, 1.2)
            await elected(runtime.leader, runtime.clock, rarely_s)
            try:
                await self.prune(broker)
            except StatementFailed as error:
                if error.sqlstate != _NOT_ALLOWED:
                    raise
                logger.warning(
                    "prune_not_allowed error=%s: let a worker run as the owner of the tables, or "
                    "call make_days and drop_days by a schedule of the database's",
                    error,
                )
                return
            await runtime.clock.sleep(self.every_s * random.uniform(0.8, 1.2))

    async def prune(self, broker: SqlStore) -> list[str]:
        """Make and drop partitions; returns the names of those that were dropped."""
        folder = resources.files(__name__) / "sql"
        dropped: list[str] = []
        for name, days in (("make_days", 7), ("drop_days", self.keep_days)):
            try:
                rows = await broker.fetch(load(folder, name, broker.schema), days)
            except BrokerError as error:
                if not (error.retryable or _met_another(error)):
                    raise
                logger.info("prune_postponed step=%s error=%s", name, error)
                continue
            if name == "drop_days":
                dropped = [row[0] for row in rows]
        if dropped:
            logger.info("pruned partitions=%s", ",".join(dropped))
        return dropped
