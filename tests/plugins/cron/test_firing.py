"""Cron by its effects on Postgres. The time is the server's; a past is made by moving the last
tick back, so that no clock has to be changed."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from chancy import BrokerUnavailable, Chancy, JobFilter
from chancy.plugins.cron import Misfire, Overlap, firing
from chancy.plugins.cron.firing import TICKS, Firing, FiringPlan, columns, plan
from chancy.plugins.cron.store import SQL, Entries
from chancy.schedule import Schedule, jitter_s
from tests.plugins.cron.clockwork import (
    EVERY_SECOND,
    Clockwork,
    ago,
    clockwork,
    entry,
    hourly,
    pushed,
    ticks,
)
from tests.support import jobs
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_a_tick_pushes_its_job_and_identifies_itself(dsn: str) -> None:
    async with clockwork(dsn, entry(schedule="* * * * *")) as clock:
        await clock.fire()
        assert pushed(dsn) == []
        ago(dsn, "one", "1 minute")
        await clock.fire()
        (found,) = await clock.chancy.find_jobs(JobFilter())
        stored = present(await clock.entries.get("one"))
        assert stored.last_tick is not None
        assert found.meta["cron"] == {"entry": "one", "tick": stored.last_tick.isoformat()}
        assert found.arguments == {"value": "one"}
        assert stored.next_at == stored.last_tick + timedelta(minutes=1)
        (tick,) = await clock.entries.history("one")
        assert (tick.tick, tick.job_id, tick.manual) == (stored.last_tick, found.id, False)


async def test_concurrent_workers_fire_each_tick_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 entries with two ticks each, and eight services that go for the same few of them."""
    monkeypatch.setattr(firing, "BATCH", 10)
    async with clockwork(dsn) as clock, Chancy(dsn, pool_size=10) as other:
        ask(
            dsn,
            "insert into chancy.cron_entries (name, expression, misfire, func, from_at)"
            " select 'e' || n, %s, 'all', 'a.b', clock_timestamp() - interval '2 hours'"
            " from generate_series(1, 200) as n",
            [hourly()],
        )
        firings = [
            Firing(Entries(chancy.broker), keep=100)
            for chancy in (clock.chancy, other)
            for _ in range(4)
        ]
        while ask(dsn, "select name from chancy.cron_entries where next_at < now()"):
            await asyncio.gather(*(one.step() for one in firings))
    found = [(one["entry"], one["tick"]) for one in pushed(dsn)]
    assert len(set(found)) == len(found) == 400


