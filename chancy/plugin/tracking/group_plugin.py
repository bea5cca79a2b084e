"""The base class of plugins that track groups of jobs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.broker.transaction import Transaction
from chancy.checks import check_number
from chancy.clock import Clock
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime
from chancy.plugin.tracking.groups import SQL
from chancy.plugin.tracking.recorded import JobOutcome, RecordedOutcomes
from chancy.plugin.tracking.sweep import GroupSweep
from chancy.states import State

E = TypeVar("E", bound=JobOutcome)
R = TypeVar("R")


class GroupPlugin(Plugin, Generic[R, E]):
    """A plugin that tracks groups of jobs, in the transactions that settle them.

    :param keep_days: days for which ended groups are kept; None: forever.
    :param sweep_s: seconds between two sweeps of the leader.
    :raises ConfigurationError: a setting is out of range.
    """

    #: The groups, in the log.
    groups: ClassVar[str]

    def __init__(self, *, keep_days: int | None = 30, sweep_s: float = 5.0) -> None:
        if keep_days is not None:
            check_number(keep_days, "keep_days", 1, 36_500, unit="days, or None for ever")
        check_number(sweep_s, "sweep_s", 0.05, 86_400, whole=False, unit="seconds")
        self.keep_days = keep_days
        self.sweep_s = sweep_s
        self._outcomes = self._recorded()

    @classmethod
    def get_identifier(cls) -> str:
        return f"chancy.{cls.groups}"

    @abstractmethod
    def _recorded(self) -> RecordedOutcomes[R, E]: ...

    @abstractmethod
    async def _write(self, tx: Transaction, outcomes: Sequence[E]) -> Sequence[E]:
        """Store outcomes in the transaction that settles their jobs, and return those stored."""

    @abstractmethod
    def _sweep(self, broker: Broker, clock: Clock) -> GroupSweep[R, E]: ...

    #: Including states that are not final: releasing a job that was asked to stop cancels it.
    settling_states = frozenset(State)
    settling_claims = False

    def settling_concerns(self, settlement: Settlement) -> bool:
        return settlement.id in self._outcomes

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        outcomes = self._outcomes.outcomes_of(await _finals(tx, batch))
        if outcomes:
            try:
                stored = await self._write(tx, outcomes)
            except BaseException:
                # Only here is it known which of the released jobs are cancelled.
                self._outcomes.mark_unreported(outcomes)
                raise
            self._outcomes.mark_reported(stored)

    def settling_failed(self, batch: Sequence[Settlement]) -> None:
        # The hook may have marked them as reported, or may not have been called. Whether a released
        # job is cancelled is unknown.
        finals = [settlement for settlement in batch if settlement.state.final]
        self._outcomes.mark_unreported(self._outcomes.outcomes_of(finals))

    async def serve(self, runtime: Runtime) -> None:
        if isinstance(runtime.broker, SqlStore):
            await self._sweep(runtime.broker, runtime.clock).serve(runtime, self.sweep_s)


async def _finals(tx: Transaction, batch: Sequence[Settlement]) -> Sequence[Settlement]:
    """The settlements that finish their jobs, read in the transaction that settles the batch.

    A job that is released although it was asked to stop is CANCELLED instead. Its settlement does
    not show that, and it cannot be found out later in a queue that keeps no finished jobs.
    """
    released = [settlement.id for settlement in batch if not settlement.state.final]
    if not released:
        return batch
    stopped = {row[0] for row in await tx.fetch(SQL.statement("stopped", tx.schema), released)}
    return [
        settlement._replace(state=State.CANCELLED) if settlement.id in stopped else settlement
        for settlement in batch
        if settlement.state.final or settlement.id in stopped
    ]
