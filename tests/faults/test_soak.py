"""A load with a fault every few seconds, every default plugin, metrics, and the dashboard open.

Each fault once by itself; hours by ``make soak HOURS=2``, which leaves ``soak.json`` and
``soak.svg``.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from chancy import Chancy, Job
from chancy.plugins import standard
from chancy.plugins.dashboard import DashboardPlugin
from chancy.plugins.metrics import Metrics
from tests.faults import fleet as fleets
from tests.faults import jobs, ledger
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.fleet import Fleet
from tests.faults.soak import Readings
from tests.faults.test_combined import Producer
from tests.faults.worker_process import ROOT
from tests.support import faketime
from tests.support.command import started
from tests.support.ports import free_port
from tests.support.replicated import ReplicatedPostgres
from tests.support.sql import ask
from tests.support.waiting import eventually

HOURS = float(os.environ.get("CHANCY_SOAK_HOURS", 0))
SECONDS = HOURS * 3_600 or 48.0
JOBS_PER_S = float(os.environ.get("CHANCY_SOAK_RATE", 500 if HOURS else 150))
#: Seconds between two faults. The short form has one of each kind.
EVERY_S = 30.0 if HOURS else 8.0
TIMEOUT_S = 5.0
WORKERS = 3


class Sustained(Producer):
    """Pushes jobs without a book: the ledger knows how they end."""

    def job(self, number: int) -> Job:
        seconds = 1.0 if number % 50 == 5 else self.chance.uniform(0.001, 0.02)
        return jobs.sustain.job(number, int(number % 10 == 0), seconds)


class Faults:
    """Breaks one thing after the other, each kind once in each round."""

    def __init__(self, place: ReplicatedPostgres, fleet: Fleet, chance: random.Random) -> None:
        self._place = place
        self._fleet = fleet
        self._chance = chance
        #: It is frozen and cut off like the others, but not killed: its memory is watched.
        self.elder = fleet.alive[0]
        self.kinds = [self.kill, self.freeze, self.crash, self.cut, self.fail_over]
        if faketime.find() is not None:
            self.kinds.append(self.step_clock)
        self._left: list[Callable[[], Any]] = []
        self.made: list[str] = []

    async def next(self) -> str:
        """Make a fault, and return its name."""
        if not self._left:
            self._left = self._chance.sample(self.kinds, len(self.kinds))
        fault = self._left.pop()
        await fault()
        self.made.append(fault.__name__)
        return fault.__name__

    async def _younger(self) -> Any:
        def serving() -> list[Any]:
            return [one for one in self._fleet.serving() if one is not self.elder]

        return self._chance.choice(await eventually(serving, timeout=60))

    async def kill(self) -> None:
        await asyncio.to_thread(self._fleet.kill, await self._younger())

    async def step_clock(self) -> None:
        """The next worker has a clock that is wrong by an hour."""
        wrong = self._chance.choice(["+1h", "-1h"])
        victim = await self._younger()
        await asyncio.to_thread(lambda: self._fleet.kill(victim, fake_clock=wrong))

    async def freeze(self) -> None:
        await self._fleet.freeze(self._fleet.choose(), 2 * TIMEOUT_S)

    async def crash(self) -> None:
        await asyncio.to_thread(self._place.primary.server.restart, "immediate")

    async def cut(self) -> None:
        way = self._place.primary.way
        await asyncio.to_thread(way.black_hole)
        await asyncio.sleep(3)  # how long the line is silent
        await asyncio.to_thread(way.heal)

    async def fail_over(self) -> None:
        """Promote the synchronous standby; the old primary becomes that of the new one."""

        def change() -> None:
            old = self._place.primary
            standby = next(one for one in self._place.nodes.values() if one is not old)
            old.server.stop("immediate")
            old.isolate()
            self._place.promote(standby)
            self._place.rejoin(old.name, synchronous=True)

        await asyncio.to_thread(change)


@pytest.fixture
def dashboard(
    replicated: ReplicatedPostgres, tmp_path: Path
) -> Iterator[Callable[[], tuple[psutil.Process, str]]]:
    """Starts the dashboard in a process of its own; returns it, and its address."""
    with ExitStack() as stack:

        def begin() -> tuple[psutil.Process, str]:
            port = free_port()
            program = [sys.executable, "-m", "chancy.cli", "dashboard", f"--port={port}"]
            env = {
                "PYTHONPATH": str(ROOT),
                "CHANCY_DSN": replicated.dsn,
                "CHANCY_PLUGINS": "chancy.metrics,chancy.dashboard",
            }
            outer = stack.enter_context(started(program, cwd=tmp_path, env=env))
            return psutil.Process(outer.pid), f"http://127.0.0.1:{port}/"

        yield begin


async def answers(client: httpx.AsyncClient, address: str) -> bool:
    with suppress(httpx.HTTPError):
        return (await client.get(address)).status_code == 200
    return False


async def watch(address: str, over: Callable[[], bool]) -> int:
    """Look at the dashboard every second; returns how often it has answered."""
    seen = 0
    async with httpx.AsyncClient(timeout=20) as client:
        while not over():
            seen += await answers(client, address)
            await asyncio.sleep(1)
    return seen


@pytest.mark.chaos
@pytest.mark.timeout(int(SECONDS * 1.5) + 600)
async def test_hours_of_load_with_a_fault_every_half_minute(
    replicated: ReplicatedPostgres,
    dashboard: Callable[[], tuple[psutil.Process, str]],
    start_worker: StartWorker,
    book: Book,
    tmp_path: Path,
) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    plugins = [*standard(), Metrics(), DashboardPlugin()]
    await Chancy(replicated.primary.server.dsn(), plugins=plugins).migrate()
    ledger.open_ledger(replicated.primary.server.dsn())
    await asyncio.to_thread(replicated.add, "standby", synchronous=True)
    dsn = replicated.dsn
    settings: dict[str, Any] = {"heartbeat_timeout_s": TIMEOUT_S, "lease_s": 3.0, "entries": 1}
    fleet = Fleet(
        dsn, start_worker, size=WORKERS, chance=chance, concurrency=64, everything=True, **settings
    )
    await asyncio.to_thread(fleet.wait_until_ready)
    faults = Faults(replicated, fleet, chance)
    page, address = dashboard()
    # One that finds no server at its start ends at once.
    async with httpx.AsyncClient() as client:
        await eventually(lambda: answers(client, address), timeout=60)
    readings = Readings(dsn, psutil.Process(faults.elder.pid), page, JOBS_PER_S)
    into = Path(os.environ.get("CHANCY_SOAK_INTO", tmp_path))
    until = time.monotonic() + SECONDS

    def over() -> bool:
        return time.monotonic() >= until and len(faults.made) >= len(faults.kinds)

    async def break_things() -> None:
        due = time.monotonic()
        while not over():
            due += EVERY_S
            fault = await faults.next()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await eventually(partial(read, readings, fault), timeout=60)
            readings.save(into, {"seed": seed, "faults": Counter(faults.made)})

    async with Chancy(dsn, pool_size=4) as chancy:
        producer = Sustained(chancy, book, chance, JOBS_PER_S)
        _, _, seen, _ = await asyncio.gather(
            producer.run(over),
            readings.probe(chancy, over),
            watch(address, over),
            break_things(),
        )
        await eventually(lambda: asyncio.to_thread(drained, dsn), timeout=120)
    await asyncio.to_thread(fleet.stop)
    totals = {"seed": seed, "jobs": producer.pushed, "pushed_again": producer.failed}
    totals |= {"claimed_again": ledger.repeated(dsn), "stale": fleet.stale(), "pages_seen": seen}
    readings.write(into, {**totals, "seconds": SECONDS, "faults": Counter(faults.made)})
    fleets.tell(**totals, p99_ms=[one.p99_ms for one in readings.windows])
    check_ends(dsn, producer.pushed)
    assert seen > SECONDS / 10
    if len(readings.windows) >= 20:
        readings.check_flat()


#: A tick that was due right before the workers stopped waits for the next start.
LATE = """
delete from ledger.pushes as p using chancy.jobs as j
where j.id = p.id and p.func = 'tests.faults.jobs.tick' and j.state <> 1"""
FAILED = (
    "select id, func, state, crashes, errors from chancy.finished_jobs"
    " where state <> 4 and crashes < 3"
)
PUSHED = "select count(*) from ledger.pushes where func = 'tests.faults.jobs.sustain'"


def check_ends(dsn: str, pushed: int) -> None:
    """Each job has ended once, and failed of three crashes only."""
    assert ask(dsn, PUSHED) == [(pushed,)], "lost, or pushed twice"
    ask(dsn, LATE)
    ledger.check(dsn)
    assert ask(dsn, FAILED) == []


async def read(readings: Readings, fault: str) -> bool:
    """Read, unless the server is away."""
    try:
        await asyncio.to_thread(readings.read, fault)
    except psycopg.OperationalError:
        return False
    return True


def drained(dsn: str) -> bool:
    """Whether no job waits but the latest ones of the clock."""
    ((count,),) = ask(
        dsn,
        "select count(*) from chancy.jobs where func <> 'tests.faults.jobs.tick'"
        " or pushed_at < clock_timestamp() - interval '2 seconds'",
    )
    return int(count) == 0