async def test_steps_beside_a_locked_row_are_rare_and_miss_no_tick(dsn: str) -> None:
    async with clockwork(dsn, entry(), entry("second", EVERY_SECOND)) as clock:
        await clock.fire()
        ago(dsn, "one", "2 hours")
        ask(dsn, "update chancy.cron_entries set paused_at = now() where name = 'second'")
        with psycopg.connect(dsn) as holder:
            holder.execute("select from chancy.cron_entries where name = 'one' for update")
            pauses = [await clock.firing.step() for _ in range(8)]
            assert pauses == [0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
            # The next entry is due within a second.
            assert await clock.entries.resume("second")
            assert min([await clock.firing.step() for _ in range(3)]) < 1.0
            assert pushed(dsn) == [] or {one["entry"] for one in pushed(dsn)} == {"second"}
        await clock.entries.pause("second")  # whose next tick may be due at any moment
        await clock.fire()
        assert "one" in {one["entry"] for one in pushed(dsn)}
        assert await clock.firing.step() > 0.02


async def test_locked_entries_hide_none_that_are_due_later(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "BATCH", 2)
    names = [f"e{number}" for number in range(7)]
    async with clockwork(dsn, *(entry(name) for name in names)) as clock:
        await clock.fire()
        for number, name in enumerate(names):
            ago(dsn, name, f"{70 - number} minutes")
            changed = "update chancy.cron_entries set next_at = last_tick where name = %s"
            ask(dsn, changed, [name])
        with psycopg.connect(dsn) as holder:
            held = names[:4]
            ask(
                holder, "select 1 from chancy.cron_entries where name = any (%s) for update", [held]
            )
            await clock.fire()
            assert {one["entry"] for one in pushed(dsn)} == {*names} - {*held}
            # It begins again from the front, and less often.
            pauses = [await clock.firing.step() for _ in range(18)]
            assert max(pauses) == 1.0
        await clock.fire()
    assert {one["entry"] for one in pushed(dsn)} == {*names}


async def test_an_invalid_entry_that_is_locked_keeps_no_others_waiting(dsn: str) -> None:
    async with clockwork(dsn, entry("bad"), entry("good")) as clock:
        for name in ("bad", "good"):
            ago(dsn, name, "1 hour")
        ask(dsn, "update chancy.cron_entries set zone = 'Nowhere' where name = 'bad'")
        with psycopg.connect(dsn) as holder:
            ask(holder, "select from chancy.cron_entries where name = 'bad' for update")
            async with asyncio.timeout(10):
                pauses = [await clock.firing.step() for _ in range(4)]
            assert {one["entry"] for one in pushed(dsn)} == {"good"}
            assert pauses == [0.02, 0.04, 0.08, 0.16]
        await clock.fire()
        stored = present(await clock.entries.get("bad"))
        assert stored.problem


class Lossy(Entries):
    """Entries whose statements are done, while every other answer is lost."""

    calls = 0

    async def fire(self, *columns: Sequence[object]) -> Sequence[Sequence[Any]]:
        found = await super().fire(*columns)
        self.calls += 1
        if self.calls % 2:
            raise BrokerUnavailable("the answer is lost")
        return found


async def test_a_tick_whose_answer_was_lost_is_not_fired_again(dsn: str) -> None:
    async with clockwork(dsn, entry(misfire=Misfire.ALL)) as clock:
        lossy = Firing(Lossy(clock.chancy.broker), keep=100)
        for _ in range(3):
            ago(dsn, "one", "3 hours")
            ask(dsn, "delete from chancy.cron_ticks")
            with suppress(BrokerUnavailable):
                await lossy.step()
            await lossy.step()
    assert len(pushed(dsn)) == 3 * 3


async def test_a_stale_read_of_an_entry_changes_nothing(dsn: str) -> None:
    """As a leader does that was frozen, and wakes up when another has done its work."""
    names = ("fired", "paused", "paused_by_sql", "changed")
    async with clockwork(dsn, *map(entry, names)) as clock:
        for name in names:
            ago(dsn, name, "1 hour")
        found, _ = await clock.entries.due(10)
        plans = [one for one in (plan(due.row) for due in found) if isinstance(one, FiringPlan)]
        assert len(plans) == 4
        await clock.entries.pause("paused")
        ask(dsn, "update chancy.cron_entries set paused_at = now() where name = 'paused_by_sql'")
        await clock.add(entry("changed", "0 0 1 1 *"))
        await clock.fire()
        ask(dsn, "delete from chancy.cron_ticks")
        before = pushed(dsn)
        assert await clock.entries.fire(*columns(plans)) == []
        assert pushed(dsn) == before
        assert [one["entry"] for one in before] == ["fired"]


@pytest.mark.parametrize(
    ("policy", "late", "expected"),
    [
        (Misfire.SKIP, "10 hours", [(False, "late", 9)]),
        (Misfire.ONE, "10 hours", [(True, None, 9)]),
        (
            Misfire.ALL,
            "10 hours",
            [(True, None, 6), (True, None, 0), (True, None, 0), (True, None, 0)],
        ),
    ],
)
async def test_missed_ticks_follow_their_misfire_policy(
    dsn: str, policy: Misfire, late: str, expected: list[object]
) -> None:
    async with clockwork(dsn, entry(misfire=policy, backfill_limit=4)) as clock:
        ago(dsn, "one", late)
        await clock.fire()
        assert ticks(dsn) == expected
        await clock.fire()
        assert len(ticks(dsn)) == len(expected)


async def test_missed_ticks_with_large_jobs_are_fired_a_few_at_a_time(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    fire = Entries.fire

    async def counted(entries: Entries, *given: Sequence[object]) -> Sequence[Sequence[Any]]:
        rows = await fire(entries, *given)
        counts.append(sum(row[2] is not None for row in rows))
        return rows

    monkeypatch.setattr(Entries, "fire", counted)
    large = jobs.note.job(value=secrets.token_hex(390_000))
    one, other = (
        entry(name, misfire=Misfire.ALL, overlap=Overlap.ALLOW, job=large)
        for name in ("one", "other")
    )
    async with clockwork(dsn, one, other, entry("small")) as clock:
        for name, late in (("one", "25 hours"), ("other", "3 hours"), ("small", "1 hour")):
            ago(dsn, name, late)
        await clock.fire()
    assert max(counts) == 10
    assert ticks(dsn) == [(True, None, 0)] * 25
    assert ticks(dsn, "other") == [(True, None, 0)] * 3
    assert len(pushed(dsn)) == 29


async def test_ticks_are_fired_while_the_threads_of_the_loop_are_blocked(dsn: str) -> None:
    """As by jobs that wait in ``asyncio.to_thread``."""
    released = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    async with clockwork(dsn, entry()) as clock:
        ago(dsn, "one", "1 hour")
        blocked = loop.run_in_executor(None, released.wait)
        try:
            await asyncio.wait_for(clock.fire(), 10)
        finally:
            released.set()
            await blocked
    assert len(pushed(dsn)) == 1


async def test_a_tick_that_is_hardly_late_is_not_skipped(dsn: str) -> None:
    async with clockwork(dsn, entry(schedule=EVERY_SECOND, misfire="skip")) as clock:
        ago(dsn, "one", "1 second")
        await clock.fire()
    assert ticks(dsn)[0][:2] == (True, None)


async def test_a_tick_is_skipped_while_the_job_before_is_unfinished(dsn: str) -> None:
    async with clockwork(
        dsn,
        entry(overlap=Overlap.SKIP, misfire=Misfire.ALL),
        entry("two", overlap=Overlap.ALLOW, misfire=Misfire.ALL),
    ) as clock:
        for name in ("one", "two"):
            ago(dsn, name, "3 hours")
        await clock.fire()
        assert [one[:2] for one in ticks(dsn)] == [(True, None)] + [(False, "overlap")] * 2
        assert [one[:2] for one in ticks(dsn, "two")] == [(True, None)] * 3
        (first,) = ask(dsn, "select jobs[1] from chancy.cron_entries where name = 'one'")[0]
        ask(dsn, "delete from chancy.cron_ticks")
        ago(dsn, "one", "1 hour")
        await clock.fire()
        assert [one[:2] for one in ticks(dsn)] == [(False, "overlap")]
        ask(dsn, "delete from chancy.cron_ticks")
        await clock.chancy.cancel(first)
        ago(dsn, "one", "1 hour")
        await clock.fire()
        assert [one[:2] for one in ticks(dsn)] == [(True, None)]


async def test_jitter_puts_jobs_off_and_all_agree_by_how_much(dsn: str) -> None:
    async with clockwork(dsn, entry(jitter_s=86_400.0, misfire=Misfire.ALL)) as clock:
        ago(dsn, "one", "10 hours")
        await clock.fire()
    rows = ask(dsn, "select tick, run_at from chancy.cron_ticks order by tick")
    assert len(rows) == 10
    for tick, run_at in rows:
        expected = tick.astimezone(UTC) + timedelta(seconds=jitter_s("one", tick, 86_400.0))
        assert abs(run_at - expected) < timedelta(microseconds=2)
    states = ask(dsn, "select (state = 2) = (run_at > pushed_at) from chancy.jobs")
    assert states == [(True,)] * 10


async def fires(clock: Clockwork, dsn: str) -> bool:
    await clock.fire()
    return bool(pushed(dsn))


async def test_a_clock_that_goes_back_repeats_no_tick(dsn: str) -> None:
    """The last tick is ahead of the server's time, as after its clock went back by two hours."""
    async with clockwork(dsn, entry(schedule=EVERY_SECOND, misfire=Misfire.ALL)) as clock:
        ago(dsn, "one", "-2 hours")
        await clock.fire()
        assert pushed(dsn) == []
        stored = present(await clock.entries.get("one"))
        assert stored.next_at is not None
        assert stored.next_at - stored.read_at > timedelta(hours=1, minutes=59)
        # After a pause ticks count from now on, and so do those of another expression.
        assert await clock.entries.pause("one")
        assert await clock.entries.resume("one")
        await eventually(lambda: fires(clock, dsn))
        ago(dsn, "one", "-2 hours")
        await clock.add(entry(schedule="* * * * * */2"))
        ask(dsn, "delete from chancy.jobs")
        await eventually(lambda: fires(clock, dsn))


async def test_ticks_of_the_days_on_which_clocks_change(dsn: str) -> None:
    """400 days of a daily schedule span both changes of the clock: one tick on each local day.

    Between the hour of the tick in summer and in winter, the first day of a span that begins in
    summer and ends in winter has passed its tick and the last one has not: 399 ticks.
    """
    zone = "Europe/Berlin"
    daily = entry(schedule="30 2 * * *", zone=zone, misfire=Misfire.ALL, backfill_limit=1_000)
    async with clockwork(dsn, daily) as clock:
        ago(dsn, "one", "400 days")
        since = ask(dsn, "select last_tick from chancy.cron_entries")[0][0]
        await clock.fire()
        stored = await clock.entries.get("one")
    assert stored is not None
    expected = Schedule("30 2 * * *", zone).between(since, stored.read_at, 1_000)
    assert [datetime.fromisoformat(one["tick"]) for one in pushed(dsn)] == expected
    assert {tick.hour for tick in expected} == {0, 1}
    days = [tick.astimezone(ZoneInfo(zone)).date() for tick in expected]
    assert days == [days[0] + timedelta(days=n) for n in range(len(days))]
    assert 399 <= len(days) <= 401


async def test_the_history_is_kept_short(dsn: str) -> None:
    async with clockwork(
        dsn, entry(schedule=EVERY_SECOND, misfire=Misfire.ALL, backfill_limit=TICKS), keep=5
    ) as clock:
        for _ in range(2):
            ago(dsn, "one", "2 hours")
            await clock.fire()
            assert 5 <= len(ticks(dsn)) <= 8
        assert len(pushed(dsn)) >= TICKS


async def test_a_tick_in_the_history_is_not_fired_again(dsn: str) -> None:
    """Whatever somebody did to the last tick of its entry."""
    async with clockwork(dsn, entry(misfire=Misfire.ALL)) as clock:
        for _ in range(2):
            ago(dsn, "one", "3 hours")
            await clock.fire()
            assert len(pushed(dsn)) == 3


def test_due_jobs_are_found_by_the_index(dsn: str) -> None:
    """Of 10,000 entries, with a full table of them on other times, a few pages are read."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into chancy.cron_entries (name, expression, func, next_at)"
            " select 'e' || n, '@daily', 'a.b', now() + interval '1 day' - n * interval '1 s'"
            " from generate_series(1, 10000) as n"
        )
        connection.execute(
            "insert into chancy.cron_entries (name, expression, func)"
            " select 'due' || n, '@daily', 'a.b' from generate_series(1, 20) as n"
        )
        connection.execute("vacuum analyze chancy.cron_entries")
        text = SQL.statement("due", "chancy")
        for name, value in (("$1", "200"), ("$2", "'{e1}'"), ("$3", "0")):
            text = text.replace(name, value)
        plan = connection.execute(
            f"explain (analyze, buffers, costs off, timing off) {text}".encode()
        ).fetchall()
    shown = "\n".join(row[0] for row in plan)
    assert "Seq Scan on cron_entries" not in shown, shown
    assert shown.count("cron_entries_next") >= 2, shown
    touched = present(re.search(r"Buffers: shared hit=(\d+)", shown))
    assert int(touched[1]) < 60, shown
