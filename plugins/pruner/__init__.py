"""Pruner: deletes old finished jobs by days and by rules."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from chancy.broker.optional import SqlStore, sql_stores
from chancy.checks import check_number
from chancy.clock import Clock
from chancy.errors import BrokerError, ConfigurationError, StatementFailed
from chancy.plugin.leader import LeaderGate, elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime
from chancy.plugins.pruner.rule import Prune
from chancy.plugins.pruner.sweep import SQL, PrunerSweep
from chancy.postgres.schema.component import Migrations, RoleKind
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = ["Prune", "Pruner"]

logger = logging.getLogger("chancy.pruner")

#: SQLSTATE insufficient_privilege.
_NOT_ALLOWED = "42501"
#: Turns of the leader for one turn of another worker: partitions are created a week ahead.
_RARELY = 8
#: SQLSTATEs of a concurrent change: another process created the partition, or rows were inserted
#: into the default partition.
_CONCURRENT = frozenset({"23505", "23514", "42P07", "42P17"})
#: The maximum number of rules, because each one scans the history separately.
MAX_RULES = 100
#: Days ahead for which partitions are created.
_DAYS_AHEAD = 7
#: Seconds between two checks of the leader for lost statistics, and such checks for each check of
#: another worker.
VACUUM_LOOK_S, _VACUUM_RARELY = 5.0, 60
#: The maximum expired rows of waiting callers that are deleted in one turn.
_MAX_AWAITED = 10_000


def _until(clock: Clock, due: float, leader: LeaderGate | None) -> Callable[[], bool]:
    """A condition that holds until the next turn is due, and while the leader still leads.

    A long scan must not delay the partitions.
    """
    return lambda: clock.monotonic() < due and (leader is None or leader.leading)


class Pruner(Plugin):
    """Creates partitions for the next days, drops old ones, deletes finished jobs by rules, and
    vacuums the table of live jobs after a failover.

    The leader does this often, and the other workers rarely, because the leader's role may not own
    the tables. Every step is safe to run concurrently.

    :param keep_days: days (UTC) to keep finished jobs, in addition to today.
    :param every_s: seconds between two turns of the leader.
    :param rules: at most 100; a job that matches one of them is deleted before its day is dropped.
    :raises ConfigurationError: a setting is out of range, or a rule is not a `Prune`.
    """

    def __init__(
        self, *, keep_days: int = 7, every_s: float = 3600.0, rules: Sequence[Prune] = ()
    ) -> None:
        check_number(keep_days, "keep_days", 1, 36_500, unit="days")
        check_number(every_s, "every_s", 0.01, 86_400, whole=False, unit="seconds")
        self.keep_days = keep_days
        self.every_s = every_s
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Prune):
                raise ConfigurationError(f"{shown(rule)} is not a rule: pass Prune(…)")
        if len(self.rules) > MAX_RULES:
            raise ConfigurationError(f"{len(self.rules):,} rules: pass at most {MAX_RULES}")

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

        plugin: Any = self  # type checkers see the symlink to this folder as another module
        return [prune_command(plugin)]

    async def serve(self, runtime: Runtime) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for store in sql_stores(runtime.broker).values():
                    group.create_task(self._serve(store, runtime.clock, runtime.leader))
                    group.create_task(vacuum_after_failovers(store, runtime.clock, runtime.leader))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the service is restarted with all of them

    async def _serve(self, broker: SqlStore, clock: Clock, leader: LeaderGate) -> None:
        sweep = PrunerSweep(broker, self.rules)
        days, rules = True, bool(self.rules)
        while True:
            rarely_s = _RARELY * self.every_s * random.uniform(0.8, 1.2)
            led = await elected(leader, clock, rarely_s)
            due = clock.monotonic() + self.every_s * random.uniform(0.8, 1.2)
            days = days and await self._try_days(broker)
            await self.check_today(broker)
            rules = rules and await self._try_rules(
                sweep, clock.sleep, _until(clock, due, leader if led else None)
            )
            await clock.sleep(max(due - clock.monotonic(), 0.0))

    async def _try_days(self, broker: SqlStore) -> bool:
        """Create and drop partitions; returns whether this role has the privilege."""
        try:
            await self.prune(broker)
        except StatementFailed as error:
            if error.sqlstate != _NOT_ALLOWED:
                raise
            logger.warning(
                "prune_not_allowed error=%s: run a worker as the owner of the tables, or call "
                "make_days and drop_days from a scheduler in the database",
                error,
            )
            return False
        return True

    async def _try_rules(
        self,
        sweep: PrunerSweep,
        pause: Callable[[float], Awaitable[None]],
        should_continue: Callable[[], bool],
    ) -> bool:
        """Apply the rules; returns whether this role has the privilege."""
        try:
            await sweep.turn(pause, should_continue)
        except BrokerError as error:
            if isinstance(error, StatementFailed) and error.sqlstate == _NOT_ALLOWED:
                logger.warning(
                    "prune_rules_not_allowed error=%s: the rules need the DELETE privilege on "
                    "finished_jobs: grant it, or run `chancy prune` as a role that has it",
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

    async def prune(self, broker: SqlStore, *, strict: bool = False) -> list[str]:
        """Create and drop partitions; returns the names of the dropped ones.

        :param strict: raise errors that would postpone work to the next turn, such as a lock
            timeout.
        """
        # Each day has its own transaction, because settlements wait for the transaction that
        # creates it. A day that fails, for example because it takes long to move its rows from the
        # default partition, delays no others.
        failed: BrokerError | None = None
        for ahead in range(_DAYS_AHEAD + 1):
            try:
                await self._step(broker, "make_days", ahead, strict=strict)
            except BrokerError as error:
                if not error.retryable:
                    raise
                failed = failed or error
        dropped: dict[str, None] = {}
        while found := await self._step(broker, "drop_days", self.keep_days, strict=strict):
            # A partition, or a batch of rows of the default one, in each transaction.
            dropped |= dict.fromkeys(row[0] for row in found)
        await self._step(broker, "forget_awaited", _MAX_AWAITED)
        if dropped:
            logger.info("pruned partitions=%s", ",".join(dropped))
        if failed is not None:
            raise failed
        return list(dropped)

    async def check_today(self, broker: SqlStore) -> None:
        """Log a warning if today's finished jobs go to the default partition."""
        for (name,) in await self._step(broker, "missing_today") or ():
            logger.warning(
                "partition_missing name=%s: finished jobs of today go to finished_jobs_default",
                name,
            )

    async def _step(
        self, broker: SqlStore, name: str, *numbers: int, strict: bool = False
    ) -> Sequence[Sequence[Any]] | None:
        """Run one statement; returns None if it is left for the next turn."""
        try:
            return await SQL.on(broker).fetch(name, *numbers)
        except BrokerError as error:
            concurrent = isinstance(error, StatementFailed) and error.sqlstate in _CONCURRENT
            if not concurrent and (strict or not error.retryable):
                raise
            logger.info("prune_postponed step=%s error=%s", name, error)
            return None

    async def apply(
        self, broker: SqlStore, pause: Callable[[float], Awaitable[None]], *, dry_run: bool = False
    ) -> list[int]:
        """Apply every rule once; returns the number of deleted jobs for each rule, in order.

        :param pause: sleeps the given number of seconds; called after each statement.
        :param dry_run: only count. A job that matches several rules counts for each of them; jobs
            of days that `prune` would drop are left out.
        :raises BrokerError: a statement failed. Jobs that were deleted before it stay deleted.
        """
        floor = datetime(1970, 1, 1, tzinfo=UTC)
        if dry_run:
            ((now,),) = await SQL.on(broker).fetch("now")
            first = now.astimezone(UTC) - timedelta(days=self.keep_days)
            floor = first.replace(hour=0, minute=0, second=0, microsecond=0)
        sweep = PrunerSweep(broker, self.rules, remove=not dry_run, floor=floor)
        await sweep.turn(pause, lambda: True)
        return [sweep.removed.get(number, 0) for number in range(len(self.rules))]


async def vacuum_after_failovers(broker: SqlStore, clock: Clock, leader: LeaderGate) -> None:
    """Vacuum the table once whenever its server has lost its statistics.

    A promoted standby does not know the free pages of indexes, and autovacuum does not know the
    dead rows, so until the first vacuum every write extends the files. A vacuum that fails, or is
    not allowed, is left to autovacuum.
    """
    tables, tried = SQL.on(broker), False

    async def lost() -> bool:
        rows = await tables.fetch("unvacuumed")
        return bool(rows and rows[0][0])

    while True:
        await clock.sleep(VACUUM_LOOK_S * random.uniform(0.8, 1.2))
        await elected(leader, clock, _VACUUM_RARELY * VACUUM_LOOK_S * random.uniform(0.8, 1.2))
        with suppress(BrokerError):  # the loops that serve jobs log an outage
            if not await lost():
                tried = False
            elif not tried:
                tried = True
                await tables.fetch("vacuum")
                if not await lost():
                    logger.info("live_table_vacuumed")
