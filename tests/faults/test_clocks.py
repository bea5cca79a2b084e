"""The clock of the server is set, forward and back, and runs at twice its speed."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chancy import Chancy, Plugin, Queue, State, Worker
from chancy.embedded import postgres
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.postgres.schema import migrate as schema
from tests.support import jobs
from tests.support.faketime import faketime
from tests.support.postgres_fixtures import OwnServer
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

HEARTBEAT_TIMEOUT_S = 1.5
LEASE_S = 1.5
#: The clock at first, and as what it is set to then.
CLOCKS = ("+0", "+1h", "+1h x2", "+0")

LAST = "select last_tick from chancy.cron_entries"
#: How often each tick was fired, and how many there are between the first and the last.
TICKS = (
    "select count(*), count(distinct meta -> 'cron' ->> 'tick'),"
    " min((meta -> 'cron' ->> 'tick')::timestamptz), max((meta -> 'cron' ->> 'tick')::timestamptz)"
    " from (select meta, func from chancy.jobs union all"
    " select meta, func from chancy.finished_jobs) as j where func = 'tests.support.jobs.note'"
    " and meta ? 'cron'"
)


def application(dsn: str) -> Chancy:
    entry = Entry("often", "* * * * * */5", jobs.note.job(0), misfire="all", backfill_limit=1000)
    plugins: list[Plugin] = [
        Leadership(lease_s=LEASE_S),
        Recovery(sweep_s=0.2),
        Cron(entry, poll_s=0.2, keep_ticks=10_000),
    ]
    queue = Queue(name="async", executor="async", concurrency=50)
    return Chancy(dsn, queues=[queue], plugins=plugins, no_default_plugins=True)


def fired_since(dsn: str, before: datetime | None) -> bool:
    last: datetime | None = ask(dsn, LAST)[0][0]
    return last is not None and (before is None or last > before)


@pytest.mark.chaos
async def test_a_changed_server_clock_kills_no_worker_and_loses_no_tick(
    own_server: OwnServer,
    open_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = open_directory / "clock"
    clock.write_text(CLOCKS[0])
    fake = {
        "LD_PRELOAD": faketime(),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
    }
    usual = postgres.environment()
    monkeypatch.setattr(postgres, "environment", lambda: usual | fake)
    dsn = own_server(migrated=False).dsn()
    first, second = application(dsn), application(dsn)
    await asyncio.to_thread(schema.upgrade, dsn, components=first.hooks.components)
    beating: dict[str, Any] = {"heartbeat_s": 0.2, "heartbeat_timeout_s": HEARTBEAT_TIMEOUT_S}
    async with first, second, Worker(first, **beating) as one, Worker(second, **beating) as two:
        ids = one.worker_id, two.worker_id
        long = await first.push(jobs.wait_for_ever.job())
        for number, now in enumerate(CLOCKS):
            before = ask(dsn, LAST)[0][0]
            clock.write_text(now)
            later = await first.push(jobs.note.job(number).with_delay(2))
            assert (await later.wait(20)).state is State.SUCCEEDED
            await eventually(lambda: one.leader.leading or two.leader.leading)
            if number < 3:
                await eventually(partial(fired_since, dsn, before))
            # For as long as a silence that means a death, and a sweep, may take.
            await asyncio.sleep(2 * HEARTBEAT_TIMEOUT_S)
            assert (one.worker_id, two.worker_id) == ids
        still = present(await long.get())
        assert (still.state, still.attempt, still.crashes) == (State.RUNNING, 1, 0)
        await first.cancel(long.id)
        await long.wait(10)
    count, distinct, begin, end = ask(dsn, TICKS)[0]
    assert end - begin > timedelta(hours=1)
    assert count == distinct == (end - begin) / timedelta(seconds=5) + 1
    assert "rescued" not in caplog.text
    assert "declared_dead" not in caplog.text
