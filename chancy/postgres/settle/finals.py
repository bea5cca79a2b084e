"""Which settlements end their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

from chancy.attempt.settlement import Settlement
from chancy.broker.transaction import Transaction
from chancy.postgres.statements import load
from chancy.states import State


@lru_cache(maxsize=64)
def _stopped(schema: str) -> str:
    return load(resources.files("chancy.postgres") / "sql", "stopped", schema)


async def finals(tx: Transaction, batch: Sequence[Settlement]) -> Sequence[Settlement]:
    """Those of a batch that do, in the transaction in which it is settled. Of those that should go
    back the ones that were asked to stop are CANCELLED, which their settlements do not say; and
    where no finished jobs are kept, nobody could tell it afterwards."""
    back = [one.id for one in batch if not one.state.final]
    if not back:
        return batch
    stopped = {row[0] for row in await tx.fetch(_stopped(tx.schema), back)}
    return [
        one._replace(state=State.CANCELLED) if one.id in stopped else one
        for one in batch
        if one.state.final or one.id in stopped
    ]
