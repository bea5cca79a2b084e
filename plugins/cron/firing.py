"""Firing ticks: read due entries, compute their ticks, and write them in one statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker.sizes import CHUNK_SIZE, pieces
from chancy.errors import BrokerError, StatementFailed
from chancy.job.ids import new_id
from chancy.plugin.pushing import PrepareStored, PushWay
from chancy.plugin.pushing import columns as job_columns
from chancy.plugins.cron.entry import Overlap, job_of
from chancy.plugins.cron.misfire import MAX_BACKFILL, Misfire, due
from chancy.plugins.cron.store import DueEntry, Entries
from chancy.schedule import Schedule, jitter_s
from chancy.text import shown

logger = logging.getLogger("chancy.cron")

#: The most entries read by one statement.
BATCH = 200
#: The most ticks fired by one statement.
TICKS = MAX_BACKFILL
#: The SQLSTATE of `raise exception`, with which a trigger refuses a job. Other errors are those of
#: an entry.
_RAISED = "P0001"
#: Seconds after which an entry that cannot be fired is tried again.
AGAIN_S = 300.0
#: The same while the broker of its queue is unavailable; and the stored problem.
AWAY_S = 2.0
_UNKNOWN = "the broker of its queue does not respond, so the state of its last job is unknown"
#: The shortest pause while entries are due: another worker may be firing them. It doubles up to the
#: longest one while none can be fired, since their rows are locked.
_SHORTEST_S, _LONGEST_S = 0.02, 1.0


class Tick(NamedTuple):
    """One tick to record.

    :param changed: the columns of its job that plugins have changed; None: as in the entry.
    :param refused: whether a plugin, or its trigger, refuses the job.
    """

    entry: str
    tick: datetime
    job_id: UUID
    run_at: datetime | None
    missed: int
    late: bool
    changed: str | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class FiringPlan:
    """The ticks to fire for an entry.

    :param passed_at: the newest tick that has passed; None: none has. Before it, if a statement
        cannot fire all ticks: the entry is due again at once then.
    :param size: the share of its ticks in a statement; see `chancy.broker.sizes.pieces`.
    """

    name: str
    revision: int
    passed_at: datetime | None
    following_at: datetime
    ticks: Sequence[Tick]
    size: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that cannot be fired because its row is not valid."""

    name: str
    revision: int
    problem: str


def plan(row: Sequence[Any]) -> FiringPlan | Unreadable:
    """Plan the ticks for a row of ``sql/due.sql``. Never raises."""
    name, revision, *_ = row
    try:
        return _plan(*row)
    except Exception as error:
        # An invalid row must not stop the other entries.
        return Unreadable(name, revision, f"{type(error).__name__}: {error}"[:500])


