"""Workers under a supervisor: starved, stopped, killed, and left alone."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from chancy import Chancy, Job, State, Worker
from tests.faults import jobs, oracles, tables, watched
from tests.faults.book import Book
from tests.faults.worker_process import ROOT
from tests.support.command import Started, command, started
from tests.support.waiting import eventually

QUICK = ("--heartbeat=0.3", "--heartbeat-timeout=1.5")

READY = re.compile("child_ready .* queues=children,default,loop,threads ")

Start = Callable[..., AbstractContextManager[Started]]


@pytest.fixture
def start(dsn: str, tmp_path: Path) -> Start:
    """Run ``chancy worker`` with these options on the test's database."""

    @contextmanager
    def run(*options: str) -> Generator[Started]:
        program = command("worker", "--app=tests.faults.watched:app", *options)
        env = {"CHANCY_DSN": dsn, "PYTHONPATH": str(ROOT)}
        with started(program, cwd=tmp_path, env=env) as supervisor:
            try:
                yield supervisor
            finally:
                # One that was stopped cannot see that its supervisor is gone.
                for pid in workers_of(supervisor):
                    with suppress(psutil.NoSuchProcess):
                        child = psutil.Process(pid)
                        if "--app=tests.faults.watched:app" in child.cmdline():
                            child.kill()

    return run


def other(dsn: str) -> Chancy:
    """An application whose worker sweeps often."""
    return Chancy(dsn, plugins=watched.plugins(), no_default_plugins=True)


def quick(chancy: Chancy, *queues: str) -> Worker:
    return Worker(chancy, queues=queues, heartbeat_s=0.3, heartbeat_timeout_s=1.5)


def workers_of(supervisor: Started) -> list[int]:
    """The processes that were started, the latest last."""
    return [int(pid) for pid in re.findall(r"child_started number=\d+ pid=(\d+)", supervisor.log)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def family_of(worker: int) -> list[psutil.Process]:
    return psutil.Process(worker).children(recursive=True)


def named(processes: list[psutil.Process], name: str) -> list[psutil.Process]:
    return [one for one in processes if one.name() == name]


@pytest.mark.chaos
@pytest.mark.alone
@pytest.mark.parametrize(
    ("processes", "function", "crashes"),
    [
        pytest.param(1, watched.backtrack, 0, id="busy, under a supervisor"),
        # Its second run kills a worker, too; the third is in a process of its own.
        pytest.param(0, watched.backtrack, 2, id="busy, alone"),
        pytest.param(1, watched.doze, 1, id="stuck, under a supervisor"),
    ],
)
async def test_a_job_that_holds_the_gil_does_not_declare_its_worker_dead(
    dsn: str, book: Book, start: Start, processes: int, function: object, crashes: int
) -> None:
    length = watched.length_of(4.5) if function is watched.backtrack else 4
    starved: Job = function.job(book=str(book), number=1, length=length)  # type: ignore[attr-defined]
    async with other(dsn) as chancy, quick(chancy, "nothing"):
        with start(f"--processes={processes}", *QUICK) as supervisor:
            await eventually(lambda: tables.workers(dsn) == 2, timeout=30)
            reference = await chancy.push(starved, validate=False)
            done = await reference.wait(60)
            assert done.state is State.SUCCEEDED
            assert done.attempt == 1
            assert done.crashes == crashes
            assert book.count("begin")[1] == crashes + 1
            if processes:
                finding = "stuck" if crashes else "busy"
                assert f"finding={finding}" in supervisor.log
                await eventually(lambda: "worker_reports_resumed" in supervisor.log)
            else:
                await eventually(lambda: "worker_declared_dead" in supervisor.log)


@pytest.mark.chaos
async def test_a_stopped_worker_is_not_beaten_for(dsn: str, book: Book, start: Start) -> None:
    async with other(dsn) as chancy:
        with start("--processes=1", *QUICK) as supervisor:
            await eventually(lambda: tables.workers(dsn) == 1, timeout=30)
            reference = await chancy.push(watched.linger.job(book=str(book), number=1))
            await eventually(lambda: book.count("begin")[1] == 1)
            (pid,) = workers_of(supervisor)
            os.kill(pid, signal.SIGSTOP)
            async with quick(chancy, "loop"):
                done = await reference.wait(30)
            assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 1, 1)
            assert "finding=stopped" in supervisor.log
            assert tables.workers(dsn) == 0
            os.kill(pid, signal.SIGCONT)
            # It notices, stops its copy, and works on under another id.
            await eventually(lambda: "worker_declared_dead" in supervisor.log)
            await eventually(lambda: "settlements_stale" in supervisor.log)
            again = jobs.work.job(book=str(book), number=2).with_queue("loop")
            assert (await (await chancy.push(again)).wait(20)).state is State.SUCCEEDED
            assert workers_of(supervisor) == [pid]
    assert book.count("end") == {1: 1, 2: 1}


