"""The firing of ticks: what is due is read, worked out, and written in one statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from chancy.errors import BrokerError, StatementFailed
from chancy.job.ids import new_id
from chancy.plugins.cron.entry import Overlap
from chancy.plugins.cron.misfire import MAX_BACKFILL, Misfire, due
from chancy.plugins.cron.store import DueEntry, Entries
from chancy.schedule import Schedule, jitter_s
from chancy.text import shown

logger = logging.getLogger("chancy.cron")

#: Entries that are read together.
BATCH = 200
#: Ticks that are fired by one statement, unless one entry alone has more.
TICKS = MAX_BACKFILL
#: Seconds after which an entry that cannot be fired is looked at again.
AGAIN_S = 300.0
#: The same, where nobody can say for the moment whether its last job has ended; and what is said.
AWAY_S = 2.0
_UNKNOWN = (
    "its queue is with a broker that does not answer: whether its last job has ended is unknown"
)
#: The shortest pause while something is due: another worker may be at it.
_SHORTEST_S = 0.02


class Tick(NamedTuple):
    """One tick to write down."""

    entry: str
    tick: datetime
    job_id: UUID
    run_at: datetime | None
    missed: int
    late: bool


_NO_TICKS: Sequence[Sequence[object]] = [[]] * len(Tick._fields)


@dataclass(frozen=True, slots=True)
class FiringPlan:
    """What to do about an entry at one moment.

    :param passed_at: the newest tick that has passed; None: none has.
    """

    name: str
    revision: int
    passed_at: datetime | None
    following_at: datetime
    ticks: Sequence[Tick]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that cannot be fired as it stands, because somebody wrote into its row."""

    name: str
    revision: int
    problem: str


def plan(row: Sequence[Any]) -> FiringPlan | Unreadable:
    """What to do about an entry of a row of the statement ``due``. Never raises."""
    name, revision, *_ = row
    try:
        return _plan(*row)
    except Exception as error:
        # Whatever it is that somebody wrote: the other entries must go on.
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
    ticks = []
    for number, tick in enumerate(found.fire):
        delay_s = jitter_s(name, tick, most_jitter_s)
        run_at = tick + timedelta(seconds=delay_s) if delay_s else None
        missed = found.dropped if number == 0 else 0
        ticks.append(Tick(name, tick, new_id(), run_at, missed, False))
    if passed_at is not None and not ticks:
        ticks.append(Tick(name, passed_at, new_id(), None, found.dropped - 1, True))
    # A clock that went back is behind the last tick, which counts.
    following_at = schedule.next_after(max(found.last, now))
    return FiringPlan(name, revision, passed_at, following_at, ticks)


@lru_cache(maxsize=1_000)
def _schedule(expression: str, zone: str) -> Schedule:
    return Schedule(expression, zone)


def batches(plans: Iterable[FiringPlan]) -> Iterator[list[FiringPlan]]:
    """Plans for one statement each: together at most `TICKS` ticks, or a single plan."""
    batch: list[FiringPlan] = []
    count = 0
    for one in plans:
        if batch and count + len(one.ticks) > TICKS:
            yield batch
            batch, count = [], 0
        batch.append(one)
        count += len(one.ticks)
    if batch:
        yield batch


def columns(plans: Sequence[FiringPlan], busy: Collection[str] = ()) -> list[list[object]]:
    """The parameters of the statement ``fire``.

    :param busy: entries of which another broker has a job that has not ended.
    """
    ticks = [tick for one in plans for tick in one.ticks]
    return [
        [one.name for one in plans],
        [one.revision for one in plans],
        [one.passed_at for one in plans],
        [one.following_at for one in plans],
        *(list[object](column) for column in (zip(*ticks, strict=True) if ticks else _NO_TICKS)),
        [one.name in busy for one in plans],
    ]


class Firing:
    """Fires the ticks of the entries of one application.

    Any number of these may be at work at one moment, in any processes, with any clocks: the time
    is the server's, and an entry that has moved on since it was read is left alone.

    :param keep: ticks of each entry that stay in the history.
    :param names: entries that this process has in its code: for it they do not lapse.
    """

    def __init__(self, entries: Entries, *, keep: int, names: Sequence[str] = ()) -> None:
        self._entries = entries
        self._keep = keep
        self._names = names

    async def step(self) -> float:
        """Fire what is due, of at most `BATCH` entries; returns seconds until the next look.

        :raises BrokerError: the server is away, or refuses for another reason than an entry.
        """
        entries, wait_s = await self._entries.due(BATCH, self._names)
        if not entries:
            return max(wait_s or 0.0, _SHORTEST_S) if wait_s is not None else float("inf")
        rows, busy = await self._look(entries)
        # Away from the loop: the ticks of an outage may take seconds to work out.
        found = await asyncio.to_thread(lambda: [plan(row) for row in rows])
        for one in found:
            if isinstance(one, Unreadable):
                await self._reject(one)
        plans = [one for one in found if isinstance(one, FiringPlan)]
        for batch in batches(plans):
            await self._fire(batch, busy)
        if noted := [one.name for one in plans if one.ticks]:
            await self._entries.prune(noted, self._keep)
        return _SHORTEST_S

    async def _look(
        self, entries: Sequence[DueEntry]
    ) -> tuple[list[Sequence[Any]], frozenset[str]]:
        """Ask other brokers about the jobs of entries whose ticks must not overlap.

        Gives the rows of entries that can be fired, and the names of those that have a job which
        has not ended. While it cannot be known an entry waits; what its ticks come to then is up
        to its misfire policy.
        """
        rows = [one.row for one in entries if not one.jobs]
        asked = [one for one in entries if one.jobs]
        if not asked:
            return rows, frozenset()
        try:
            live = await self._entries.unfinished({id for one in asked for id in one.jobs})
        except BrokerError as error:
            for name, revision, *_ in (one.row for one in asked):
                if await self._entries.reject(name, revision, _UNKNOWN, again_s=AWAY_S):
                    logger.warning("cron_postponed entry=%s error=%s", shown(name), error)
            return rows, frozenset()
        busy = frozenset(one.row[0] for one in asked if not live.isdisjoint(one.jobs))
        return [*rows, *(one.row for one in asked)], busy

    async def _fire(self, plans: Sequence[FiringPlan], busy: frozenset[str]) -> None:
        try:
            rows = await self._entries.fire(*columns(plans, busy))
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(plans) == 1:
                await self._reject(Unreadable(plans[0].name, plans[0].revision, str(error)[:500]))
                return
            for one in plans:
                await self._fire([one], busy)
            return
        fired = [row for row in rows if row[2] is not None]
        skipped = [row for row in rows if row[3] is not None]
        for name, tick, _, why, _ in skipped:
            logger.info("cron_skipped entry=%s tick=%s why=%s", name, tick.isoformat(), why)
        if fired:
            names = ",".join(dict.fromkeys(row[0] for row in fired))
            logger.info("cron_fired ticks=%d entries=%s", len(fired), names)

    async def _reject(self, one: Unreadable) -> None:
        if await self._entries.reject(one.name, one.revision, one.problem, again_s=AGAIN_S):
            logger.error("cron_entry_invalid entry=%s problem=%s", shown(one.name), one.problem)
