"""A standby is promoted under load, behind a DSN of several hosts and behind PgBouncer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from chancy import BrokerError, Chancy
from chancy.job.ids import new_id
from tests.faults import fleet as fleets
from tests.faults import jobs, ledger, oracles
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.pgbouncer import pgbouncer
from tests.support.replicated import HERE, ReplicatedPostgres, ask_server
from tests.support.sql import ask
from tests.support.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

JOBS_PER_S = 100
#: Seconds from the first push to the death of the primary, and for which the asynchronous standby
#: is behind by then.
LOAD_S, BEHIND_S = 4.0, 1.0
#: Seconds between a commit and its acknowledgement, or its arrival at a standby, at most.
MARGIN_S = 0.5
#: The most seconds in which a job has to start on the new primary.
AGAIN_S = 20.0


class Pushes:
    """Pushes one job after the other, and remembers when each was acknowledged."""

    def __init__(self, chancy: Chancy, book: Book) -> None:
        self._chancy = chancy
        self._book = book
        self.acknowledged: dict[int, float] = {}
        self.ids: dict[int, UUID] = {}
        #: Those that were pushed again after an error.
        self.repeated = set[int]()
        self.over = False

    async def run(self) -> None:
        began, number = time.monotonic(), 0
        pushes = set[asyncio.Task[None]]()
        while not self.over:
            pushes.add(asyncio.create_task(self._push(number)))
            number += 1
            await asyncio.sleep(max(0.0, began + number / JOBS_PER_S - time.monotonic()))
        await asyncio.gather(*pushes)

    async def _push(self, number: int) -> None:
        id = self.ids[number] = new_id()
        job = jobs.work.job(str(self._book), number, random.uniform(0, 0.1)).with_id(id)
        while not self.over or number not in self.acknowledged:
            try:
                await self._chancy.push(job)
            except BrokerError:
                self.repeated.add(number)
                await asyncio.sleep(0.1)
            else:
                self.acknowledged[number] = time.monotonic()
                return


@pytest.mark.parametrize(("door", "synchronous"), [("hosts", True), ("pgbouncer", False)])
async def test_a_standby_is_promoted_under_load(
    replicated: ReplicatedPostgres,
    start_worker: StartWorker,
    book: Book,
    open_directory: Path,
    synchronous: bool,
    door: str,
) -> None:
    old = replicated.primary
    ledger.open_ledger(old.server.dsn())
    new = await asyncio.to_thread(replicated.add, "standby", synchronous=synchronous)
    assert new.feed is not None
    with ExitStack() as stack:
        dsn = listen_dsn = replicated.dsn
        if door == "pgbouncer":
            port = stack.enter_context(pgbouncer(old.way.port, open_directory, size=20))
            dsn = f"postgresql://postgres@{HERE}:{port}/postgres"
        settings: dict[str, Any] = {"listen_dsn": listen_dsn, "heartbeat_timeout_s": 10.0}
        workers = [start_worker(dsn, **settings) for _ in range(2)]
        for worker in workers:
            await asyncio.to_thread(worker.wait_until_ready)
        async with Chancy(dsn, listen_dsn=listen_dsn) as chancy:
            pushes = Pushes(chancy, book)
            pushing = asyncio.create_task(pushes.run())
            await eventually(lambda: len(pushes.acknowledged) > JOBS_PER_S * LOAD_S)
            behind_from = time.monotonic()
            if not synchronous:
                new.feed.black_hole()
                await eventually(lambda: time.monotonic() > behind_from + BEHIND_S)
            dead_at = time.monotonic()
            old.server.stop("immediate")
            old.isolate()
            await asyncio.to_thread(replicated.promote, new)
            if door == "pgbouncer":
                old.way.target = (HERE, new.server.port)
                old.way.heal()
            promoted_at = time.monotonic()
            await eventually(lambda: began_after(book, promoted_at), timeout=AGAIN_S)
            again_at = began_after(book, promoted_at)
            await eventually(lambda: len(pushes.acknowledged) > JOBS_PER_S * 2 * LOAD_S)
            pushes.over = True
            await pushing
            await eventually(lambda: ask_server(new.server, LIVE) == 0, timeout=60)
        for worker in workers:
            await asyncio.to_thread(worker.stop)
    lost = sorted(pushes.acknowledged.keys() - ended(new.server.dsn()))
    runs = Counter(entry.number for entry in book.entries() if entry.phase == "begin")
    told = {"door": door, "synchronous": synchronous, "pushed": len(pushes.acknowledged)}
    told |= {"promoted_after_s": promoted_at - dead_at, "again_after_s": again_at - dead_at}
    twice = sum(1 for count in runs.values() if count > 1)
    fleets.tell(**told, lost=len(lost), twice=twice)
    assert bool(lost) is not synchronous
    # Only what was not replicated: acknowledged while the standby was behind.
    when = [pushes.acknowledged[number] for number in lost]
    assert all(behind_from - MARGIN_S < one < dead_at + MARGIN_S for one in when)
    ledger.check(new.server.dsn())
    span = None if synchronous else (behind_from - MARGIN_S, dead_at + MARGIN_S)
    check_claimed(new.server.dsn(), book, span)


LIVE = "select count(*) from chancy.jobs"


def check_claimed(dsn: str, book: Book, behind: tuple[float, float] | None) -> None:
    """Nothing ran without a claim but what began by a claim that was not replicated.

    :param behind: the time in which there were such claims.
    """
    if behind is None:
        oracles.check_claimed_before_each_run(dsn, book)
        return
    first, last = behind
    begun = Counter(
        entry.number
        for entry in book.entries()
        if entry.phase == "begin" and first < entry.at_ns / 1e9 < last
    )
    beyond = oracles.find_unclaimed(dsn, book)
    assert all(runs - claims <= begun[number] for number, (runs, claims) in beyond.items())


def began_after(book: Book, at: float) -> float:
    """When the first job began after a time; 0 if none did."""
    began = [one.at_ns / 1e9 for one in book.entries() if one.phase == "begin"]
    return min((one for one in began if one > at), default=0.0)


def ended(dsn: str) -> set[int]:
    """The jobs that have ended, each with a result of its own."""
    rows = ask(
        dsn,
        "select (arguments ->> 'number')::int, result::text, state from chancy.finished_jobs",
    )
    wrong = [row for row in rows if row[1] != str(row[0]) or row[2] != 4]
    assert wrong == [], "a settlement has reached another job"
    assert len({number for number, *_ in rows}) == len(rows)
    return {number for number, *_ in rows}