@pytest.mark.chaos
@pytest.mark.parametrize("processes", [1, 2])
async def test_the_jobs_of_a_killed_worker_do_not_wait_for_its_timeout(
    dsn: str, book: Book, start: Start, processes: int
) -> None:
    async with other(dsn) as chancy:
        with start(f"--processes={processes}", "--heartbeat-timeout=600") as supervisor:
            await eventually(lambda: tables.workers(dsn) == processes, timeout=30)
            napping = jobs.work.job(book=str(book), number=1, seconds=1.0).with_queue("loop")
            reference = await chancy.push(napping)
            await eventually(lambda: book.count("begin")[1] == 1)
            (entry,) = book.entries()
            os.kill(entry.pid, signal.SIGKILL)
            done = await reference.wait(30)
            assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 1, 1)
            assert "worker_removed" in supervisor.log
            await eventually(lambda: tables.workers(dsn) == processes, timeout=30)


@pytest.mark.chaos
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children have no signal to lose")
async def test_orphaned_processes_of_a_killed_worker_do_not_run_beside_its_jobs(
    dsn: str, book: Book, start: Start
) -> None:
    """Its child would not notice the end before its job lets go of the interpreter's lock."""
    async with other(dsn) as chancy:
        with start("--processes=1", "--heartbeat-timeout=600") as supervisor:
            await eventually(lambda: tables.workers(dsn) == 1, timeout=30)
            reference = await chancy.push(watched.cling.job(book=str(book), number=1))
            (worker,) = workers_of(supervisor)
            await eventually(lambda: named(family_of(worker), "sleep"), timeout=30)
            family = family_of(worker)
            os.kill(worker, signal.SIGKILL)
            done = await reference.wait(50)
            assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 1, 1)
            assert oracles.find_overlaps(book) == []
            assert alive(family) == []


@pytest.mark.chaos
@pytest.mark.parametrize(
    "both",
    [
        pytest.param(False, id="the supervisor"),
        pytest.param(True, id="and its worker"),
    ],
)
async def test_nothing_outlives_a_killed_supervisor(
    dsn: str, book: Book, start: Start, both: bool
) -> None:
    async with other(dsn) as chancy:
        with start("--processes=1", "--shutdown-timeout=0.3", *QUICK) as supervisor:
            await eventually(lambda: tables.workers(dsn) == 1, timeout=30)
            napping = jobs.toil.job(book=str(book), number=1, seconds=1.5).with_queue("children")
            reference = await chancy.push(napping)
            await eventually(lambda: book.count("begin")[1] == 1)
            family = psutil.Process(supervisor.pid).children(recursive=True)
            assert len(family) >= 3, "a worker and its two children"
            supervisor.process.kill()
            if both:
                os.kill(workers_of(supervisor)[0], signal.SIGKILL)
            await eventually(lambda: alive(family) == [])
        assert book.count("end") == {}
        async with quick(chancy, "children"):
            done = await reference.wait(30)
    assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 1, int(both))
