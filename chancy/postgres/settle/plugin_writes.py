"""Gives plugins their place in the transaction that settles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from chancy.attempt.settlement import Settlement
from chancy.broker.transaction import TransactionHook
from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import Connection

logger = logging.getLogger("chancy.postgres")

#: Seconds that a statement of a plugin, and all that one plugin does for a batch, may take.
STATEMENT_S = 5.0
PLUGIN_S = 10.0

_BOUND = "select current_setting('statement_timeout'), set_config('statement_timeout', $1, true)"


class PluginTransaction:
    """What a plugin sees of the session: see `chancy.broker.transaction.Transaction`."""

    def __init__(self, session: Connection, schema: str) -> None:
        self._session = session
        self.schema = schema

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        return await self._session.fetch(sql, *params, deadline_s=STATEMENT_S * 2)


class PluginWrites:
    """Lets plugins write, each in a savepoint."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        # Plugins that took the session along with them: left out when the batch is settled again,
        # which would otherwise never come to an end.
        self._failed: set[str] = set()

    def wanted(
        self, inside: Sequence[TransactionHook], batch: Sequence[Settlement]
    ) -> list[TransactionHook]:
        """Those that want to hear of a settlement of this batch."""
        if not inside:
            return []
        states = {settlement.state for settlement in batch}
        return [
            one
            for one in inside
            if one.states & states
            and one.name not in self._failed
            and (one.concerns is None or one.wanted(batch))
        ]

    async def write(
        self, session: Connection, wanted: Sequence[TransactionHook], accepted: Sequence[Settlement]
    ) -> None:
        """Let each write. Raises `BrokerUnavailable` if the session is lost."""
        for one in wanted:
            batch = one.wanted(accepted)
            if batch:
                await self._write(session, one, batch)

    async def _write(
        self, session: Connection, one: TransactionHook, batch: list[Settlement]
    ) -> None:
        await session.fetch("savepoint inside")
        ((usual, _),) = await session.fetch(_BOUND, str(int(STATEMENT_S * 1000)))
        try:
            async with asyncio.timeout(PLUGIN_S):
                await one.write(PluginTransaction(session, self._schema), batch)
        except Exception as error:
            logger.exception("settling_failed plugin=%s settlements=%d", one.name, len(batch))
            if session.closed:
                self._failed.add(one.name)
                raise BrokerUnavailable(
                    f"the plugin {one.name} lost the session of the settlements: {error}"
                ) from error
            await session.fetch("rollback to savepoint inside")
        else:
            # The commit must not fall under it.
            await session.fetch(_BOUND, usual)
        await session.fetch("release savepoint inside")

    def forgive(self, inside: Sequence[TransactionHook], batch: Sequence[Settlement]) -> None:
        """A batch was settled: those that were left out of it may write again."""
        if self._failed:
            states = {settlement.state for settlement in batch}
            self._failed.difference_update(one.name for one in inside if one.states & states)
