"""Cron: pushes jobs on a schedule."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakKeyDictionary

from chancy.broker.optional import SqlStore
from chancy.checks import check_number
from chancy.errors import LOCK_NOT_AVAILABLE, ConfigurationError, PushError, StatementFailed
from chancy.plugin.leader import elected
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Panel, Runtime
from chancy.plugin.tables import PayloadTable, facts
from chancy.plugins.cron.decorated import periodic, periodic_entries
from chancy.plugins.cron.entry import Entry, Overlap, StoredEntry
from chancy.plugins.cron.firing import Firing
from chancy.plugins.cron.misfire import Misfire
from chancy.plugins.cron.store import MAX_ENTRIES, MAX_KEPT, Entries, Fired
from chancy.postgres.schema.component import Migrations
from chancy.text import shown

if TYPE_CHECKING:
    import click

__all__ = ["Cron", "Entry", "Fired", "Misfire", "Overlap", "StoredEntry", "periodic"]

logger = logging.getLogger("chancy.cron")

#: Seconds between two polls of a worker that does not lead, and until an entry of the code that
#: another transaction has locked is stored.
_RARELY_S = 30.0


class Cron(Plugin):
    """Pushes a job at each tick of an entry, exactly once for any number of workers.

    The leader fires the ticks; the other workers poll rarely, so it also works without a leader.

    When a worker starts, it stores the entries of its code: ``entries``, and those of functions
    that are decorated with `periodic`. An entry lapses ``lapse_s`` seconds after the last worker
    that has it has stopped. You can add more entries at run time.

    :param entries: the entries of the code.
    :param poll_s: seconds between two polls for changed entries.
    :param keep_ticks: ticks to keep in the history of each entry.
    :param lapse_s: seconds for which an entry of the code outlives the workers that have it.
    :raises ConfigurationError: two entries have the same name, or a setting is out of range.
    """

    def __init__(
        self,
        *entries: Entry,
        poll_s: float = 1.0,
        keep_ticks: int = 100,
        lapse_s: float = 3600.0,
    ) -> None:
        self.entries = _checked(entries)
        check_number(poll_s, "poll_s", 0.01, 60, whole=False, unit="seconds")
        check_number(keep_ticks, "keep_ticks", 1, MAX_KEPT)
        check_number(lapse_s, "lapse_s", 1, 30 * 86_400, whole=False, unit="seconds")
        self.poll_s = poll_s
        self.keep_ticks = keep_ticks
        self.lapse_s = lapse_s
        #: The entries that each worker has stored, because a failed service starts again.
        self._declared: WeakKeyDictionary[Runtime, set[str]] = WeakKeyDictionary()

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.cron"

    def migrations(self) -> Migrations | None:
        return Migrations(name="cron", package="chancy.plugins.cron.migrations", head="0001")

    def payload_tables(self) -> Sequence[PayloadTable]:
        return [PayloadTable(table="cron_entries", name="name", payloads=["arguments"])]

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.cron.commands import cron

        return [cron]

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="cron", title="Cron", rows=_rows)]

    # Service of a worker

    async def serve(self, runtime: Runtime) -> None:
        code = self._code()
        if not isinstance(runtime.broker, SqlStore):
            if code:
                logger.warning(
                    "cron_without_tables broker=%s: entries are stored in Postgres; none is fired "
                    "here",
                    type(runtime.broker).__name__,
                )
            return
        entries = Entries(runtime.broker, runtime.encode_arguments)
        prepare = runtime.prepare_stored
        with closing(
            Firing(entries, keep=self.keep_ticks, names=list(code), prepare=prepare)
        ) as firing:
            await self._fire(runtime, entries, firing, code)

    def _code(self) -> Mapping[str, Entry]:
        """The entries of the code by name. The modules of their functions are already imported."""
        return periodic_entries() | {entry.name: entry for entry in self.entries}

    async def _fire(
        self, runtime: Runtime, entries: Entries, firing: Firing, code: Mapping[str, Entry]
    ) -> None:
        clock, leader = runtime.clock, runtime.leader
        declare_at = clock.monotonic()
        while True:
            # Every worker declares the entries of its code.
            if clock.monotonic() >= declare_at:
                stored = await self._declare(runtime, entries, code)
                again_s = self.lapse_s / 4
                declare_at = clock.monotonic() + (again_s if stored else min(again_s, _RARELY_S))
            if not leader.leading:
                # After the timeout every worker polls, so ticks are also fired without a leader.
                rarely_s = min(_RARELY_S, self.lapse_s / 4) * random.uniform(0.8, 1.2)
                await elected(leader, clock, rarely_s)
            pause_s = await firing.step()
            if leader.leading:
                await clock.sleep(min(pause_s, self.poll_s))

    async def _declare(self, runtime: Runtime, entries: Entries, code: Mapping[str, Entry]) -> bool:
        """Store the entries of the code once in each worker; later calls only postpone their lapse.
        Returns False if another transaction has locked some of them: the next call stores these.

        During a deployment, workers of two versions run at the same time. The entries of the
        worker that started last apply; the other workers do not overwrite them.
        """
        declared = self._declared.setdefault(runtime, set())
        await entries.touch(list(declared), lapse_s=self.lapse_s)
        for name in [name for name in code if name not in declared]:
            try:
                await entries.add(code[name], upsert=True, lapse_s=self.lapse_s)
            except (ConfigurationError, PushError) as error:
                logger.error("cron_entry_refused entry=%s: %s", name, error)
            except StatementFailed as error:
                if error.sqlstate != LOCK_NOT_AVAILABLE:
                    raise
                logger.warning("cron_entry_locked entry=%s", name)
                continue
            declared.add(name)
        return len(declared) == len(code)

    # At run time

    async def add(
        self, chancy: Application, entry: Entry, *, upsert: bool = False, validate: bool = True
    ) -> bool:
        """Store an entry; False if the name exists and ``upsert`` is False.

        :param upsert: replace an existing entry.
        :param validate: pass False to add a function that this process cannot import.
        :raises ChancyError: the entry is invalid; nothing was written.
        """
        if validate:
            chancy.registry.check(entry.job.func)
        return await Entries(chancy.broker, chancy.encode_arguments).add(entry, upsert=upsert)

    async def get(self, chancy: Application, name: str) -> StoredEntry | None:
        """The stored entry; None if there is none with this name."""
        return await Entries(chancy.broker).get(name)

    async def get_all(self, chancy: Application) -> Sequence[StoredEntry]:
        """All entries, ordered by name, including those added at run time."""
        return await Entries(chancy.broker).every()

    async def pause(self, chancy: Application, name: str) -> bool:
        """Stop firing the ticks of an entry; False if there is none with this name."""
        return await Entries(chancy.broker).pause(name)

    async def resume(self, chancy: Application, name: str) -> bool:
        """Fire the ticks of an entry again, from now on; False if there is none with this name."""
        return await Entries(chancy.broker).resume(name)

    async def remove(self, chancy: Application, name: str) -> bool:
        """Delete an entry and its history; False if there is none with this name.

        An entry of the code is stored again by the next worker that starts with it.
        """
        return await Entries(chancy.broker).remove(name)

    async def run(self, chancy: Application, name: str) -> UUID | None:
        """Push the job of an entry now; returns its id, or None if there is no such entry.

        The schedule is not affected.
        """
        return await Entries(chancy.broker).run(name, chancy.prepare_stored)

    async def history(self, chancy: Application, name: str, *, limit: int = 50) -> Sequence[Fired]:
        """The history of an entry's ticks, newest first."""
        return await Entries(chancy.broker).history(name, limit)


def _checked(entries: Sequence[object]) -> tuple[Entry, ...]:
    found: dict[str, Entry] = {}
    for entry in entries:
        if not isinstance(entry, Entry):
            raise ConfigurationError(
                f"{shown(entry)} is not an Entry: pass Entry(name, schedule, job)"
            )
        if entry.name in found:
            raise ConfigurationError(f"two cron entries have the name {entry.name!r}: rename one")
        found[entry.name] = entry
    if len(found) > MAX_ENTRIES:
        raise ConfigurationError(
            f"{len(found):,} cron entries exceed the maximum of {MAX_ENTRIES:,}"
        )
    return tuple(found.values())


async def _rows(chancy: Application) -> Sequence[Mapping[str, Any]]:
    return [facts(entry) for entry in await Entries(chancy.broker).every()]
