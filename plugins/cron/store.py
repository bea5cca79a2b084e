"""The tables of cron entries and of the history of their ticks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.errors import ConfigurationError
from chancy.job.ids import new_id
from chancy.plugin.pushing import PrepareStored, PushWay, columns
from chancy.plugin.tables import PluginSql, from_row
from chancy.plugins.cron.entry import Entry, StoredEntry, job_of, stored

#: The maximum number of entries of one schema.
MAX_ENTRIES = 10_000
#: The maximum number of ticks in the history of an entry.
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """A tick in the history of an entry. Times are aware, in UTC.

    :param tick: when the tick was due; for a manual run, the time of the run.
    :param job_id: the id of the pushed job; None if the tick was skipped.
    :param run_at: when the job is due, if later than the tick.
    :param fired_at: when the tick was fired, by the server's clock.
    :param skipped: why it was skipped: ``late``, ``overlap``, or ``refused`` by a plugin; None if
        it was not.
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
    """An entry to check for due ticks.

    :param row: the argument of `chancy.plugins.cron.firing.plan`.
    :param jobs: its last jobs, if its ticks must not overlap and its queue is in another broker.
    """

    row: Sequence[Any]
    jobs: Sequence[UUID]


SQL = PluginSql("chancy.plugins.cron", "cron entries")


class Entries:
    """The table of entries of one application.

    :param encode_arguments: changes encoded arguments before they are stored; see
        `Application.encode_arguments`.
    :raises ConfigurationError: the broker does not offer SQL.
    """

    def __init__(
        self,
        broker: Broker,
        encode_arguments: Callable[[str, str, str | None], str] = lambda _, text, __: text,
    ) -> None:
        self._encode_arguments = encode_arguments
        self._tables = SQL.on(broker)
        self._broker = broker

    async def add(
        self, entry: Entry, *, upsert: bool = False, lapse_s: float | None = None
    ) -> bool:
        """Store an entry; False if the name exists and ``upsert`` is False.

        :param lapse_s: for an entry of a worker's code: seconds after which it lapses unless it
            is declared again.
        :raises ConfigurationError: there are too many entries.
        """
        parameters = entry.parameters(self._encode_arguments)
        rows = await self._tables.fetch("add", *parameters, upsert, lapse_s, MAX_ENTRIES)
        if not rows and await self.get(entry.name) is None:
            raise ConfigurationError(
                f"cron entry {entry.name!r} was not added: there are already {MAX_ENTRIES:,} "
                "entries, which is the maximum: remove one"
            )
        return bool(rows)

    async def touch(self, names: Sequence[str], *, lapse_s: float) -> None:
        """Extend the lapse of entries of the code to ``lapse_s`` seconds from now."""
        await self._tables.fetch("touch", list(names), lapse_s)

    async def every(self) -> list[StoredEntry]:
        """All entries, ordered by name."""
        return [stored(row) for row in await self._tables.fetch("entries", None, MAX_ENTRIES)]

    async def get(self, name: str) -> StoredEntry | None:
        for row in await self._tables.fetch("entries", name, 1):
            return stored(row)
        return None

    async def pause(self, name: str) -> bool:
        """Stop firing the ticks of an entry; False if there is none with this name."""
        return bool(await self._tables.fetch("pause", name))

    async def resume(self, name: str) -> bool:
        """Fire the ticks of an entry again, from now on; False if there is none with this name."""
        return bool(await self._tables.fetch("resume", name))

    async def remove(self, name: str) -> bool:
        """Delete an entry and its history; its jobs stay. False if there is none."""
        return bool(await self._tables.fetch("remove", name))

    async def run(self, name: str, prepare: PrepareStored | None) -> UUID | None:
        """Push the job of an entry now; returns its id, or None if there is no such entry.

        :param prepare: see `Application.prepare_stored`.
        """
        id = new_id()
        changed: str | None = None
        if prepare is not None and (entry := await self.get(name)) is not None:
            changed = columns(prepare(job_of(entry), PushWay.CRON))
        rows = await self._tables.fetch("run", name, id, changed)
        await self.prune([name], MAX_KEPT)
        return id if rows else None

    async def history(self, name: str, limit: int = 50) -> list[Fired]:
        """The history of an entry's ticks, newest first."""
        rows = await self._tables.fetch("history", name, limit)
        return [from_row(Fired, row) for row in rows]

    async def prune(self, names: Sequence[str], keep: int) -> None:
        """Delete all but the newest ticks of these entries; at most 1,000 of each in one call."""
        await self._tables.fetch("prune", list(names), keep)

    # For firing

    async def due(
        self, limit: int, names: Sequence[str] = (), passed: int = 0
    ) -> tuple[list[DueEntry], float | None]:
        """Due entries, and the seconds until the next other entry is due; None if there is none.

        :param names: entries to include even if they have lapsed.
        :param passed: the number of due entries to skip, in the order of their times.
        """
        rows = await self._tables.fetch("due", limit, list(names), passed)
        found = [DueEntry(row[:-2], row[-2] or []) for row in rows if row[0] is not None]
        return found, rows[0][-1]

    async def unfinished(self, ids: Collection[UUID]) -> frozenset[UUID]:
        """The ids of the jobs that are not finished, in any broker.

        Postgres is checked first, because jobs move from there to other brokers, but not back.

        :raises BrokerError: a broker that may have one of the jobs is unavailable.
        """
        jobs = await self._broker.get(list(ids))
        return frozenset(id for id, job in jobs.items() if not job.state.final)

    async def fire(self, *columns: Sequence[object]) -> Sequence[Sequence[Any]]:
        """Fire ticks; see ``sql/fire.sql``. Returns one row for each recorded tick."""
        return await self._tables.fetch("fire", *columns)

    async def reject(self, name: str, revision: int, problem: str, *, again_s: float) -> bool:
        """Store why an entry cannot be fired; returns whether the problem has changed."""
        return bool(await self._tables.fetch("reject", name, revision, problem, again_s))
