"""A job that kills whatever runs it, among others that do not deserve it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chancy import Chancy, Job, State
from chancy.job.definition import QueuedJob
from tests.faults import jobs, tables, watched
from tests.faults.book import Book
from tests.faults.worker_process import ROOT
from tests.support.command import command, started
from tests.support.waiting import eventually

BYSTANDERS = 50
KILLER = 1_000


def bystander(book: Book, queue: str, number: int) -> Job:
    function = jobs.toil if queue == "children" else jobs.work
    return function.job(book=str(book), number=number, seconds=0.1).with_queue(queue)


def check_bystander(done: QueuedJob, book: Book, deaths: int) -> None:
    """It may have run at that many deaths, has run again for each of these only, and has not
    failed."""
    assert (done.state, done.attempt) == (State.SUCCEEDED, 1)
    assert {error["types"][0] for error in done.errors} <= {"chancy.Lost"}
    assert len(done.errors) == done.crashes <= deaths
    assert done.arguments is not None
    assert book.count("begin")[done.arguments["number"]] <= 1 + done.crashes


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("queue", "killer", "how"),
    [
        ("loop", watched.exit_soon, "exited with status 66"),
        ("children", watched.break_down, "SIGSEGV"),
    ],
)
async def test_only_the_job_that_crashes_three_times_fails(
    dsn: str, tmp_path: Path, book: Book, queue: str, killer: object, how: str
) -> None:
    env = {"CHANCY_DSN": dsn, "PYTHONPATH": str(ROOT)}
    program = command("worker", "--app=tests.faults.watched:app", "--processes=1")
    async with Chancy(dsn) as chancy:
        first = BYSTANDERS // 2
        # Of the worker. The third is that of the killer's own process.
        deaths = 2 if queue == "loop" else 0
        many = [bystander(book, queue, number) for number in range(first)]
        many.insert(first // 2, killer.job(book=str(book), number=KILLER))  # type: ignore[attr-defined]
        references = list(await chancy.push_many(many, validate=False))
        killing = references.pop(first // 2)
        with started(program, cwd=tmp_path, env=env) as worker:
            await eventually(lambda: book.count("begin")[KILLER] >= 1, timeout=30)
            for number in range(first, BYSTANDERS):
                references.append(await chancy.push(bystander(book, queue, number)))
                # The pace of the pushes: some are to come while the killer comes back.
                await asyncio.sleep(0.02)
            # The queue goes on meanwhile: nobody waits for the end of the killer.
            for reference in references:
                check_bystander(await reference.wait(20), book, deaths)
            dead = await killing.wait(30)
            assert worker.log.count("child_died") == deaths
            worker.process.terminate()
            assert worker.process.wait(30) == 0
    assert (dead.state, dead.crashes) == (State.FAILED, 3)
    assert book.count("begin")[KILLER] == 3
    assert set(book.count("end")) == set(range(BYSTANDERS))
    messages = [error["message"] for error in dead.errors]
    assert len(messages) == 3
    assert all(how in message for message in messages[deaths:])
    assert "it fails for good" in messages[-1]
    assert tables.live(dsn) == 0
