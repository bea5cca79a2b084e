"""The sweep of groups of jobs: repairs unreported outcomes, and deletes old groups."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Sequence
from contextlib import suppress
from random import uniform
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import BrokerError, StatementFailed
from chancy.plugin.runtime import Runtime
from chancy.plugin.tracking.groups import SQL, GroupCalls
from chancy.plugin.tracking.recorded import BATCH, JobOutcome, RecordedOutcomes
from chancy.states import State

logger = logging.getLogger("chancy.plugin")

#: Recorded attempts that are checked at once: if settlements lag by seconds, most of them are about
#: to be reported.
MAX_CHECKED = 1_000
#: The maximum checks in a row, each of which has reported most of its attempts.
_MOST_CHECKS = 20
#: Seconds for which a job must be missing before it counts as gone. In a queue without history, a
#: succeeded job is not found until its worker reports it, 1 to 4 s later if its hook failed or was
#: skipped.
GONE_S = 15.0
#: The maximum deleting statements of each kind in one turn: 50,000 groups.
MAX_PURGES = 100
#: Seconds between two purges of the leader, unless there is more to purge.
_PURGE_S = 300.0
#: Seconds for outcomes that are not reported when the worker stops, and checks that store none.
_LAST_S, _LAST_CHECKS = 5.0, 12
#: Seconds after which a purge ends: reports of outcomes wait for it.
_PURGING_S = 1.0
#: The number of sweeps and purges of the leader for each of a worker that does not lead. The
#: leader may not have the plugin.
_RARELY = 10

R = TypeVar("R")
E = TypeVar("E", bound=JobOutcome)
Row = Sequence[Any]


class MissingJobs:
    """Jobs that scans of a table did not find anywhere, each with the time of the first miss.

    It keeps the jobs of the current and the previous scan; a job that is found again is dropped.

    :param most: the maximum number of jobs of a scan; others wait until these are handled.
    """

    def __init__(self, clock: Clock, most: int = 20_000) -> None:
        self._clock = clock
        self._most = most
        self._since: dict[UUID, float] = {}
        self._before: dict[UUID, float] = {}

    def __len__(self) -> int:
        return len(self._since) + len(self._before)

    def lasting(self, jobs: Collection[UUID]) -> set[UUID]:
        """Record jobs as missing, and return those first missing at least 15 s ago."""
        now = self._clock.monotonic()
        found: set[UUID] = set()
        for job in jobs:
            since = self._since.get(job, self._before.get(job, now))
            if len(self._since) < self._most:
                self._since[job] = since
            if now - since >= GONE_S:
                found.add(job)
        return found

    def walked(self) -> None:
        """End a scan of the table."""
        self._before, self._since = self._since, {}


class GroupSweep(ABC, Generic[R, E]):
    """Reports outcomes that settlements did not report.

    :param outcomes: the attempts that have ended in this process.
    :param keep_days: days for which ended groups are kept; None: forever.
    """

    calls: ClassVar[type[GroupCalls[Any, Any]]]
    #: The groups, in the log; the statement that deletes members of old groups.
    groups: ClassVar[str]
    forget_members: ClassVar[str]
    #: Seconds between two checks of recorded attempts.
    check_s: ClassVar[float] = 1.0
    #: Rows that one statement scans for missing jobs, and the maximum statements of one turn.
    page: ClassVar[int]
    max_pages: ClassVar[int]
    #: Members without success that one turn scans for replays.
    replays_page: ClassVar[int]

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        outcomes: RecordedOutcomes[R, E],
        *,
        keep_days: float | None,
    ) -> None:
        self._broker = broker
        self._calls = self.calls(broker)
        self._tables = self.calls.sql.on(broker)
        self._shared = SQL.on(broker)
        self._outcomes = outcomes
        self._keep_days = keep_days
        self._clock = clock
        self._missing = MissingJobs(clock)
        self._after: Row = (None, None)
        self._has_replays = False
        self._after_replay: Row = (None, None)
        #: Whether the last purge has ended at its limit.
        self._more_to_purge = False

    @abstractmethod
    def _settled(self, ref: R, row: Row) -> E:
        """The outcome of a recorded attempt, from a row of ``sql/settled.sql`` with a final
        state."""

    @abstractmethod
    async def _missed(self, after: Row) -> Sequence[Row]:
        """The next rows of ``sql/missed.sql``."""

    @abstractmethod
    async def _repair(self, rows: Sequence[Row]) -> int:
        """Report jobs that have ended, from rows of ``sql/missed.sql``, and return how many."""

    @abstractmethod
    def _replay(self, row: Row) -> E | None:
        """The outcome in a row of ``sql/replayed.sql``, if any."""

    async def _stop(self, jobs: Sequence[UUID]) -> None:
        """Cancel jobs that began while their group was being cancelled. A later turn reports those
        that were waiting."""
        await self._contained("stop", self._calls.cancel_members(jobs))

    async def serve(self, runtime: Runtime, every_s: float) -> None:
        """Check, sweep and purge, until cancelled.

        :param every_s: seconds between two sweeps of the leader.
        """
        try:
            await self._serve(runtime, every_s)
        except asyncio.CancelledError:
            await self._store_unreported()
            raise

    async def _store_unreported(self) -> None:
        """Store outcomes that the hook failed to report: in a queue without history, only this
        process has them."""
        idle = 0  # the first check leaves out the latest attempts, others wait for locked groups
        with suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                while self._outcomes.has_unreported and idle < _LAST_CHECKS:
                    idle = 0 if await self.check_recorded() else idle + 1

    async def _serve(self, runtime: Runtime, every_s: float) -> None:
        clock = runtime.clock
        turn_at = purge_at = clock.monotonic()
        while True:
            if len(self._outcomes):
                await self._contained("check", self._check())
            now, leading = clock.monotonic(), runtime.leader.leading
            if leading:  # a new leader does not keep the long pauses of other workers
                turn_at = min(turn_at, now + every_s)
                purge_at = min(purge_at, now + _PURGE_S)
            if leading or now >= turn_at:
                await self._contained("timers", self.ring())
            if now >= turn_at:
                await self._contained("repair", self.turn())
                turn_at = now + (1 if leading else _RARELY) * every_s * uniform(0.8, 1.2)
            if now >= purge_at:
                self._more_to_purge = False
                await self._contained("purge", self.purge())
                pause_s = every_s if self._more_to_purge else _PURGE_S
                if not leading:
                    purge_at = now + _RARELY * pause_s * uniform(0.8, 1.2)
                elif not self._more_to_purge:
                    purge_at = now + pause_s * uniform(0.8, 1.2)
            await clock.sleep(min(self.check_s, every_s))

    async def _check(self) -> None:
        """Check recorded attempts, at once again while many are reported: many settlements may have
        been stored without the hook, and their jobs soon count as gone."""
        for _ in range(_MOST_CHECKS):
            if await self.check_recorded() <= MAX_CHECKED // 2:
                break

    async def _contained(self, part: str, work: Awaitable[object]) -> None:
        """Do a part of the work. If the server refuses it, the others go on."""
        try:
            await work
        except StatementFailed as error:
            if error.retryable:
                raise
            logger.error("sweep_refused of=%s part=%s error=%s", self.groups, part, error)

    async def ring(self) -> None:
        """Handle timeouts that are due, before a turn and at each check of the leader."""

    async def check_recorded(self) -> int:
        """Check attempts recorded before the previous check that were not settled through the hook,
        such as jobs that completed themselves in a transaction.

        :returns: the number of outcomes reported.
        """
        waiting = self._outcomes.age(MAX_CHECKED)
        reported, ids = 0, list(waiting)
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            rows = {row[0]: row for row in await self._tables.fetch("settled", some)}
            outcomes: list[E] = []
            checked: list[UUID] = []
            for id in some:
                row, outcome = rows.get(id), self._outcomes.unreported(id)
                if row is not None:
                    outcome = self._settled(waiting[id], row) if State(row[1]).final else None
                if outcome is not None:
                    outcomes.append(outcome)
                # A job that is running in the table is about to be settled by this process.
                if outcome is not None or row is None or row[1] != State.RUNNING:
                    checked.append(id)
            left = {outcome.job for outcome in await self._calls.report(outcomes)}
            # The sweep finds what the tables have.
            self._outcomes.discard(id for id in checked if id not in left or id in rows)
            reported += len(outcomes) - len(left)
        return reported

    async def turn(self) -> int:
        """Repair the next jobs that are missing from the table of jobs; after the last job, start
        over. Then look up replays.

        :returns: the number of outcomes reported.
        """
        repaired = 0
        for _ in range(self.max_pages):
            rows = await self._missed(self._after)
            repaired += await self._repair(rows)
            last = rows[-1][:2] if rows else (None, None)
            over = not rows or tuple(last) == tuple(self._after)
            self._after = (None, None) if over else last
            if over:
                self._missing.walked()
                break
        repaired += await self._find_replays()
        if repaired:
            logger.warning("outcomes_repaired of=%s count=%d", self.groups, repaired)
        return repaired

    def _gone(self, jobs: Collection[UUID]) -> set[UUID]:
        """Those of missing jobs that count as gone."""
        gone = self._missing.lasting(jobs)
        if gone:
            logger.warning("jobs_gone of=%s count=%d first=%s", self.groups, len(gone), min(gone))
        return gone

    async def _find_replays(self) -> int:
        """Report the next replays of dead letters that have ended, and return how many.

        A replay is a separate job, and no table of the plugin refers to it before it has ended. If
        the hook fails to report it and the worker dies, only its dead letter refers to it. A replay
        that succeeded in a queue without history cannot be found.
        """
        if not self._has_replays:
            ((self._has_replays,),) = await self._shared.fetch("replays")
        if not self._has_replays:
            return 0
        rows = await self._tables.fetch("replayed", *self._after_replay, self.replays_page)
        outcomes = [outcome for row in rows if (outcome := self._replay(row)) is not None]
        left = await self._calls.report(outcomes)
        self._after_replay = rows[-1][:2] if len(rows) == self.replays_page else (None, None)
        return len(outcomes) - len(left)

    async def purge(self) -> int:
        """Delete groups that ended over ``keep_days`` ago, and return how many."""
        if self._keep_days is None:
            return 0
        age_s = self._keep_days * 86_400.0
        purged = 0
        until = self._clock.monotonic() + _PURGING_S
        # Alternately, because both statements scan only the oldest groups.
        for _ in range(MAX_PURGES):
            ((members,),) = await self._tables.fetch(self.forget_members, age_s, 10 * BATCH)
            ((count,),) = await self._tables.fetch("forget", age_s, BATCH)
            purged += count
            if not members and not count:
                break
            if self._clock.monotonic() > until:
                self._more_to_purge = True
                break
        else:
            self._more_to_purge = True
        if purged:
            logger.info("groups_purged of=%s count=%d", self.groups, purged)
        return purged