def _plan(
    name: str,
    revision: int,
    expression: str,
    zone: str,
    misfire: str,
    overlap: str,
    grace_s: float,
    backfill_limit: int,
    most_jitter_s: float,
    since: datetime,
    now: datetime,
    job_bytes: int,
) -> FiringPlan:
    since, now = since.replace(tzinfo=UTC), now.replace(tzinfo=UTC)
    Overlap(overlap)
    schedule = _schedule(expression, zone)
    found = due(
        schedule,
        since,
        now,
        Misfire(misfire),
        backfill_limit=backfill_limit,
        grace_s=grace_s,
    )
    passed_at = found.last if found.fire or found.dropped else None
    # If the clock was set back, the last tick counts.
    following_at = schedule.next_after(max(found.last, now))
    share = max(job_bytes, CHUNK_SIZE // TICKS)
    fire = found.fire[: max(CHUNK_SIZE // share, 1)]
    if len(fire) < len(found.fire):
        passed_at, following_at = fire[-1], now
    ticks = []
    for number, tick in enumerate(fire):
        delay_s = jitter_s(name, tick, most_jitter_s)
        run_at = tick + timedelta(seconds=delay_s) if delay_s else None
        missed = found.dropped if number == 0 else 0
        ticks.append(Tick(name, tick, new_id(), run_at, missed, False))
    if passed_at is not None and not ticks:
        ticks.append(Tick(name, passed_at, new_id(), None, found.dropped - 1, True))
    return FiringPlan(name, revision, passed_at, following_at, ticks, share * len(ticks))


@lru_cache(maxsize=1_000)
def _schedule(expression: str, zone: str) -> Schedule:
    return Schedule(expression, zone)


def columns(plans: Sequence[FiringPlan], busy: Collection[str] = ()) -> list[list[object]]:
    """The parameters of ``sql/fire.sql``.

    :param busy: names of entries with an unfinished job in another broker.
    """
    ticks = [tick for plan in plans for tick in plan.ticks]
    values: list[list[object]] = [[t[at] for t in ticks] for at in range(len(Tick._fields))]
    *times, changed, refused = values
    return [
        [plan.name for plan in plans],
        [plan.revision for plan in plans],
        [plan.passed_at for plan in plans],
        [plan.following_at for plan in plans],
        *times,
        [plan.name in busy for plan in plans],
        changed,
        refused,
    ]


class Firing:
    """Fires the ticks of the entries of one application.

    Safe to run concurrently in any number of processes with any clocks: times are the server's,
    and an entry that has changed since it was read is skipped.

    :param keep: ticks of each entry to keep in the history.
    :param names: entries in the code of this process, which fires them even if they have lapsed.
    :param prepare: see `Runtime.prepare_stored`.
    """

    def __init__(
        self,
        entries: Entries,
        *,
        keep: int,
        names: Sequence[str] = (),
        prepare: PrepareStored | None = None,
    ) -> None:
        self._entries = entries
        self._prepare = prepare
        self._keep = keep
        self._names = names
        self._pause_s = _SHORTEST_S
        #: Due entries for the next step to skip, since the last ones could not fire them.
        self._passed = 0
        # Not a thread of the event loop: jobs may block all of these.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chancy cron")

    def close(self) -> None:
        """Let the thread end after the ticks that it is computing. Does not wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def step(self) -> float:
        """Fire the due ticks of at most `BATCH` entries; returns seconds until the next step.

        :raises BrokerError: the server is unavailable, or refuses a statement for a reason other
            than an entry.
        """
        passed, self._passed = self._passed, 0
        entries, wait_s = await self._entries.due(BATCH, self._names, passed)
        if not entries and not passed:
            return float("inf") if wait_s is None else max(wait_s, _SHORTEST_S)
        rows, busy = await self._check_overlaps(entries)
        # In a thread: computing the ticks of a long outage may take seconds.
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(self._thread, lambda: [plan(row) for row in rows])
        for result in results:
            if isinstance(result, Unreadable):
                await self._reject(result)
        plans = [result for result in results if isinstance(result, FiringPlan)]
        advanced = 0
        for batch in pieces(plans, attrgetter("size"), BATCH):
            if self._prepare is not None:
                batch = [await self._changed(plan, self._prepare) for plan in batch]
            advanced += await self._fire(batch, busy)
        if fired := [plan.name for plan in plans if plan.ticks]:
            await self._entries.prune(fired, self._keep)
        if len(entries) == BATCH:  # others may be due behind those that are locked
            self._passed = passed + len(rows) - advanced
            return _SHORTEST_S
        self._pause_s = _SHORTEST_S if advanced else min(2 * self._pause_s, _LONGEST_S)
        return self._pause_s if wait_s is None else max(min(self._pause_s, wait_s), _SHORTEST_S)

    async def _check_overlaps(
        self, entries: Sequence[DueEntry]
    ) -> tuple[list[Sequence[Any]], frozenset[str]]:
        """Ask other brokers about the jobs of entries whose ticks must not overlap.

        Returns the rows of entries that can be fired, and the names of entries with an unfinished
        job. While a broker is unavailable its entries wait; their misfire policy then applies to
        the missed ticks.
        """
        rows = [entry.row for entry in entries if not entry.jobs]
        external = [entry for entry in entries if entry.jobs]
        if not external:
            return rows, frozenset()
        try:
            live = await self._entries.unfinished({id for entry in external for id in entry.jobs})
        except BrokerError as error:
            for name, revision, *_ in (entry.row for entry in external):
                if await self._entries.reject(name, revision, _UNKNOWN, again_s=AWAY_S):
                    logger.warning("cron_postponed entry=%s error=%s", shown(name), error)
            return rows, frozenset()
        busy = frozenset(entry.row[0] for entry in external if not live.isdisjoint(entry.jobs))
        return [*rows, *(entry.row for entry in external)], busy

    async def _changed(self, plan: FiringPlan, prepare: PrepareStored) -> FiringPlan:
        """A plan whose ticks have passed the plugins. A tick that one refuses is skipped."""
        entry = await self._entries.get(plan.name) if plan.ticks else None
        if entry is None:
            return plan
        ticks: list[Tick] = []
        for tick in plan.ticks:
            try:
                prepared = None if tick.late else prepare(job_of(entry), PushWay.CRON)
            except Exception as error:
                logger.warning("cron_refused entry=%s error=%s", shown(plan.name), error)
                ticks.append(tick._replace(refused=True))
            else:
                changed = None if prepared is None else job_columns(prepared)
                ticks.append(tick._replace(changed=changed))
        return replace(plan, ticks=ticks)

    async def _fire(self, plans: Sequence[FiringPlan], busy: frozenset[str]) -> int:
        """Fire ticks; returns how many entries were advanced: those whose rows were not locked, and
        that no other worker has advanced."""
        try:
            rows = await self._entries.fire(*columns(plans, busy))
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(plans) == 1:
                [plan] = plans
                if error.sqlstate == _RAISED and not all(tick.refused for tick in plan.ticks):
                    logger.warning("cron_refused entry=%s error=%s", shown(plan.name), error)
                    ticks = [tick._replace(refused=True) for tick in plan.ticks]
                    return await self._fire([replace(plan, ticks=ticks)], busy)
                await self._reject(Unreadable(plan.name, plan.revision, str(error)[:500]))
                return 1
            return sum([await self._fire([plan], busy) for plan in plans])
        fired = [row for row in rows if row[2] is not None]
        skipped = [row for row in rows if row[3] is not None]
        for name, tick, _, why, _ in skipped:
            logger.info("cron_skipped entry=%s tick=%s why=%s", name, tick.isoformat(), why)
        if fired:
            names = ",".join(dict.fromkeys(row[0] for row in fired))
            logger.info("cron_fired ticks=%d entries=%s", len(fired), names)
        return len({row[0] for row in rows})

    async def _reject(self, entry: Unreadable) -> None:
        if await self._entries.reject(entry.name, entry.revision, entry.problem, again_s=AGAIN_S):
            logger.error("cron_entry_invalid entry=%s problem=%s", shown(entry.name), entry.problem)
