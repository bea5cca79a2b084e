"""Ticks under fire: workers killed while they push, leaders that go, clocks that are wrong."""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from chancy import Chancy
from chancy.plugins.cron import Cron
from chancy.plugins.leadership import Leadership
from chancy.postgres.schema import migrate as schema
from tests.faults.worker_process import ROOT
from tests.plugins.cron.clockwork import pushed
from tests.support.command import Started, started
from tests.support.faketime import faketime
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

#: What a busy machine may add, in seconds.
SLACK_S = 1.5

Start = Callable[..., Started]


@pytest.fixture
def start(dsn: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a process of `tests.faults.run_cron` on the tables that it needs."""
    plugins = [Cron(), Leadership()]
    schema.upgrade(dsn, components=Chancy(dsn, plugins=plugins).hooks.components)
    with ExitStack() as stack:

        def begin(lease_s: float = 0.0, **env: str) -> Started:
            program = [sys.executable, "-m", "tests.faults.run_cron", dsn, str(lease_s)]
            variables = {"PYTHONPATH": str(ROOT), **env}
            return stack.enter_context(started(program, cwd=tmp_path, env=variables))

        yield begin


def ready(*processes: Started) -> None:
    for one in processes:
        eventually_sync(lambda one=one: "ready" in one.log, timeout=30)  # type: ignore[misc]


def fill(dsn: str, entries: int, *, missed_s: int) -> None:
    """Entries that are due every second and have missed so many ticks."""
    ask(
        dsn,
        "insert into chancy.cron_entries (name, expression, misfire, backfill_limit, func, from_at)"
        " select 'e' || n, '* * * * * *', 'all', 1000, 'a.b',"
        " date_trunc('second', clock_timestamp()) - %s * interval '1 s'"
        " from generate_series(1, %s) as n",
        [missed_s, entries],
    )


def check_once(dsn: str, entries: int) -> None:
    """Every tick of every entry, from the first missed one to the last, has one job."""
    ends = dict(ask(dsn, "select name, last_tick from chancy.cron_entries"))
    begins = dict(ask(dsn, "select name, from_at from chancy.cron_entries"))
    found: dict[str, list[datetime]] = defaultdict(list)
    for one in pushed(dsn):
        found[one["entry"]].append(datetime.fromisoformat(one["tick"]))
    assert len(found) == entries
    for name, ticks in found.items():
        count = int((ends[name] - begins[name]).total_seconds())
        expected = [begins[name] + timedelta(seconds=n + 1) for n in range(count)]
        assert sorted(ticks) == expected, f"{name}: {len(ticks)} ticks of {count}"


def last_tick(dsn: str) -> datetime:
    """Up to which tick all entries have been fired."""
    found: datetime = ask(dsn, "select min(coalesce(last_tick, from_at)) from chancy.cron_entries")[
        0
    ][0]
    return found


@pytest.mark.chaos
@pytest.mark.timeout(90)
def test_workers_that_are_killed_while_they_fire_fire_each_tick_once(
    dsn: str, start: Start
) -> None:
    """Ten entries with 200 missed ticks each, and more every second, while three workers without
    a leader fire them and one of them is killed every half second."""
    fill(dsn, 10, missed_s=200)
    first = last_tick(dsn)
    alive = [start(), start(), start()]
    killed = 0
    chance = random.Random(7)
    until = time.monotonic() + 8
    # On a busy machine most are killed before they are ready.
    while time.monotonic() < until or (killed < 3 and time.monotonic() < until + 40):
        due = time.monotonic() + chance.uniform(0.3, 0.6)
        eventually_sync(lambda due=due: time.monotonic() > due)  # type: ignore[misc]
        victim = alive.pop(chance.randrange(3))
        killed += "ready" in victim.log
        victim.process.kill()
        alive.append(start())
    done = last_tick(dsn)
    ready(*alive)
    eventually_sync(lambda: last_tick(dsn) > done + timedelta(seconds=2), timeout=30)
    for one in alive:
        one.process.terminate()
        one.process.wait(20)
    assert killed >= 3
    assert last_tick(dsn) - first > timedelta(seconds=205)
    check_once(dsn, 10)


@pytest.mark.chaos
@pytest.mark.alone
def test_another_continues_when_the_leader_is_killed(dsn: str, start: Start) -> None:
    lease_s = 1.5
    both = [start(lease_s), start(lease_s)]
    ready(*both)
    fill(dsn, 3, missed_s=0)
    begin = last_tick(dsn)
    eventually_sync(lambda: last_tick(dsn) >= begin + timedelta(seconds=2))
    (pid,) = ask(
        dsn,
        "select w.pid from chancy.leadership_leases as l"
        " join chancy.workers as w on w.id = l.holder",
    )[0]
    leader = next(one for one in both if one.pid == pid)
    other = next(one for one in both if one.pid != pid)
    leader.process.kill()
    at = ask(dsn, "select clock_timestamp()")[0][0]
    eventually_sync(lambda: last_tick(dsn) >= at + timedelta(seconds=3))
    other.process.terminate()
    other.process.wait(20)
    check_once(dsn, 3)
    late = ask(dsn, "select max(fired_at - tick) from chancy.cron_ticks")[0][0]
    assert late < timedelta(seconds=lease_s + SLACK_S)


@pytest.mark.chaos
@pytest.mark.parametrize("fake", ["+1h", "-1h", "+0 x2"])
def test_a_worker_on_a_wrong_clock_fires_by_that_of_the_server(
    dsn: str, start: Start, fake: str
) -> None:
    odd = start(LD_PRELOAD=faketime(), FAKETIME=fake, FAKETIME_FORCE_MONOTONIC_FIX="0")
    right = start()
    ready(odd, right)
    right.process.terminate()
    right.process.wait(20)
    fill(dsn, 3, missed_s=0)
    begin = last_tick(dsn)
    eventually_sync(lambda: last_tick(dsn) >= begin + timedelta(seconds=3))
    right = start()
    ready(right)
    both = last_tick(dsn)
    eventually_sync(lambda: last_tick(dsn) >= both + timedelta(seconds=3))
    for one in (odd, right):
        one.process.terminate()
        one.process.wait(20)
    check_once(dsn, 3)
    early, late = ask(
        dsn, "select min(fired_at - tick), max(fired_at - tick) from chancy.cron_ticks"
    )[0]
    assert timedelta(0) <= early <= late < timedelta(seconds=SLACK_S)
