"""Cron: jobs that are pushed by the clock."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError
from chancy.plugin.leader import elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Panel, Runtime
from chancy.plugins.cron.entry import Entry, Overlap, StoredEntry, facts
from chancy.plugins.cron.firing import Firing
from chancy.plugins.cron.misfire import Misfire
from chancy.plugins.cron.store import MAX_ENTRIES, MAX_KEPT, Entries, Fired
from chancy.postgres.schema.component import Migrations
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = ["Cron", "Entry", "Fired", "Misfire", "Overlap", "StoredEntry"]

logger = logging.getLogger("chancy.cron")

#: Seconds between two looks of a worker that does not lead.
_RARELY_S = 30.0


class Cron(Plugin):
    """Pushes a job at each tick of its entries, once, however many workers there are.

    The leader fires them, and the others look rarely, so that it is done without any leader too.

    The entries of the code are stored by each worker that starts, and go on until ``lapse_s``
    seconds after the last worker that has them has gone. Others are added at run time.

    :param entries: those of the code.
    :param poll_s: seconds between looks for entries that somebody has changed.
    :param keep_ticks: ticks of each entry that stay in its history.
    :param lapse_s: seconds for which an entry of the code outlives the workers that have it.
    :raises ConfigurationError: two entries have one name, or a setting that cannot be.
    """

    def __init__(
        self,
        *entries: Entry,
        poll_s: float = 1.0,
        keep_ticks: int = 100,
        lapse_s: float = 3600.0,
    ) -> None:
        self.entries = _checked(entries)
        if not 0.01 <= poll_s <= 60:
            raise ConfigurationError(f"poll_s={shown(poll_s)} must be from 0.01 to 60 seconds")
        if not 1 <= keep_ticks <= MAX_KEPT:
            raise ConfigurationError(f"keep_ticks={shown(keep_ticks)} must be 1 to {MAX_KEPT:,}")
        if not 1 <= lapse_s <= 30 * 86_400:
            raise ConfigurationError(f"lapse_s={shown(lapse_s)} must be from 1 s to 30 days")
        self.poll_s = poll_s
        self.keep_ticks = keep_ticks
        self.lapse_s = lapse_s
        self._stored = False

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.cron"

    def migrations(self) -> Migrations | None:
        return Migrations(name="cron", package="chancy.plugins.cron.migrations", head="0001")

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.cron.commands import cron

        return [cron]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="cron", title="Cron", rows=_rows)]

    # Beside a worker

    async def serve(self, runtime: Runtime) -> None:
        if not isinstance(runtime.broker, SqlStore):
            logger.warning(
                "cron_without_tables broker=%s: they are kept in Postgres, so none is fired here",
                type(runtime.broker).__name__,
            )
            return
        entries = Entries(runtime.broker)
        names = [entry.name for entry in self.entries]
        firing = Firing(entries, keep=self.keep_ticks, names=names)
        clock, leader = runtime.clock, runtime.leader
        declare_at = clock.monotonic()
        while True:
            # Every worker says what is in its code.
            if clock.monotonic() >= declare_at:
                await self._declare(entries)
                declare_at = clock.monotonic() + self.lapse_s / 4
            if not leader.leading:
                # At last everybody looks, so that ticks are fired without any leader too.
                rarely_s = min(_RARELY_S, self.lapse_s / 4) * random.uniform(0.8, 1.2)
                await elected(leader, clock, rarely_s)
            pause_s = await firing.step()
            if leader.leading:
                await clock.sleep(min(pause_s, self.poll_s))

    async def _declare(self, entries: Entries) -> None:
        """Store the entries of the code once; later only say that they are still in it.

        During a deployment workers of two versions run beside each other: the one that started
        last has the word, and the others do not take it back.
        """
        if self._stored:
            await entries.touch([entry.name for entry in self.entries], lapse_s=self.lapse_s)
            return
        for entry in self.entries:
            try:
                await entries.add(entry, upsert=True, lapse_s=self.lapse_s)
            except ConfigurationError as error:
                logger.error("cron_entry_refused entry=%s: %s", entry.name, error)
        self._stored = True

    # At run time

    async def add(
        self, chancy: Application, entry: Entry, *, upsert: bool = False, validate: bool = True
    ) -> bool:
        """Store an entry; False if there is one of its name and ``upsert`` was not given.

        :param validate: False to add a function that this process cannot import.
        :raises ChancyError: the entry cannot work; nothing was written.
        """
        if validate:
            chancy.registry.check(entry.job.func)
        return await Entries(chancy.broker).add(entry, upsert=upsert)

    async def get(self, chancy: Application, name: str) -> StoredEntry | None:
        """An entry as it stands."""
        return await Entries(chancy.broker).get(name)

    async def get_all(self, chancy: Application) -> Sequence[StoredEntry]:
        """All entries by name, those of the code and others."""
        return await Entries(chancy.broker).every()

    async def pause(self, chancy: Application, name: str) -> bool:
        """Fire no more ticks of an entry; False if there is none of this name."""
        return await Entries(chancy.broker).pause(name)

    async def resume(self, chancy: Application, name: str) -> bool:
        """Fire its ticks again, those from now on; False if there is none of this name."""
        return await Entries(chancy.broker).resume(name)

    async def remove(self, chancy: Application, name: str) -> bool:
        """Forget an entry and its history; False if there is none of this name.

        One that is in the code comes back with the next worker that starts with it.
        """
        return await Entries(chancy.broker).remove(name)

    async def run(self, chancy: Application, name: str) -> UUID | None:
        """Push the job of an entry now; gives its id, or None if there is no such entry.

        Its ticks go on as they would have.
        """
        return await Entries(chancy.broker).run(name)

    async def history(self, chancy: Application, name: str, *, limit: int = 50) -> Sequence[Fired]:
        """What became of the ticks of an entry, newest first."""
        return await Entries(chancy.broker).history(name, limit)


def _checked(entries: Sequence[object]) -> tuple[Entry, ...]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if not isinstance(entry, Entry):
            raise ConfigurationError(
                f"{shown(entry)} is not an Entry: write Entry(name, schedule, job)"
            )
        if entry.name in found:
            raise ConfigurationError(f"there are two cron entries {entry.name!r}: rename one")
        found[entry.name] = entry
    if len(found) > MAX_ENTRIES:
        raise ConfigurationError(
            f"{len(found):,} cron entries are more than the {MAX_ENTRIES:,} that there may be"
        )
    return tuple(found.values())


async def _rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    return [facts(one) for one in await Entries(chancy.broker).every()]
