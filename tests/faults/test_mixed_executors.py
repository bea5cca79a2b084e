"""A worker with a queue for each executor, whose children are killed all the time."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from chancy import Chancy, Job
from tests.faults import jobs, oracles, tables
from tests.faults.book import Book
from tests.support.command import command, started
from tests.support.sql import ask, count
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
JOBS = 20_000
#: Finished jobs of children between two kills. Were it seconds, a slow machine would kill one job
#: three times, which fails it.
KILL_EVERY = 100
ENDED_IN_CHILDREN = "chancy.finished_jobs where queue = 'children'"


@dataclass(slots=True)
class Toll:
    """Whom the test has killed, and what the worker took meanwhile."""

    pids: list[int] = field(default_factory=list[int])
    rss: list[int] = field(default_factory=list[int])

    def kill(self, children: list[psutil.Process]) -> None:
        """Kill one that lives."""
        alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        if alive:
            victim = random.choice(alive)
            self.pids.append(victim.pid)
            victim.kill()


def job_of(book: Book, number: int) -> Job:
    """Half of the jobs for the children, the rest for the threads and the loop."""
    path = str(book)
    match number % 4:
        case 0:
            return jobs.toil.job(path, number, 0.0005).with_queue("threads")
        case 1:
            return jobs.work.job(path, number, 0.001).with_queue("loop")
        case _:
            return jobs.toil.job(path, number, 0.002).with_queue("children")


def blamed(dsn: str) -> list[tuple[int, int]]:
    """The number of each job that counted a crash, and the process that died of it."""
    rows = ask(
        dsn,
        "select (arguments ->> 'number')::int, error ->> 'message'"
        " from chancy.finished_jobs, jsonb_array_elements(errors) as error",
    )
    found = [(number, re.search(r"pid (\d+)", message)) for number, message in rows]
    assert all(match for _, match in found), rows
    return [(number, int(match[1])) for number, match in found if match]


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_killed_children_cost_only_the_job_they_ran(
    chancy: Chancy, dsn: str, book: Book, tmp_path: Path
) -> None:
    await chancy.push_many(job_of(book, number) for number in range(JOBS))
    toll = Toll()
    env = {"CHANCY_DSN": dsn, "PYTHONPATH": str(ROOT)}
    program = command("worker", "--app", "tests.faults.mixed:app", "--processes=0")
    with started(program, cwd=tmp_path, env=env) as worker:
        process = psutil.Process(worker.pid)

        await eventually(lambda: tables.finished(dsn) > 0, timeout=30.0)
        while tables.live(dsn) > 0:
            assert worker.process.poll() is None, worker.log
            toll.rss.append(process.memory_info().rss)
            if count(dsn, ENDED_IN_CHILDREN) > len(toll.pids) * KILL_EVERY:
                toll.kill(process.children())
            # The pace of the fault, not a wait for an effect.
            await asyncio.sleep(0.05)
        worker.process.terminate()
        assert worker.process.wait(30) == 0, worker.log
    check(dsn, book, toll)


def check(dsn: str, book: Book, toll: Toll) -> None:
    assert len(toll.pids) >= 50, "hardly a child was killed"
    oracles.check_all_succeeded(dsn, JOBS)
    assert set(book.count("end")) == set(range(JOBS))
    crashes = blamed(dsn)
    assert crashes, "no child was killed while it ran a job"
    # One job for a death: the one that this child had begun last, or was about to begin.
    assert max(Counter(pid for _, pid in crashes).values()) == 1
    assert {pid for _, pid in crashes} <= set(toll.pids)
    begun = [(entry.pid, entry.number) for entry in book.entries() if entry.phase == "begin"]
    last = dict(begun)
    wronged = {one for one in crashes if (one[1], one[0]) in set(begun) and last[one[1]] != one[0]}
    assert wronged == set()
    attempts, counted, errors = tables.counters(dsn)
    assert (attempts, counted, errors) == (JOBS, len(crashes), len(crashes))
    # What ran again is what was killed, or had been handed to a child that was: once for a crash.
    spent = Counter(number for number, _ in crashes)
    assert all(runs <= 1 + spent[number] for number, runs in book.count("begin").items())
    quarter = len(toll.rss) // 4
    early, late = max(toll.rss[:quarter]), max(toll.rss[-quarter:])
    assert late < early * 1.2 + 16 * 2**20, (early, late)
