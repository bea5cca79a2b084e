"""Workers that are frozen or killed while a job completes itself, or between its steps."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from chancy import Chancy, Job, State
from tests.faults import payments
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually


@pytest.fixture
def table(dsn: str) -> None:
    ask(dsn, payments.TABLE)


def raised(folder: Path) -> str:
    path = folder / "raised"
    return path.read_text() if path.exists() else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """Where a job is frozen, and what its transaction raises once it goes on."""

    executor: str
    #: Of payments.TRANSACTIONS; without one it is psycopg without an event loop.
    library: str = ""
    pause: str
    error: str = "LeaseLost"

    def job(self, dsn: str, folder: Path) -> Job[None]:
        if not self.library:
            return payments.pay.job(dsn=dsn, folder=str(folder), number=7, pause=self.pause)
        return payments.pay_async.job(dsn=dsn, folder=str(folder), number=7, library=self.library)


FREEZES = [
    Freeze(executor="thread", pause="before"),
    Freeze(executor="process", pause="before"),
    # The server has ended its session: the rescuer waits for that, and nobody for the frozen.
    Freeze(executor="thread", pause="after", error="IdleInTransactionSessionTimeout"),
    Freeze(executor="async", library="asyncpg", pause="before"),
    Freeze(executor="async", library="AsyncSession", pause="before"),
]


@pytest.mark.chaos
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "freeze", FREEZES, ids=lambda one: f"{one.executor} {one.library or 'psycopg'} {one.pause}"
)
async def test_a_frozen_job_that_completes_itself_leaves_nothing_once_others_have_it(
    chancy: Chancy, dsn: str, tmp_path: Path, start_worker: StartWorker, freeze: Freeze
) -> None:
    """SIGSTOP between what a job writes and its commit, until another worker has finished it."""
    zombie = start_worker(dsn, executor=freeze.executor, concurrency=1)
    zombie.wait_until_ready()
    reference = await chancy.push(freeze.job(dsn, tmp_path))
    await eventually((tmp_path / freeze.pause).exists)
    zombie.signal(signal.SIGSTOP)
    await eventually(lambda: zombie.stopped)
    rescuer = start_worker(dsn, executor=freeze.executor, concurrency=1)
    rescuer.wait_until_ready()

    async def finished() -> bool:
        found = await reference.get()
        return found is not None and found.state.final

    await eventually(finished)
    paid = ask(dsn, "select number, attempt from payments")
    assert paid == [(7, 1)]
    (tmp_path / "go").touch()
    # A child was not frozen; the worker, once it goes on, kills it.
    if freeze.executor != "process":
        zombie.signal(signal.SIGCONT)
    await eventually(lambda: raised(tmp_path) == freeze.error)
    zombie.signal(signal.SIGCONT)
    # What the zombie wrote is rolled back; what the other one wrote stays.
    assert ask(dsn, "select number, attempt from payments") == paid
    done = present(await reference.get())
    assert (done.state, done.crashes) == (State.SUCCEEDED, 1)
    assert rescuer.stop().outcomes["Lost"] == 1
    report = zombie.stop()
    assert (report.settled, report.stale) == (0, 1)
    assert "job_completed_before" not in zombie.said()


@pytest.mark.chaos
@pytest.mark.parametrize("executor", ["process", "async"])
async def test_a_worker_that_is_killed_between_steps_runs_none_of_them_twice(
    chancy: Chancy,
    dsn: str,
    tmp_path: Path,
    book: Book,
    start_worker: StartWorker,
    executor: str,
) -> None:
    worker = start_worker(dsn, executor=executor, concurrency=1)
    worker.wait_until_ready()
    job = payments.in_steps.job(book=str(book), folder=str(tmp_path), number=3, steps=6)
    reference = await chancy.push(job)
    await eventually((tmp_path / "between").exists)
    worker.kill()
    start_worker(dsn, executor=executor, concurrency=1).wait_until_ready()
    done = await reference.wait(30)
    numbers = [300, 301, 302, 303, 304, 305]
    assert (done.state, done.crashes, done.result) == (State.SUCCEEDED, 1, numbers)
    assert book.count("begin") == Counter(numbers)
