"""Outcomes of jobs of batches: found among settlements, and written to the tables of batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.plugin.tables import PluginSql
from chancy.plugin.tracking.recorded import RecordedOutcomes
from chancy.states import State

SQL = PluginSql("chancy.plugins.batch", "batches")

#: The key of a job's meta that names its batch.
KEY = "batch"
#: How the meta of a batch's job begins, as jsonb is printed.
_MARK = f'"{KEY}": {{"id": "'
#: The length of meta that holds nothing else.
_PLAIN = len(f"{{{_MARK}") + 36 + len('"}}')
_SUCCEEDED = int(State.SUCCEEDED)


class BatchRef(NamedTuple):
    """The batch that a job belongs to.

    :param root: the job whose dead letter it is a replay of; None if it is not a replay.
    """

    batch: UUID
    root: UUID | None


class BatchJobOutcome(NamedTuple):
    """The outcome of a job of a batch.

    :param state: a final one.
    """

    ref: BatchRef
    job: UUID
    state: int

    @property
    def group(self) -> UUID:
        return self.ref.batch


@lru_cache(maxsize=1_000)
def _first(text: str) -> BatchRef:
    return BatchRef(UUID(text), None)


def ref_of(meta: str | None) -> BatchRef | None:
    """The batch that a job with this meta belongs to; None if none, or if the meta is malformed."""
    if meta is None or _MARK not in meta:
        return None
    return _plain(meta) if len(meta) == _PLAIN else _parsed(meta)


def _parsed(meta: str) -> BatchRef | None:
    try:
        data = json.loads(meta)
        batch, dead_letters = data[KEY]["id"], data.get("dead_letters")
        if isinstance(dead_letters, dict):
            return BatchRef(UUID(batch), UUID(dead_letters["replay_of"]))
        return _first(batch)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


#: All jobs of a batch whose meta holds nothing else have the same meta.
_plain = lru_cache(maxsize=1_000)(_parsed)


class BatchOutcomes(RecordedOutcomes[BatchRef, BatchJobOutcome]):
    """Attempts of jobs of batches that have ended in this process and are not settled yet."""

    def _outcome(self, ref: BatchRef, settlement: Settlement) -> BatchJobOutcome:
        # Bypasses the constructor of the NamedTuple, as nearly all outcomes are made here.
        return _new(BatchJobOutcome, (ref, settlement.id, int(settlement.state)))


_new = tuple.__new__


def _order(outcome: BatchJobOutcome) -> tuple[int, int]:
    return outcome.ref.batch.int, outcome.job.int


def settle_statement(schema: str, outcomes: Sequence[BatchJobOutcome]) -> tuple[Any, ...]:
    """The statement, with its parameters, that stores outcomes in the transaction that settles
    their jobs.

    :param outcomes: at least one.
    """
    ref = outcomes[0].ref
    # Jobs of one batch share the object, as long as it is cached.
    if ref.root is None and all(
        outcome.state == _SUCCEEDED and outcome.ref is ref for outcome in outcomes
    ):
        return SQL.statement("settle_one", schema), ref.batch, [outcome.job for outcome in outcomes]
    return SQL.statement("settle", schema), *settle_parameters(outcomes)


def settle_parameters(outcomes: Sequence[BatchJobOutcome]) -> tuple[Any, ...]:
    """The parameters of the statements that store outcomes of any kind."""
    ordered = sorted(outcomes, key=_order)
    replays = any(outcome.ref.root is not None for outcome in ordered)
    return (
        [outcome.ref.batch for outcome in ordered],
        [outcome.job for outcome in ordered],
        [outcome.state for outcome in ordered],
        [outcome.ref.root for outcome in ordered] if replays else None,
    )
