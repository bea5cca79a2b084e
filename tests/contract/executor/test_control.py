"""What jobs answer instead of a result, in every executor."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from chancy.attempt.failure import MAX_MESSAGE
from chancy.attempt.outcome import Cancelled, Outcome, Raised, Returned, Snoozed
from chancy.executors.base import Executor
from chancy.job.limits import Limit, encode_limits
from tests.contract.executor.calls import claim_of, run, started
from tests.contract.executor.control_jobs import AT
from tests.support.clusters import ON_RAY_TOO

FUNCTIONS = ["answer", "answer_async", "answer_later"]


@pytest.fixture
def name(anywhere: str) -> str:
    return anywhere


def failed_until(outcome: Outcome) -> tuple[str, datetime | timedelta | None]:
    assert isinstance(outcome, Raised), outcome
    return f"{outcome.failure.types[0]}: {outcome.failure.message}", outcome.again


@ON_RAY_TOO
async def test_a_job_puts_itself_off(one: Executor) -> None:
    for function in FUNCTIONS:
        for how, until in (("snooze", timedelta(seconds=1.5)), ("snooze until", AT)):
            outcome = await run(one, function, how=how)
            assert isinstance(outcome, Snoozed), outcome
            assert (outcome.until, outcome.asked) == (until, True)
            assert outcome.elapsed_s >= 0


async def test_a_job_cancels_itself(one: Executor) -> None:
    for function in FUNCTIONS:
        outcome = await run(one, function, how="cancel")
        assert isinstance(outcome, Cancelled)
        assert outcome.why == "the order is gone: \\x00 ünï"
        outcome = await run(one, function, how="cancel at length")
        assert isinstance(outcome, Cancelled)
        assert len(outcome.why) <= MAX_MESSAGE


async def test_a_job_can_request_the_time_of_its_retry(one: Executor) -> None:
    busy = "chancy.attempt.control.Retry: busy", timedelta(minutes=1)
    for function in FUNCTIONS:
        outcome = await run(one, function, how="retry")
        assert failed_until(outcome) == busy
        assert isinstance(outcome, Raised)
        assert outcome.failure.causes == (("builtins.ValueError", "behind it"),)
        assert "in answer" in outcome.failure.trace
        assert failed_until(await run(one, function, how="return retry")) == busy
        assert failed_until(await run(one, function, how="retry at"))[1] == AT


async def test_an_answer_that_cannot_be_fails_the_job_and_names_the_place(one: Executor) -> None:
    for function in FUNCTIONS:
        outcome = await run(one, function, how="bad")
        text, again = failed_until(outcome)
        assert text.startswith("chancy.errors.InvalidAnswer: Snooze(-1): a delay must be from 0")
        assert again is None
        assert isinstance(outcome, Raised)
        assert "control_jobs.py" in outcome.failure.trace
        assert isinstance(await run(one, function, how="else"), Returned)


async def test_a_job_with_limits_answers_as_well() -> None:
    limits = encode_limits((Limit.time(60), Limit.memory(1 << 30)))
    async with started("process") as it:
        for how, kind in (("snooze", Snoozed), ("cancel", Cancelled), ("retry", Raised)):
            outcome = await it.run(claim_of("answer", how=how)._replace(limits=limits))
            assert isinstance(outcome, kind)
