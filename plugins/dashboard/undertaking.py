"""Actions of people, each with its entry of the audit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from chancy.broker.values import Cancellation
from chancy.clock import Backoff
from chancy.errors import ChancyError
from chancy.plugins.dashboard.access import Action
from chancy.plugins.dashboard.audit import Audit
from chancy.plugins.dashboard.site import Refused, Site, View
from chancy.postgres.catalog import Catalog
from chancy.postgres.drivers.base import Connection
from chancy.postgres.statements import Statements

logger = logging.getLogger("chancy.dashboard")

#: How often rows that others have locked are tried again.
_TRIES = 10
#: The most actions in batches that one process has in progress.
MOST_RUNNING = 10


def stopped(found: Mapping[UUID, Cancellation]) -> int:
    """The number of jobs that were cancelled, or asked to stop."""
    return sum(what in (Cancellation.CANCELLED, Cancellation.ASKED) for what in found.values())


class Session:
    """A session with an open transaction, as the store of plugins' statements."""

    def __init__(self, schema: str, connection: Connection) -> None:
        self.schema = schema
        self._connection = connection
        self._sql = Statements(schema)
        self.catalog = Catalog(connection.fetch, self._sql)

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        return await self._connection.fetch(sql, *params)

    async def cancel(self, ids: Sequence[UUID]) -> int:
        """Cancel jobs; returns how many were cancelled or asked to stop. A row that another
        transaction keeps locked is left out."""
        found: dict[UUID, Cancellation] = {}
        backoff = Backoff(base_s=0.01, cap_s=0.2)
        for _ in range(_TRIES):
            left = [id for id in ids if id not in found]
            if not left:
                break
            if found or left != list(ids):
                await asyncio.sleep(backoff.next_s())
            rows = await self.fetch(self._sql.cancel, left)
            found |= {id: Cancellation(what) for id, what in rows if what != "busy"}
        return stopped(found)

    async def run_now(self, ids: Sequence[UUID]) -> int:
        """Run scheduled jobs now; returns how many were scheduled."""
        return len(await self.fetch(self._sql.run_now, list(ids)))

    async def release(self, ids: Sequence[UUID]) -> int:
        """Release jobs on hold; returns how many were on hold."""
        return len(await self.fetch(self._sql.release, list(ids), None, len(ids)))

    async def prioritize(self, ids: Sequence[UUID], priority: int) -> int:
        """Give waiting jobs another priority; returns how many had another one."""
        ((count, _),) = await self.fetch(self._sql.prioritize, list(ids), priority)
        return int(count)

    async def reschedule(self, ids: Sequence[UUID], at: datetime) -> int:
        """Run waiting jobs at another time; returns how many were changed."""
        ((count, _),) = await self.fetch(self._sql.reschedule, list(ids), at, None)
        return int(count)


class Deed:
    """An action in progress.

    :param store: the session of its transaction.
    """

    def __init__(self, store: Session, audit: Audit, who: str) -> None:
        self.store = store
        self._audit = audit
        self._who = who
        self.entry = 0

    @property
    def broker(self) -> Any:
        """The session, for plugins' stores that take a broker for its statements alone."""
        return cast(Any, self.store)

    async def note(
        self, action: str, subject: str, detail: Mapping[str, Any] | None = None, *, jobs: int
    ) -> None:
        """Write the entry of the audit.

        :param action: an `Action`, or what exactly was done of it.
        """
        self.entry = await self._audit.add(self._who, str(action), subject, detail, jobs=jobs)


@asynccontextmanager
async def deed(view: View) -> AsyncGenerator[Deed]:
    """A transaction in which a person does something, and the audit says so. If either fails,
    neither is there."""
    site = view.site
    async with site.chancy.transaction() as connection:
        session = Session(site.store.schema, connection)
        yield Deed(session, Audit(session, site.keep_audit_days), view.person.name)


async def announced(
    view: View,
    action: Action,
    subject: str,
    detail: Mapping[str, Any] | None,
    work: Callable[[], Awaitable[int]],
) -> int:
    """Do what needs transactions of its own, or another store: the entry is committed first, and
    says afterwards how many jobs were changed, or why it failed. Returns its id."""
    audit = view.site.audit
    entry = await audit.add(view.person.name, str(action), subject, detail, ended=False)
    try:
        count = await work()
    except Exception as error:
        await audit.count(entry, 0, ended=True, error=f"{type(error).__name__}: {error}"[:1_000])
        raise
    await audit.count(entry, count, ended=True)
    return entry


#: Does one batch in a transaction; returns how many things it has changed, or None at the end.
Step = Callable[[Deed], Awaitable[int | None]]


async def start(
    view: View, action: Action, subject: str, detail: Mapping[str, Any], step: Step
) -> int:
    """Begin an action in batches, which goes on after its request; returns the id of its entry.

    Each batch is a transaction of its own that counts itself in the audit, which also says whether
    to stop.

    :raises Refused: too many are in progress.
    """
    site, who = view.site, view.person.name
    if len(site.tasks) >= MOST_RUNNING:
        raise Refused(409, "too many actions are in progress: see the audit, and try again later")
    entry = await site.audit.add(who, str(action), subject, detail, ended=False)
    task = asyncio.create_task(_run(site, entry, who, step), name="chancy dashboard")
    site.tasks.add(task)
    task.add_done_callback(site.tasks.discard)
    return entry


async def close(site: Site) -> None:
    """Stop all actions after their current batch is committed or rolled back, and all queries."""
    await site.looks.close()
    tasks = list(site.tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _run(site: Site, entry: int, who: str, step: Step) -> None:
    error = None
    try:
        stopped_by, more = None, True
        while more and stopped_by is None:
            more, stopped_by = await _batch(site, entry, who, step)
        error = f"stopped by {stopped_by}" if more else None
    except asyncio.CancelledError:
        error = "the dashboard was stopped"
    except Exception as raised:
        logger.exception("dashboard_action_failed entry=%d", entry)
        error = f"{type(raised).__name__}: {raised}"[:1_000]
    with suppress(ChancyError):  # the database is away: the entry stays in progress
        await site.audit.count(entry, 0, ended=True, error=error)
    site.looks.forget()


async def _batch(site: Site, entry: int, who: str, step: Step) -> tuple[bool, str | None]:
    """One batch. Returns whether there may be more, and who has asked to stop."""
    async with site.chancy.transaction() as connection:
        session = Session(site.store.schema, connection)
        audit = Audit(session, site.keep_audit_days)
        count = await step(Deed(session, audit, who))
        stopped_by = await audit.count(entry, count or 0)
    return count is not None, stopped_by
