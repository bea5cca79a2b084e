"""Finds the settlements of a batch that finish their jobs."""

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
    """The settlements that finish their jobs, read in the transaction that settles the batch.

    A job that is released although it was asked to stop is CANCELLED instead. Its settlement does
    not show that, and it cannot be found out later in a queue that keeps no finished jobs.
    """
    released = [settlement.id for settlement in batch if not settlement.state.final]
    if not released:
        return batch
    stopped = {row[0] for row in await tx.fetch(_stopped(tx.schema), released)}
    return [
        settlement._replace(state=State.CANCELLED) if settlement.id in stopped else settlement
        for settlement in batch
        if settlement.state.final or settlement.id in stopped
    ]
