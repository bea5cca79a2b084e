"""Vacuums the table of live jobs after a failover."""

from __future__ import annotations

import logging
import random

from chancy.broker.optional import SqlStore
from chancy.clock import Clock
from chancy.errors import BrokerError
from chancy.plugin.leader import LeaderGate, elected
from chancy.plugins.pruner.sweep import SQL

logger = logging.getLogger("chancy.pruner")

#: Seconds between two looks of the leader, and looks of it for one of another worker.
_LOOK_S, _RARELY = 5.0, 60


async def vacuum_after_failovers(broker: SqlStore, clock: Clock, leader: LeaderGate) -> None:
    """Vacuum the table once whenever its server has lost its statistics.

    A promoted standby does not know the free pages of indexes, and autovacuum does not know of dead
    rows: until the first vacuum, the files grow by all that is written.
    """
    tables, tried = SQL.on(broker), False
    while True:
        await clock.sleep(_LOOK_S * random.uniform(0.8, 1.2))
        await elected(leader, clock, _RARELY * _LOOK_S * random.uniform(0.8, 1.2))
        try:
            lost = bool((await tables.fetch("unvacuumed"))[0][0])
            if lost and not tried:
                await tables.fetch("vacuum")
                logger.info("live_table_vacuumed")
            tried = lost
        except BrokerError as error:
            logger.info("prune_postponed step=vacuum error=%s", error)
