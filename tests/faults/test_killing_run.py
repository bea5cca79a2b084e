"""The leader and another worker are killed again and again, under everything at once: retries,
jobs that fail for good, cancellations, and ticks of the clock."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from chancy import Chancy, Job, State
from chancy.attempt.judge import MAX_CRASHES
from chancy.job.ids import new_id
from chancy.plugins.cron import Cron
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.leadership import Leadership
from chancy.postgres.schema import migrate as schema
from tests.faults import fleet as fleets
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.fleet import Fleet
from tests.faults.ledger import Sampler
from tests.support.sql import ask
from tests.support.waiting import eventually

CHUNK = 100
ENTRIES = 3
LEASE_S = 1.2
HEARTBEAT_TIMEOUT_S = 3.0

#: Each tick that was fired has its job, and no job of the clock is without a tick.
TICKS = (
    "select count(*) filter (where p.id is not null), count(*) from ("
    " select job_id from chancy.cron_ticks where job_id is not null) as t"
    " full join (select id from ledger.pushes where func = 'tests.faults.jobs.tick') as p"
    " on p.id = t.job_id"
)
#: What failed for good has its letter, from the moment on at which it failed.
LETTERS = (
    "select count(*), (select count(*) from chancy.finished_jobs where state = 5)"
    " from chancy.dead_letters"
)


@dataclass(slots=True)
class Load:
    """Pushes chunks of jobs of every kind, spread over a time, and cancels some of them."""

    chancy: Chancy
    book: Book
    count: int
    seconds: float
    chance: random.Random
    pushed: int = 0
    #: What became of requests to cancel.
    answers: Counter[str] = field(default_factory=Counter)

    def job(self, number: int) -> Job:
        path, seconds = str(self.book), self.chance.uniform(0.001, 0.01)
        match number % CHUNK:
            case k if k < 80:
                return jobs.work.job(path, number, seconds)
            case k if k < 90:
                return jobs.stagger.job(path, number, 1 + k % 2, seconds)
            case k if k < 95:
                return jobs.stagger.job(path, number, 99, seconds).with_max_attempts(2)
            case k if k < 98:
                return jobs.work.job(path, number).with_delay(3600)
            case _:
                return jobs.work.job(path, number, 600.0)

    async def run(self) -> None:
        began = time.monotonic()
        asking: list[UUID] = []
        for first in range(0, self.count, CHUNK):
            made = [self.job(number).with_id(new_id()) for number in range(first, first + CHUNK)]
            await self.chancy.push_many(made)
            self.pushed += CHUNK
            await self._cancel(asking)
            asking = [one.id for one in made[95:] if one.id is not None]
            due = began + self.seconds * self.pushed / self.count
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await self._cancel(asking)

    async def _cancel(self, ids: list[UUID]) -> None:
        if ids:
            answers = await self.chancy.cancel(*ids)
            self.answers.update(answer.value for answer in answers.values())


async def kill_for(fleet: Fleet, seconds: float, every_s: float) -> None:
    """At each turn the leader, and another one."""
    until = time.monotonic() + seconds
    due = time.monotonic()
    while (due := due + every_s) < until:
        # The pace of the fault, not a wait for an effect.
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await eventually(lambda: asyncio.to_thread(fleet.kill_leader), timeout=10.0)
        await asyncio.to_thread(fleet.kill, fleet.choose())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How long, and under how much."""

    seed: int
    count: int
    seconds: float
    every_s: float
    drain_s: float


