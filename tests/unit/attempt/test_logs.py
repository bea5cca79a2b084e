"""Log records of attempts."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.failure import MAX_MESSAGE, MAX_TRACE, Failure
from chancy.attempt.judge import judge
from chancy.attempt.logs import log_settled, log_started
from chancy.attempt.outcome import (
    Cancelled,
    Lost,
    MemoryExceeded,
    Outcome,
    Raised,
    Released,
    Returned,
    SetAside,
    Snoozed,
    TimedOut,
)
from chancy.states import State
from chancy.text import storable

OOPS = Failure.named("shop.Oops", "oops")


def claim(crashes: int = 0) -> Claim:
    ids = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    return Claim(*ids, "mail", "shop.send", None, 2, 5, crashes, 0, 0, None)


def settled(
    caplog: pytest.LogCaptureFixture, outcome: Outcome, crashes: int = 0
) -> logging.LogRecord:
    """The only record of an outcome that no plugin decides."""
    caplog.clear()
    attempt = claim(crashes)
    log_settled(attempt, outcome, judge(attempt, outcome))
    [record] = caplog.records
    return record


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "chancy.attempts")


@pytest.mark.parametrize(
    ("outcome", "crashes", "event", "shown"),
    [
        (Returned("1"), 0, "job_succeeded", "DEBUG"),
        (Raised(OOPS), 0, "job_failed", "ERROR"),
        (TimedOut(1.0), 0, "job_failed", "ERROR"),
        (MemoryExceeded(10), 0, "job_failed", "ERROR"),
        (Raised(OOPS, again=timedelta(seconds=5)), 0, "job_retrying", "WARNING"),
        (Lost("it died"), 0, "job_crashed", "ERROR"),
        (Lost("it died"), 2, "job_failed", "ERROR"),
        (Cancelled("asked"), 0, "job_cancelled", "INFO"),
        (Released("stopping"), 0, "job_released", "DEBUG"),
        (SetAside("no job is registered"), 0, "job_released", "DEBUG"),
        (Snoozed(timedelta(seconds=5), asked=True), 0, "job_released", "DEBUG"),
    ],
)
def test_each_outcome_is_one_record_at_its_level(
    caplog: pytest.LogCaptureFixture, outcome: Outcome, crashes: int, event: str, shown: str
) -> None:
    record = settled(caplog, outcome, crashes)
    assert (record.getMessage().split()[0], record.levelname) == (event, shown)
    assert vars(record)["event"] == event


def test_fields_are_attributes_and_part_of_the_message(caplog: pytest.LogCaptureFixture) -> None:
    attempt = claim()
    log_started(attempt)
    [record] = caplog.records
    assert record.getMessage() == (
        f"job_started job={attempt.id} func=shop.send queue=mail attempt=2 max_attempts=5"
    )
    fields = vars(record)
    assert (fields["job_id"], fields["func"]) == (str(attempt.id), "shop.send")
    assert (fields["queue"], fields["attempt"], fields["max_attempts"]) == ("mail", 2, 5)


def test_retry_has_the_time_of_the_next_attempt(caplog: pytest.LogCaptureFixture) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    fields = vars(settled(caplog, Raised(OOPS, again=at)))
    assert fields["next_at"] == "2030-01-01T00:00:00.000+00:00"
    assert fields["error"] == "shop.Oops: oops"
    before = datetime.now(UTC) - timedelta(seconds=1)
    fields = vars(settled(caplog, Raised(OOPS, again=timedelta(minutes=5))))
    assert timedelta(0) <= datetime.fromisoformat(fields["next_at"]) - before <= timedelta(hours=1)
    never = judge(claim(), Raised(OOPS))._replace(state=State.SCHEDULED, delay_s=float("inf"))
    log_settled(claim(), Raised(OOPS), never)
    assert "next_at" not in vars(caplog.records[-1])


def test_a_failure_of_a_plugin_may_have_no_type(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure(types=(), message="not today")
    settlement = judge(claim(), Raised(OOPS))._replace(failure=failure)
    log_settled(claim(), Raised(OOPS), settlement)
    [record] = caplog.records
    assert vars(record)["error"] == "unknown: not today"


def test_failure_has_its_exception(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("no luck")
    except ValueError as error:
        outcome = Raised(Failure.of(error), error=error)
        record = settled(caplog, outcome)
    assert record.exc_info
    assert record.exc_info[1] is outcome.error
    assert record.exc_text == outcome.failure.trace
    assert logging.Formatter().format(record).endswith("ValueError: no luck\n")


def test_failure_of_another_process_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure(types=("shop.Oops",), message="oops", trace="Traceback …\nshop.Oops: oops")
    record = settled(caplog, Raised(failure))
    assert record.exc_info is None
    assert vars(record)["trace"] == failure.trace
    assert logging.Formatter().format(record).endswith(f"\n{failure.trace}")


def test_records_are_as_long_as_stored_failures_at_most(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("x" * 1_000_000)
    except ValueError as error:
        record = settled(caplog, Raised(Failure.of(error), error=error))
    text = logging.Formatter().format(record)
    assert len(text) < MAX_MESSAGE + MAX_TRACE + 1_000
    assert storable(text, 50_000) == text


def test_handler_that_raises_does_not_stop_the_worker() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the disk is full")

    broken = Broken()
    logger = logging.getLogger("chancy.attempts")
    logger.addHandler(broken)
    try:
        log_settled(claim(), Raised(OOPS), judge(claim(), Raised(OOPS)))
    finally:
        logger.removeHandler(broken)


def test_nothing_is_made_for_a_level_that_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "chancy.attempts")
    log_started(claim())
    log_settled(claim(), Raised(OOPS), judge(claim(), Raised(OOPS)))
    assert not caplog.records
