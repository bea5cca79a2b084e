"""The table of dead letters: file, find, replay and purge them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import LetterSource, SqlStore
from chancy.errors import ConfigurationError, PushError
from chancy.job.definition import Job
from chancy.job.limits import limits_from
from chancy.job.where import containing
from chancy.plugin.patterns import of_function
from chancy.plugin.pushing import PrepareStored, PushWay, columns
from chancy.plugin.tables import PluginSql, from_row, utc
from chancy.plugins.dead_letter.letter import EVERY, DeadLetter, LetterFilter, letter, unread

logger = logging.getLogger("chancy.dead_letters")

#: The maximum dead letters that one statement writes, and roughly the stored bytes of arguments and
#: meta that one statement replays: the jobs pass through this process, for plugins to change them.
BATCH, REPLAY_BYTES = 500, 8 * 1024 * 1024
#: The maximum number of dead letters that `Letters.find` returns.
MAX_FOUND = 1_000
#: Counts stop one above this number.
MAX_COUNT = 10_000
#: Seconds of history that the sweep checks. Ids of purged dead letters are kept for as long.
WINDOW_S = 3 * 86_400.0
#: The maximum number of groups that are found, and that a page has.
MAX_GROUPS, MAX_GROUPS_PAGE = 5_000, 500
#: The maximum seconds between the failure of a job and the statement that files it in the same
#: transaction.
_FILING_S = 3_600.0


class LetterPosition(NamedTuple):
    """A position in the order of dead letters by time of death."""

    died_at: datetime
    id: UUID


class UnfiledJob(NamedTuple):
    """A failed job that the sweep has checked.

    :param missing: whether the job should have a dead letter and has none.
    :param bytes: its arguments, meta and errors, as stored.
    """

    position: LetterPosition
    missing: bool
    bytes: int


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
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Dead letters with the same fingerprint: with the same function, reason, error type, and
    message except for numbers and quoted values.

    :param queue: the queue of the newest dead letter; so are function, reason, error and message.
    :param waiting: the number that was not replayed, among the newest 10,001.
    :param newest: when the newest job died; aware, in UTC.
    :param newest_id: the id of the newest dead letter.
    :param hours: the number that died in each of the last 24 hours, oldest first.
    """

    fingerprint: str
    queue: str
    func: str
    reason: str
    error: str | None
    message: str | None
    waiting: int
    replayed: int
    newest: datetime
    newest_id: UUID
    hours: tuple[int, ...]


SQL = PluginSql("chancy.plugins.dead_letter", "dead letters")


def filing(schema: str, ids: Sequence[UUID]) -> tuple[str, list[UUID], float]:
    """The statement, with its parameters, that files jobs that have just failed."""
    return SQL.statement("file", schema), list(ids), _FILING_S


