"""The audit: what people did in the dashboard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.errors import StatementFailed
from chancy.plugin.tables import PluginSql, from_row

SQL = PluginSql("chancy.plugins.dashboard", "the pages of the dashboard")
#: Seconds after which an action in progress that has counted nothing is taken for lost. A batch
#: takes less, and so does a call of the application.
_LOST_S = 600.0
#: Insufficient privilege, and a read-only transaction.
_READ_ONLY = ("42501", "25006")
#: Above every id.
_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """What a person did. Times are aware, in UTC.

    :param subject: what it was done to, such as ``queue:mail``.
    :param detail: the ids, the filter or the settings.
    :param jobs: how many jobs, or other things, were changed.
    :param ended_at: None while it is in progress.
    :param error: why it did not end as it should, or who has stopped it.
    :param stopped_by: who has asked it to stop.
    """

    id: int
    at: datetime
    who: str
    action: str
    subject: str
    detail: Any
    jobs: int
    ended_at: datetime | None
    error: str | None
    stopped_by: str | None


class Audit:
    """The rows of the audit.

    :param store: the database, or a session of it with an open transaction.
    """

    def __init__(self, store: Broker | SqlStore, keep_days: float) -> None:
        self._tables = SQL.on(store)
        self._keep_days = keep_days

    async def add(
        self,
        who: str,
        action: str,
        subject: str,
        detail: Mapping[str, Any] | None = None,
        *,
        jobs: int = 0,
        ended: bool = True,
    ) -> int:
        """Write an entry; returns its id."""
        text = json.dumps(detail, default=str) if detail else None
        ((id,),) = await self._tables.fetch(
            "audit_add", who, action, subject, text, jobs, ended, self._keep_days
        )
        return int(id)

    async def count(
        self, id: int, jobs: int, *, ended: bool = False, error: str | None = None
    ) -> str | None:
        """Count jobs of an entry; returns who has asked its action to stop, if anybody has."""
        ((stopped_by,),) = await self._tables.fetch("audit_count", id, jobs, ended, error)
        return None if stopped_by is None else str(stopped_by)

    async def end_lost(self) -> None:
        """End the actions whose process has died. A role that may only read leaves it to others."""
        try:
            await self._tables.fetch("audit_lost", _LOST_S, "its process died before it ended")
        except StatementFailed as error:
            if error.sqlstate not in _READ_ONLY:
                raise

    async def stop(self, id: int, who: str) -> bool:
        """Ask an action to stop; False if it has ended."""
        return bool(await self._tables.fetch("audit_stop", id, who))

    async def get(self, id: int) -> AuditEntry | None:
        found = await self._tables.fetch("audit_page", _LAST, 1, id)
        return _entry(found[0]) if found else None

    async def page(self, before: int | None, limit: int) -> list[AuditEntry]:
        """Entries, newest first, below an id."""
        rows = await self._tables.fetch("audit_page", before or _LAST, limit, None)
        return [_entry(row) for row in rows]


def _entry(row: Sequence[Any]) -> AuditEntry:
    return from_row(AuditEntry, row, detail=lambda text: json.loads(text) if text else None)
