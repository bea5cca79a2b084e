"""Pruner: the history of finished jobs is kept for a number of days, or as rules say."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from chancy.broker.optional import SqlStore
from chancy.clock import Clock
from chancy.errors import BrokerError, ConfigurationError, StatementFailed
from chancy.plugin.leader import LeaderGate, elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime
from chancy.plugins.pruner.rule import Prune
from chancy.plugins.pruner.sweep import PrunerSweep, statement
from chancy.postgres.schema.component import Migrations, RoleKind
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = ["Prune", "Pruner"]

logger = logging.getLogger("chancy.pruner")

_NOT_ALLOWED = "42501"
#: Turns of the leader for one of a worker that does not lead: the days to come are made for a week.
_RARELY = 8
# The partition was made, or rows came into the default one, at the same moment.
_MET_ANOTHER = frozenset({"23505", "23514", "42P07", "42P17"})
#: The most rules: each is a walk of its own through the history.
MAX_RULES = 100
#: Rows of those who waited for jobs that are forgotten in one turn.
_FORGOTTEN = 10_000


def _met_another(error: BrokerError) -> bool:
    return isinstance(error, StatementFailed) and error.sqlstate in _MET_ANOTHER


def _until(clock: Clock, due: float, leader: LeaderGate | None) -> Callable[[], bool]:
    """Whether to go on: the days must not wait for a long walk, nor may a leader who is none."""
    return lambda: clock.monotonic() < due and (leader is None or leader.leading)


def _not_allowed(error: StatementFailed) -> bool:
    return error.sqlstate == _NOT_ALLOWED


class Pruner(Plugin):
    """Makes the partitions of the days to come, drops those of days long gone, and removes what
    rules do not keep for so long.

    The leader does it, and the others rarely: it may not be the one with the role of the owner.
    All steps find nothing to do when another was first.

    :param keep_days: days (UTC) for which finished jobs are kept, beside today.
    :param every_s: seconds between two looks of the leader.
    :param rules: what goes before its day is dropped; a job goes when one of them means it.
    """

    def __init__(
        self, *, keep_days: int = 7, every_s: float = 3600.0, rules: Sequence[Prune] = ()
    ) -> None:
        if keep_days < 1:
            raise ConfigurationError(f"keep_days={keep_days} must be at least 1")
        self.keep_days = keep_days
        self.every_s = every_s
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Prune):
                raise ConfigurationError(f"{shown(rule)} is not a rule: write Prune(…)")
        if len(self.rules) > MAX_RULES:
            raise ConfigurationError(f"{len(self.rules):,} rules are more than {MAX_RULES}")

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.pruner"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="pruner",
            package="chancy.plugins.pruner.migrations",
            head="0001",
            core_grants={RoleKind.WORKER: {"finished_jobs": "delete"}} if self.rules else {},
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.pruner.commands import prune_command

        own: Any = self  # type checkers take the link to this folder for another module
        return [prune_command(own)]

    async def serve(self, runtime: Runtime) -> None:
        broker, clock, leader = runtime.broker, runtime.clock, runtime.leader
        if not isinstance(broker, SqlStore):
            return
        sweep = PrunerSweep(broker, self.rules)
        days, rules = True, bool(self.rules)
        while days or rules:
            rarely_s = _RARELY * self.every_s * random.uniform(0.8, 1.2)
            led = await elected(leader, clock, rarely_s)
            due = clock.monotonic() + self.every_s * random.uniform(0.8, 1.2)
            days = days and await self._try_days(broker)
            rules = rules and await self._try_rules(
                sweep, clock.sleep, _until(clock, due, leader if led else None)
            )
            await clock.sleep(max(due - clock.monotonic(), 0.0))

    async def _try_days(self, broker: SqlStore) -> bool:
        """Make and drop partitions; returns whether this role may."""
        try:
            await self.prune(broker)
        except StatementFailed as error:
            if not _not_allowed(error):
                raise
            logger.warning(
                "prune_not_allowed error=%s: let a worker run as the owner of the tables, or "
                "call make_days and drop_days by a schedule of the database's",
                error,
            )
            return False
        return True

    async def _try_rules(
        self,
        sweep: PrunerSweep,
        pause: Callable[[float], Awaitable[None]],
        goes_on: Callable[[], bool],
    ) -> bool:
        """Apply the rules; returns whether this role may."""
        try:
            await sweep.turn(pause, goes_on)
        except BrokerError as error:
            if isinstance(error, StatementFailed) and _not_allowed(error):
                logger.warning(
                    "prune_rules_not_allowed error=%s: the rules need the right to delete from "
                    "finished_jobs; grant it, or run `chancy prune` under a role that has it",
                    error,
                )
                return False
            if not error.retryable:
                raise
            logger.info("prune_postponed step=rules error=%s", error)
        finally:
            for number, removed in sweep.removed.items():
                if removed:
                    logger.info("pruned_jobs jobs=%d rule=%s", removed, self.rules[number])
            sweep.removed.clear()
        return True

    async def prune(self, broker: SqlStore) -> list[str]:
        """Make and drop partitions; returns the names of those that were dropped."""
        dropped: list[str] = []
        for name, number in (
            ("make_days", 7),
            ("drop_days", self.keep_days),
            ("forget_awaited", _FORGOTTEN),
        ):
            try:
                rows = await broker.fetch(statement(name, broker.schema), number)
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

    async def apply(
        self, broker: SqlStore, pause: Callable[[float], Awaitable[None]], *, dry_run: bool = False
    ) -> list[int]:
        """Apply every rule once; returns how many jobs each has removed, in their order.

        :param pause: waits for so many seconds, between two statements.
        :param dry_run: count them only. A job that several rules mean counts for each; those of
            days that `prune` would drop are left out.
        :raises BrokerError: what was removed before stays removed.
        """
        floor = datetime(1970, 1, 1, tzinfo=UTC)
        if dry_run:
            ((now,),) = await broker.fetch(statement("now", broker.schema))
            first = now.astimezone(UTC) - timedelta(days=self.keep_days)
            floor = first.replace(hour=0, minute=0, second=0, microsecond=0)
        sweep = PrunerSweep(broker, self.rules, remove=not dry_run, floor=floor)
        await sweep.turn(pause, lambda: True)
        return [sweep.removed.get(number, 0) for number in range(len(self.rules))]
