"""The entries in their table: added, paused, removed, run, and what became of their ticks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError
from chancy.job.ids import new_id
from chancy.plugins.cron.entry import Entry, StoredEntry, stored, utc
from chancy.postgres.statements import load

#: The most entries of one schema.
MAX_ENTRIES = 10_000
#: The most ticks that are kept of an entry.
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What became of one tick. Times are aware, in UTC.

    :param tick: when it was due; of a manual run, when that was.
    :param job_id: None: it was skipped.
    :param run_at: when its job is due, if that is not the tick.
    :param fired_at: by the server's clock.
    :param skipped: why: ``late`` or ``overlap``.
    :param missed: ticks before this one that were dropped; 1,000 stands for that many or more.
    """

    tick: datetime
    manual: bool
    job_id: UUID | None
    run_at: datetime | None
    fired_at: datetime
    skipped: str | None
    missed: int


class DueEntry(NamedTuple):
    """An entry to look at.

    :param row: what `chancy.plugins.cron.firing.plan` takes.
    :param jobs: its last jobs, if its ticks must not overlap and another broker has its queue.
    """

    row: Sequence[Any]
    jobs: Sequence[UUID]


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql``."""
    return load(resources.files("chancy.plugins.cron") / "sql", name, schema)


class Entries:
    """The table of entries of one application.

    :raises ConfigurationError: its broker keeps no tables.
    """

    def __init__(self, broker: Broker) -> None:
        if not isinstance(broker, SqlStore):
            raise ConfigurationError(
                f"cron keeps its entries in Postgres, and {type(broker).__name__} does not offer "
                "SQL statements: use an application on Postgres"
            )
        self._store: SqlStore = broker
        self._broker = broker

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def add(
        self, entry: Entry, *, upsert: bool = False, lapse_s: float | None = None
    ) -> bool:
        """Store an entry; False if there is one of its name and ``upsert`` was not given.

        :param lapse_s: it is from the code of a worker, and lapses after so many seconds unless
            it is declared again.
        :raises ConfigurationError: there are too many.
        """
        rows = await self._fetch("add", *entry.parameters(), upsert, lapse_s, MAX_ENTRIES)
        if not rows and await self.get(entry.name) is None:
            raise ConfigurationError(
                f"cron entry {entry.name!r}: there are {MAX_ENTRIES:,} entries, as many as there "
                "may be: remove one"
            )
        return bool(rows)

    async def touch(self, names: Sequence[str], *, lapse_s: float) -> None:
        """Let entries of the code live on for so many seconds."""
        await self._fetch("touch", list(names), lapse_s)

    async def every(self) -> list[StoredEntry]:
        """All entries by name."""
        return [stored(row) for row in await self._fetch("entries", None, MAX_ENTRIES)]

    async def get(self, name: str) -> StoredEntry | None:
        for row in await self._fetch("entries", name, 1):
            return stored(row)
        return None

    async def pause(self, name: str) -> bool:
        """Fire no more ticks of an entry; False if there is none of this name."""
        return bool(await self._fetch("pause", name))

    async def resume(self, name: str) -> bool:
        """Fire its ticks again, those from now on; False if there is none of this name."""
        return bool(await self._fetch("resume", name))

    async def remove(self, name: str) -> bool:
        """Forget an entry and its history; its jobs stay. False if there is none."""
        return bool(await self._fetch("remove", name))

    async def run(self, name: str) -> UUID | None:
        """Push the job of an entry now; returns its id, or None if there is no such entry."""
        id = new_id()
        rows = await self._fetch("run", name, id)
        await self.prune([name], MAX_KEPT)
        return id if rows else None

    async def history(self, name: str, limit: int = 50) -> list[Fired]:
        """What became of the ticks of an entry, newest first."""
        return [
            Fired(
                tick=tick.replace(tzinfo=UTC),
                manual=manual,
                job_id=job_id,
                run_at=utc(run_at),
                fired_at=fired_at.replace(tzinfo=UTC),
                skipped=skipped,
                missed=missed,
            )
            for tick, manual, job_id, run_at, fired_at, skipped, missed in await self._fetch(
                "history", name, limit
            )
        ]

    async def prune(self, names: Sequence[str], keep: int) -> None:
        """Forget all but the newest ticks of these entries; at most 1,000 of each at a time."""
        await self._fetch("prune", list(names), keep)

    # What the firing of ticks needs

    async def due(
        self, limit: int, names: Sequence[str] = ()
    ) -> tuple[list[DueEntry], float | None]:
        """Entries to look at, and seconds until the next of the others; None: none.

        :param names: entries that are not looked at as lapsed.
        """
        rows = await self._fetch("due", limit, list(names))
        found = [DueEntry(row[:-2], row[-2] or []) for row in rows if row[0] is not None]
        return found, rows[0][-1]

    async def unfinished(self, ids: Collection[UUID]) -> frozenset[UUID]:
        """Those of these jobs that have not ended, whichever broker has them.

        Postgres is asked first, since jobs come from there to other brokers and not back.
        :raises BrokerError: one is away that may know.
        """
        found = await self._broker.get(list(ids))
        return frozenset(id for id, one in found.items() if not one.state.final)

    async def fire(self, *columns: Sequence[object]) -> Sequence[Sequence[Any]]:
        """Fire ticks; see ``sql/fire.sql``. Rows of what was done, by entry and tick."""
        return await self._fetch("fire", *columns)

    async def reject(self, name: str, revision: int, problem: str, *, again_s: float) -> bool:
        """Say why an entry cannot be fired. Returns whether that is news."""
        return bool(await self._fetch("reject", name, revision, problem, again_s))
