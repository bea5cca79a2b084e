"""What jobs in children log and tell, and processes that they make."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator

import psutil
import pytest

from chancy.attempt.outcome import Lost, Returned
from chancy.context.context import Progress
from chancy.executors.base import Executor
from chancy.executors.process.logs import MAX_NAMES, MAX_RECORD, MAX_RECORDS, LogRelay
from tests.contract.executor.calls import Place, claim_of, end_of, result, started
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before)


def logged(caplog: pytest.LogCaptureFixture, name: str = "shop.orders") -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == name]


async def test_process_log_of_a_job_is_the_workers(
    child: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    claim = claim_of("log_some")
    await end_of(asyncio.create_task(child.run(claim)))
    info, error = logged(caplog)
    assert (info.levelno, info.getMessage()) == (logging.INFO, "order 7 is packed")
    assert error.levelno == logging.ERROR
    assert error.getMessage().startswith("order 8 is lost\nTraceback")
    assert "ValueError: the reason" in error.getMessage()
    (said,) = logged(caplog, "chancy.job")
    assert said.getMessage() == "said by the job"
    for record in (info, error, said):
        assert vars(record)["job_id"] == str(claim.id)
        assert vars(record)["func"] == claim.func
        assert vars(record)["attempt"] == 1


async def test_process_flood_of_logs_hurts_nothing(
    child: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    """100 MB, most of which is dropped, and that is said."""
    before = psutil.Process().memory_info().rss
    assert await result(child, "log_much", records=120_000, size=900) == "logged"
    assert len(logged(caplog)) == MAX_RECORDS
    (line,) = logged(caplog, "chancy.job")
    assert line.getMessage() == "119,000 more records of this job were dropped"
    assert psutil.Process().memory_info().rss < before + 50 * 2**20
    caplog.clear()
    assert await result(child, "log_much", records=3, size=1) == "logged"
    assert len(logged(caplog)) == 3, "the next job has its own share"
    assert not logged(caplog, "chancy.job")


async def test_process_large_records_are_cut(
    child: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    assert await result(child, "log_much", records=100, size=1_000_000) == "logged"
    texts = [record.getMessage() for record in logged(caplog)]
    assert 60 <= len(texts) < 70, "a million characters in all"
    assert max(map(len, texts)) <= MAX_RECORD


async def test_process_odd_records_are_harmless(
    child: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    assert await result(child, "log_odd") is None
    assert [record.getMessage() for record in logged(caplog)] == [
        "\\x1b[31m red \\ud800 \\x00",
        "loud",
    ]
    assert [one.getMessage() for one in logged(caplog, "a\\x00b\n")] == ["named oddly"]


def test_loggers_of_jobs_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    echo = LogRelay()
    for number in range(MAX_NAMES + 5):
        echo.relay(None, logging.WARNING, f"flood.{number}\0hello".encode())
    assert len(caplog.records) == MAX_NAMES + 5
    assert [record.name for record in caplog.records[-5:]] == ["chancy.job"] * 5


def test_a_filter_that_fails_on_a_record_of_a_job_is_contained() -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError("no such attribute")

    logger = logging.getLogger("refused.records")
    logger.addFilter(refuse)
    LogRelay().relay(None, logging.WARNING, b"refused.records\0hello")


async def test_process_last_word_gets_out_while_the_job_continues(place: Place) -> None:
    told: list[Progress] = []
    async with started("process", report=lambda _, progress: told.append(progress)) as it:
        claim = claim_of("tell_and_wait_on", until=str(place.until))
        running = asyncio.create_task(it.run(claim))
        await eventually(lambda: Progress(0.7, "last") in told)
        place.until.touch()
        assert isinstance(await end_of(running), Returned)


async def test_process_copies_that_a_job_makes_have_no_line(
    child: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    """They compute, log and end as they like, and disturb nothing."""
    pid = await result(child, "pid")
    assert await result(child, "sockets") == 0
    assert await result(child, "copy_ends_when_told") == signal.SIGTERM
    assert await result(child, "fork_pool") == [0, 1, 4, 9]
    assert await result(child, "spawn_pool") == [0, 1]
    assert not logged(caplog), "the copies have no way to the worker's log"
    assert await result(child, "pid") == pid


async def test_process_copy_that_continues_delays_nothing(child: Executor, place: Place) -> None:
    try:
        outcome = await end_of(asyncio.create_task(child.run(place.waiting("exit_beside_copy"))))
        assert isinstance(outcome, Lost)
        assert "exited with status 4" in outcome.why
        assert psutil.pid_exists(int(place.started.read_text()))
    finally:
        place.until.touch()
