"""The table of dead letters: file, find, replay and purge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import LetterSource
from chancy.errors import ConfigurationError
from chancy.job.where import containing
from chancy.plugin.tables import PluginSql, utc
from chancy.plugins.dead_letter.letter import EVERY, DeadLetter, LetterFilter, letter

#: Dead letters written by one statement.
BATCH = 500
#: The most dead letters that `Letters.find` returns.
MAX_FOUND = 1_000
#: Counts stop one above this number.
MAX_COUNT = 10_000
#: Seconds of history that the sweep checks. Ids of purged dead letters are kept for as long.
WINDOW_S = 3 * 86_400.0
#: Newest dead letters that are grouped for the dashboard, and the most groups.
_COUNTED, _GROUPS = 100_000, 100
#: The most seconds between the failure of a job and the statement that files it in the same
#: transaction.
_FILING_S = 3_600.0


class LetterPosition(NamedTuple):
    """A position in the order of dead letters by time of death."""

    died_at: datetime
    id: UUID


class UnfiledJob(NamedTuple):
    """A failed job that the sweep has checked.

    :param missing: whether the job should have a dead letter and has none.
    """

    position: LetterPosition
    missing: bool


class Chosen(NamedTuple):
    """A filter with the ages replaced by datetimes of the server's clock."""

    ids: list[UUID] | None
    queue: str | None
    func: str | None
    error: str | None
    since: datetime | None
    until: datetime | None
    replayed: bool | None
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dead letters with the same queue, function, reason and error type. Times in UTC, aware."""

    queue: str
    func: str
    reason: str
    error: str | None
    waiting: int
    replayed: int
    oldest: datetime
    newest: datetime


SQL = PluginSql("chancy.plugins.dead_letter", "dead letters")


def filing(schema: str, ids: Sequence[UUID]) -> tuple[str, list[UUID], float]:
    """The statement, with its parameters, that files jobs that have just failed."""
    return SQL.statement("file", schema), list(ids), _FILING_S


class Letters:
    """The table of dead letters of one application.

    :raises ConfigurationError: the broker does not offer SQL.
    """

    def __init__(self, broker: Broker) -> None:
        self._tables = SQL.on(broker)

    async def choose(self, wanted: LetterFilter, *, bounded: bool = False) -> Chosen:
        """Resolve the ages of a filter to datetimes.

        :param bounded: leave out jobs that fail from now on, so that a walk terminates.
        """
        since = until = None
        if bounded or wanted.older_than is not None or wanted.newer_than is not None:
            ((at,),) = await self._tables.fetch("now")
            now = utc(at)
            since = None if wanted.newer_than is None else now - wanted.newer_than
            until = now if wanted.older_than is None else now - wanted.older_than
        return Chosen(
            None if wanted.ids is None else list(wanted.ids),
            wanted.queue,
            wanted.func,
            wanted.error_type,
            since,
            until,
            wanted.replayed,
            containing(wanted.where),
        )

    async def find(
        self, wanted: LetterFilter, *, limit: int = 50, before: UUID | None = None
    ) -> list[DeadLetter]:
        """Dead letters, newest first, each with only its last failure."""
        if not 1 <= limit <= MAX_FOUND:
            raise ConfigurationError(f"limit={limit} must be from 1 to {MAX_FOUND:,}")
        chosen = await self.choose(wanted)
        rows = await self._tables.fetch("find", *chosen, before, limit, False)
        return [letter(row) for row in rows]

    async def get(self, id: UUID) -> DeadLetter | None:
        """A dead letter with all its failures."""
        chosen = await self.choose(LetterFilter(ids=[id]))
        for row in await self._tables.fetch("find", *chosen, None, 1, True):
            return letter(row)
        return None

    async def count(self, wanted: LetterFilter = EVERY) -> int:
        """The number of matching dead letters; `MAX_COUNT` + 1 stands for that many or more."""
        chosen = await self.choose(wanted)
        ((count,),) = await self._tables.fetch("count", *chosen, MAX_COUNT + 1)
        return int(count)

    async def groups(self) -> list[Group]:
        """The newest dead letters in groups; see ``sql/counts.sql``."""
        rows = await self._tables.fetch("counts", _COUNTED, _GROUPS)
        return [
            Group(
                queue=queue,
                func=func,
                reason=reason,
                error=error,
                waiting=waiting,
                replayed=replayed,
                oldest=utc(oldest),
                newest=utc(newest),
            )
            for queue, func, reason, error, waiting, replayed, oldest, newest in rows
        ]

    async def page(
        self, chosen: Chosen, after: LetterPosition | None, limit: int
    ) -> list[LetterPosition]:
        """The positions of matching dead letters, oldest first."""
        at, id = after or (None, None)
        rows = await self._tables.fetch("page", *chosen, at, id, limit)
        return [LetterPosition(utc(died_at), id) for id, died_at in rows]

    async def replay(
        self,
        ids: Sequence[UUID],
        jobs: Sequence[UUID],
        *,
        force: bool,
        queue: str | None,
        max_attempts: int | None,
        delay_s: float,
        gap_s: float,
    ) -> dict[UUID, UUID]:
        """Push the jobs again, and have other brokers replay dead letters that are no jobs; returns
        the new ids by dead letter. See ``sql/replay.sql``."""
        rows = await self._tables.fetch(
            "replay", list(ids), list(jobs), force, queue, max_attempts, delay_s, gap_s
        )
        found = {id: job for id, job, _ in rows}
        store = self._tables.store
        if isinstance(store, LetterSource):
            found.update(await store.replay_letters(store, ids, jobs, force=force))
        return found

    async def purge(self, ids: Sequence[UUID]) -> int:
        """Delete dead letters permanently; returns their number."""
        ((count,),) = await self._tables.fetch("purge", list(ids), WINDOW_S)
        return int(count)

    # For the sweep

    async def file(self, ids: Sequence[UUID]) -> list[str]:
        """File failed jobs of the history; returns the queue of each one that was filed."""
        return [
            queue for _, queue in await self._tables.fetch("file", list(ids), WINDOW_S + _FILING_S)
        ]

    async def missing(self, after: LetterPosition | None, limit: int) -> list[UnfiledJob]:
        """Failed jobs without a dead letter, and the last job that was checked."""
        at, id = after or (None, None)
        rows = await self._tables.fetch("missing", at, id, WINDOW_S, limit)
        return [UnfiledJob(LetterPosition(utc(at), id), missing) for id, at, missing in rows]

    async def bounds(
        self, keep_days: float | None, max_letters: int
    ) -> tuple[datetime | None, datetime | None]:
        """The times of death up to which dead letters are too old, and too many."""
        ((too_old, too_many),) = await self._tables.fetch("bounds", keep_days, max_letters)
        return utc(too_old), utc(too_many)

    async def forget(self, limit: int) -> int:
        """Delete ids of purged dead letters outside the window; returns their number."""
        ((count,),) = await self._tables.fetch("forget", WINDOW_S + _FILING_S, limit)
        return int(count)
