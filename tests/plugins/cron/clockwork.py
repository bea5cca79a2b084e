"""What the tests of cron share: entries whose past is made up, and looks into the tables."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from chancy import Chancy, Job, Plugin
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.cron.firing import Firing
from chancy.plugins.cron.store import Entries
from tests.support import jobs
from tests.support.sql import ask

#: Every second; the past is made by `long_ago`.
EVERY_SECOND = "* * * * * *"


def hourly() -> str:
    """Once an hour, and not within the next minutes nor the last ones."""
    return f"{(datetime.now(UTC).minute + 30) % 60} * * * *"


def entry(name: str = "one", schedule: str | None = None, **changes: Any) -> Entry:
    return replace(Entry(name, schedule or hourly(), jobs.note.job(value=name)), **changes)


def ago(dsn: str, name: str, interval: str) -> None:
    """Let an entry have been looked at last so long ago, by the clock of the server."""
    ask(
        dsn,
        "update chancy.cron_entries set next_at = '-infinity', revision = revision + 1, "
        "from_at = '2020-01-01', last_tick = clock_timestamp() - %s::interval where name = %s",
        [interval, name],
    )


def pushed(dsn: str) -> list[dict[str, Any]]:
    """What stands in ``meta["cron"]`` of the unfinished jobs, in the order of their pushes."""
    rows = ask(dsn, "select meta->'cron' from chancy.jobs order by pos")
    return [row[0] for row in rows]


def ticks(dsn: str, name: str = "one") -> list[tuple[bool, str | None, int]]:
    """Of each tick of an entry, oldest first: whether it has a job, why not, what was missed."""
    return ask(
        dsn,
        "select job_id is not null, skipped, missed from chancy.cron_ticks "
        "where entry = %s and not manual order by tick",
        [name],
    )


class Clockwork:
    """An application with entries, fired by hand."""

    def __init__(self, chancy: Chancy, *, keep: int = 100) -> None:
        self.chancy = chancy
        self.entries = Entries(chancy.broker)
        self.firing = Firing(self.entries, keep=keep)

    async def fire(self) -> None:
        """Fire everything that is due."""
        while await self.firing.step() < 0.1:
            pass

    async def add(self, *entries: Entry) -> None:
        for one in entries:
            assert await self.entries.add(one, upsert=True)


@asynccontextmanager
async def clockwork(
    dsn: str, *entries: Entry, keep: int = 100, plugins: Sequence[Plugin] = ()
) -> AsyncGenerator[Clockwork]:
    async with Chancy(dsn, plugins=plugins or [Cron()]) as chancy:
        made = Clockwork(chancy, keep=keep)
        await made.add(*entries)
        yield made


def undeclared() -> Job:
    return Job(func="tests.support.jobs.undecorated", arguments={"value": 1})
