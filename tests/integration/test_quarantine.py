"""Jobs whose process has died: what they run in, and what they are charged."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chancy import Chancy, Job, Limit, State, Worker
from chancy.job.definition import QueuedJob
from tests.integration import quarantine_jobs as jobs
from tests.support.command import command, started
from tests.support.sql import ask
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def template(shipped_template: str) -> str:
    """Jobs of the queue ``default`` kill their processes."""
    return shipped_template


@pytest.fixture
async def chancy(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Chancy]:
    monkeypatch.setenv("CHANCY_DSN", dsn)
    async with jobs.make() as made:
        monkeypatch.setattr(jobs, "chancy", made)
        yield made


async def run(chancy: Chancy, dsn: str, job: Job, *, crashes: int) -> QueuedJob:
    """Run a job that has crashed before."""
    async with Worker(chancy, children=1):
        paused = job.queue
        await chancy.pause_queue(paused)
        reference = await chancy.push(job.with_meta(tenant="ann"))
        set_crashes(dsn, crashes)
        await chancy.resume_queue(paused)
        return await reference.wait(40)


def set_crashes(dsn: str, crashes: int) -> None:
    ask(dsn, "update chancy.jobs set crashes = %s", (crashes,))


@pytest.mark.parametrize(("crashes", "isolated"), [(1, False), (2, True)])
async def test_a_quarantined_job_has_its_application_and_hooks(
    chancy: Chancy, dsn: str, crashes: int, isolated: bool
) -> None:
    done = await run(chancy, dsn, jobs.pushing.job(), crashes=crashes)
    assert (done.state, done.errors) == (State.SUCCEEDED, ())
    assert done.result["tenant"] == "ann"
    assert (done.result["step"], done.result["crashes"]) == ("stored", crashes)
    assert (done.result["pid"] != os.getpid()) is isolated
    assert done.meta["started"]


async def test_a_quarantined_function_of_a_thread_queue_has_the_hooks(
    chancy: Chancy, dsn: str
) -> None:
    done = await run(chancy, dsn, jobs.threaded.job(), crashes=2)
    assert (done.state, done.result["tenant"]) == (State.SUCCEEDED, "ann")
    assert done.result["pid"] != os.getpid()


async def test_a_job_of_an_application_that_cannot_be_imported_runs_here(
    chancy: Chancy, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "chancy", None)
    done = await run(chancy, dsn, jobs.threaded.job(), crashes=2)
    assert (done.state, done.result["pid"]) == (State.SUCCEEDED, os.getpid())


async def test_a_killer_in_quarantine_takes_only_its_own_process(chancy: Chancy, dsn: str) -> None:
    """Beside it, jobs that reach their time limit and that are cancelled."""
    async with Worker(chancy):
        await chancy.pause_queue("loop")
        jobs_of = [
            jobs.killer.job(),
            jobs.endless.job().with_limits(Limit.time(0.2)),
            jobs.endless.job(),
        ]
        killer, limited, cancelled = [
            await chancy.push(job.with_meta(tenant="ann")) for job in jobs_of
        ]
        set_crashes(dsn, 2)
        await chancy.resume_queue("loop")

        async def started() -> bool:
            job = await cancelled.get()
            return job is not None and "started" in job.meta

        await eventually(started)
        await chancy.cancel(cancelled.id)
        assert (await cancelled.wait(40)).state is State.CANCELLED
        done = await limited.wait(40)
        assert (done.state, done.errors[0]["types"][0]) == (State.FAILED, "chancy.TimedOut")
        done = await killer.wait(40)
    assert (done.state, done.crashes) == (State.FAILED, 3)
    assert "crash 3 of 3" in done.errors[-1]["message"]
    assert "SIGKILL" in done.errors[-1]["message"]


@pytest.mark.chaos
async def test_jobs_of_a_killed_worker_succeed_on_the_next_one(
    chancy: Chancy, dsn: str, tmp_path: Path
) -> None:
    """Each needs the open application; twice, so that the second half is quarantined."""
    gate, begun = tmp_path / "gate", tmp_path / "gate.begun"
    many = [jobs.waiting.job(gate=str(gate)).with_meta(tenant="ann") for _ in range(2)]
    env = {"CHANCY_DSN": dsn, "PYTHONPATH": str(ROOT)}
    program = command("worker", "--app=tests.integration.quarantine_jobs:chancy", "--processes=1")

    async def begins(wanted: int) -> None:
        await eventually(
            lambda: begun.exists() and len(begun.read_text().splitlines()) >= wanted, timeout=30
        )

    references = list(await chancy.push_many(many))
    with started(program, cwd=tmp_path, env=env) as supervisor:
        for wanted in (2, 4):
            await begins(wanted)
            ((pid,),) = ask(dsn, "select pid from chancy.workers")
            os.kill(pid, signal.SIGKILL)
        gate.touch()
        done = [await reference.wait(60) for reference in references]
        supervisor.process.terminate()
        assert supervisor.process.wait(30) == 0
    assert {(job.state, job.crashes, job.result) for job in done} == {(State.SUCCEEDED, 2, True)}
    assert len(begun.read_text().splitlines()) == 6, "each once, and again for each of two deaths"