class Letters:
    """The table of dead letters of one application.

    :param source: the broker that replays dead letters that are not jobs, if it is another one.
    :raises ConfigurationError: the broker does not offer SQL.
    """

    def __init__(self, broker: Broker | SqlStore, source: Broker | None = None) -> None:
        self._tables = SQL.on(broker)
        self._source = source or broker

    async def choose(self, wanted: LetterFilter, *, bounded: bool = False) -> Chosen:
        """Resolve the ages of a filter to datetimes.

        :param bounded: leave out jobs that fail from now on, so that a scan terminates.
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
            of_function(wanted.func),
            wanted.error_type,
            since,
            until,
            wanted.replayed,
            containing(wanted.where),
            wanted.fingerprint,
        )

    async def find(
        self,
        wanted: LetterFilter,
        *,
        limit: int = 50,
        before: LetterPosition | UUID | None = None,
    ) -> list[DeadLetter]:
        """Dead letters, newest first, each with only its last failure.

        :param before: the last one of the previous page; use a position if it may have been purged.
        :raises ConfigurationError: there is no dead letter with the id ``before``.
        """
        if not 1 <= limit <= MAX_FOUND:
            raise ConfigurationError(f"limit={limit} must be from 1 to {MAX_FOUND:,}")
        if isinstance(before, UUID):
            last = await self.get(before)
            if last is None:
                raise ConfigurationError(f"there is no dead letter {before} to begin after")
            before = LetterPosition(last.died_at, last.id)
        chosen = await self.choose(wanted)
        rows = await self._tables.fetch("find", *chosen, *(before or (None, None)), limit, False)
        return [letter(row) for row in rows]

    async def get(self, id: UUID) -> DeadLetter | None:
        """A dead letter with all its failures."""
        chosen = await self.choose(LetterFilter(ids=[id]))
        for row in await self._tables.fetch("find", *chosen, None, None, 1, True):
            return letter(row)
        return None

    async def count(self, wanted: LetterFilter = EVERY) -> int:
        """The number of matching dead letters; `MAX_COUNT` + 1 stands for that many or more."""
        chosen = await self.choose(wanted)
        ((count,),) = await self._tables.fetch("count", *chosen, MAX_COUNT + 1)
        return int(count)

    async def groups(self, *, limit: int = 100, after: LetterPosition | None = None) -> list[Group]:
        """Groups, latest death first.

        :param limit: at most 500.
        :param after: the newest dead letter of the last group of the previous page.
        """
        if not 1 <= limit <= MAX_GROUPS_PAGE:
            raise ConfigurationError(f"limit={limit} must be from 1 to {MAX_GROUPS_PAGE}")
        at, id = after or (None, None)
        rows = await self._tables.fetch("groups", MAX_GROUPS, MAX_COUNT + 1, at, id, limit)
        return [from_row(Group, row, hours=_hours) for row in rows]

    async def page(
        self,
        chosen: Chosen,
        after: LetterPosition | None,
        limit: int,
        most_bytes: int | None = None,
    ) -> list[LetterPosition]:
        """The positions of matching dead letters, oldest first.

        :param most_bytes: stop after this many stored bytes of arguments and meta.
        """
        at, id = after or (None, None)
        rows = await self._tables.fetch("page", *chosen, at, id, limit, most_bytes)
        return [LetterPosition(utc(died_at), id) for id, died_at in rows]

    async def replayed_as(self, id: UUID) -> UUID | None:
        """The job of the last replay of a dead letter, which no other transaction replays until
        this one ends; None if it was not replayed, or is gone."""
        rows = await self._tables.fetch("replayed_as", id)
        return rows[0][0] if rows else None

    async def replay(
        self,
        ids: Sequence[UUID],
        jobs: Sequence[UUID],
        *,
        prepare: PrepareStored | None,
        force: bool = False,
        queue: str | None = None,
        max_attempts: int | None = None,
        delay_s: float = 0.0,
        gap_s: float = 0.0,
        skip_refused: bool = False,
        impatient: bool = False,
    ) -> dict[UUID, UUID]:
        """Push the jobs again, and make other brokers replay dead letters that are not jobs;
        returns the new ids by dead letter. See ``sql/replay.sql``.

        :param prepare: see `Application.prepare_stored`.
        :param skip_refused: log the jobs that a plugin refuses, and replay the others.
        :param impatient: fail if another transaction holds a dead letter or a unique key for long.
        :raises Exception: the exception with which a plugin refuses a job; no dead letter is
            replayed.
        """
        changed: list[str | None] = [None] * len(ids)
        if prepare is not None and ids:
            found, refused = await self._changed(ids, prepare, queue, max_attempts)
            for id, error in refused.items():
                if not skip_refused:
                    raise error
                logger.warning("replay_refused job=%s error=%s", id, error)
            both = [(id, job) for id, job in zip(ids, jobs, strict=True) if id not in refused]
            ids, jobs = [id for id, _ in both], [job for _, job in both]
            changed = [found.get(id) for id in ids]
        terms = (force, queue, max_attempts, delay_s, gap_s, changed, impatient)
        rows = await self._tables.fetch("replay", list(ids), list(jobs), *terms)
        replayed = {id: job for id, job, _ in rows}
        if isinstance(self._source, LetterSource):
            store = self._tables.store
            replayed.update(await self._source.replay_letters(store, ids, jobs, force=force))
        return replayed

    async def _changed(
        self,
        ids: Sequence[UUID],
        prepare: PrepareStored,
        queue: str | None,
        max_attempts: int | None,
    ) -> tuple[dict[UUID, str], dict[UUID, Exception]]:
        """The columns of the jobs that plugins have changed, and the errors with which plugins
        refuse other jobs, by the id of the dead letter."""
        chosen = await self.choose(LetterFilter(ids=ids))
        rows = await self._tables.fetch("find", *chosen, None, None, len(ids), False)
        found: dict[UUID, str] = {}
        refused: dict[UUID, Exception] = {}
        for row in rows:
            dead = letter(row)
            if dead.reason == "event":
                continue
            if missing := unread(row):
                # A plugin would get, and the new job would have, empty ones in their place.
                refused[dead.id] = PushError(
                    f"dead letter {dead.id}: its {' and '.join(missing)} cannot be read, so no "
                    "plugin can change the push"
                )
                continue
            job = Job(
                func=dead.func,
                arguments=dead.arguments or {},
                queue=queue or dead.queue,
                priority=dead.priority,
                max_attempts=max_attempts or dead.max_attempts,
                meta=dead.meta,
                limits=limits_from(dict(dead.limits)),
            )
            try:
                found[dead.id] = columns(prepare(job, PushWay.REPLAY))
            except Exception as error:
                refused[dead.id] = error
        return found, refused

    async def purge(
        self, ids: Sequence[UUID], *, replayed: bool | None = None, skip_locked: bool = False
    ) -> int:
        """Delete dead letters permanently; returns their number.

        :param replayed: see `LetterFilter`; it applies when a dead letter is deleted, so a dead
            letter that was replayed in the meantime stays.
        :param skip_locked: leave out those that another transaction has locked.
        """
        ((count,),) = await self._tables.fetch("purge", list(ids), WINDOW_S, replayed, skip_locked)
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
        return [UnfiledJob(LetterPosition(utc(at), id), *rest) for id, at, *rest in rows]

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


def _hours(text: str | None) -> tuple[int, ...]:
    counts: Mapping[str, int] = json.loads(text) if text else {}
    return tuple(counts.get(str(hour), 0) for hour in reversed(range(24)))