async def live_through(chancy: Chancy, book: Book, start_worker: StartWorker, run: Run) -> None:
    dsn, chance, cron = chancy.dsn, random.Random(run.seed), Cron()
    fleets.tell(seed=run.seed)
    with_tables = Chancy(dsn, plugins=[cron, Leadership(), DeadLetters()])
    await asyncio.to_thread(schema.upgrade, dsn, components=with_tables.hooks.components)
    ledger.open_ledger(dsn)
    fleet = Fleet(
        dsn,
        start_worker,
        size=3,
        chance=chance,
        concurrency=16,
        lease_s=LEASE_S,
        entries=ENTRIES,
        dead_letters=True,
        heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
    )
    fleet.wait_until_ready()
    load = Load(chancy, book, run.count, run.seconds, chance)
    with Sampler(dsn, TICKS, LETTERS) as sampler:
        await asyncio.gather(load.run(), kill_for(fleet, run.seconds, run.every_s))
        for number in range(ENTRIES):
            assert await cron.pause(chancy, f"e{number}")
        await eventually(lambda: tables.live(dsn) == 0, timeout=run.drain_s)
    await asyncio.to_thread(fleet.stop)
    sampler.check(at_least=int(run.seconds * 2))
    check_kills(dsn, fleet, int(run.seconds / run.every_s) - 1)
    check_ends(dsn, load)
    check_letters(dsn)
    check_ticks(dsn, run.seconds)
    ledger.check(dsn)
    oracles.check_bounds(dsn)
    oracles.check_claimed_before_each_run(dsn, book)
    assert oracles.find_overlaps(book, fleet.taken_for_dead()) == []
    fleets.tell(
        samples=len(sampler.samples), answers=dict(load.answers), ends=dict(fleets.kinds(dsn))
    )


def check_kills(dsn: str, fleet: Fleet, rounds: int) -> None:
    """In each round a leader and another one died, and others followed."""
    terms = fleets.leases(dsn)
    fleets.tell(
        killed=len(fleet.dead),
        leaders=fleet.leaders,
        terms=terms,
        crashes=tables.counters(dsn)[1],
        claimed_again=ledger.repeated(dsn),
        taken_for_dead=len(fleet.taken_for_dead()),
    )
    assert fleet.leaders >= rounds
    assert len(fleet.dead) >= 2 * rounds
    assert terms > fleet.leaders, "nobody followed a leader"
    fleet.check_the_living()


def check_letters(dsn: str) -> None:
    """The dead letters are the jobs that failed for good, each there once."""
    failed = ask(
        dsn, "select id, attempt, crashes from chancy.finished_jobs where state = 5 order by id"
    )
    letters = ask(dsn, "select id, attempt, crashes from chancy.dead_letters order by id")
    assert letters == failed
    assert letters


def check_ends(dsn: str, load: Load) -> None:
    """Each kind of job has come to the end that it must come to."""
    assert load.pushed == load.count
    rows = ask(
        dsn,
        "select (arguments ->> 'number')::int, state, crashes, attempt from chancy.finished_jobs"
        " where func <> 'tests.faults.jobs.tick'",
    )
    assert sorted(number for number, *_ in rows) == list(range(load.count))
    worn_out = {number for number, _, crashes, _ in rows if crashes >= MAX_CRASHES}
    assert all(state == State.FAILED for number, state, *_ in rows if number in worn_out)
    for number, state, _, attempt in rows:
        if number in worn_out:
            continue
        match number % CHUNK:
            case k if k < 80:
                expected = State.SUCCEEDED, 1
            case k if k < 90:
                expected = State.SUCCEEDED, 2 + k % 2
            case k if k < 95:
                expected = State.FAILED, 2
            case _:
                expected = State.CANCELLED, attempt
        assert (state, attempt) == expected, number
    assert sum(crashes for *_, crashes, _ in rows) > 0, "the dead held nothing"
    assert load.answers["asked"] > 0, "nothing was cancelled while it ran"


def check_ticks(dsn: str, seconds: float) -> None:
    """Every tick of every entry has pushed one job, from the first to the last."""
    found: dict[str, list[datetime]] = {}
    for entry, tick in ask(
        dsn,
        "select meta -> 'cron' ->> 'entry', (meta -> 'cron' ->> 'tick')::timestamptz"
        " from chancy.finished_jobs where func = 'tests.faults.jobs.tick' order by 1, 2",
    ):
        found.setdefault(entry, []).append(tick)
    entries = ask(dsn, "select name, from_at, last_tick from chancy.cron_entries")
    assert len(entries) == ENTRIES
    for name, begin, end in entries:
        first = begin.replace(microsecond=0) + timedelta(seconds=1)
        count = int((end - first).total_seconds()) + 1
        assert found[name] == [first + timedelta(seconds=n) for n in range(count)], name
        assert count > 0.8 * seconds  # the last leaders may have died with a tick in hand


@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_leader_and_worker_killed_every_two_seconds_for_half_a_minute(
    chancy: Chancy, book: Book, start_worker: StartWorker
) -> None:
    run = Run(seed=12, count=10_000, seconds=30.0, every_s=2.0, drain_s=90.0)
    await live_through(chancy, book, start_worker, run)
