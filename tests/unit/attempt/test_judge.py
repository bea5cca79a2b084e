"""The default decision on every outcome."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy import Retry
from chancy.attempt.failure import Failure
from chancy.attempt.judge import MAX_CRASHES, judge
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
from chancy.attempt.settlement import SET_ASIDE, Settlement
from chancy.errors import UnknownFunction
from chancy.states import TRANSITIONS, State
from tests.support.claims import claimed

AT = datetime(2030, 1, 1, tzinfo=UTC)
OOPS = Failure.named("shop.Oops", "oops")
UNKNOWN = Failure.of(UnknownFunction("nobody knows shop.work"))


def test_a_job_that_returns_succeeds() -> None:
    claim = claimed()
    assert judge(claim, Returned('{"a":1}', 0.5)) == Settlement(
        claim.id, claim.lease, State.SUCCEEDED, result='{"a":1}'
    )
    assert judge(claim, Returned(None)).result is None


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_job_that_raises_fails(attempt: int) -> None:
    claim = claimed(attempt=attempt)
    expected = Settlement(claim.id, claim.lease, State.FAILED, failure=OOPS)
    assert judge(claim, Raised(OOPS)) == expected


@pytest.mark.parametrize(
    ("outcome", "name", "message"),
    [
        (TimedOut(1.5), "chancy.TimedOut", "stopped at its time limit of 1.5 s"),
        (
            MemoryExceeded(2**30),
            "chancy.MemoryExceeded",
            "stopped at its memory limit of 1,073,741,824 bytes",
        ),
    ],
)
def test_jobs_above_a_limit_fail(outcome: Outcome, name: str, message: str) -> None:
    claim = claimed()
    failure = Failure.named(name, message)
    assert judge(claim, outcome) == Settlement(claim.id, claim.lease, State.FAILED, failure=failure)


def test_cancelled_jobs_give_the_reason() -> None:
    settlement = judge(claimed(), Cancelled("asked by a person"))
    assert settlement.state is State.CANCELLED
    assert settlement.failure == Failure.named("chancy.Cancelled", "asked by a person")


def test_a_snooze_costs_nothing() -> None:
    claim = claimed()
    plain = Settlement(claim.id, claim.lease, State.SCHEDULED, refund=True)
    assert judge(claim, Snoozed(timedelta(minutes=1))) == plain._replace(delay_s=60.0)
    assert judge(claim, Snoozed(AT)) == plain._replace(run_at=AT)


def test_a_job_that_puts_itself_off_is_counted() -> None:
    for meta, count in ((None, 1), ('{"snoozes": 7}', 8), ("[]", 1), ('{"snoozes": "x"}', 1)):
        claim = claimed(meta=meta)
        assert judge(claim, Snoozed(AT, asked=True)) == Settlement(
            claim.id,
            claim.lease,
            State.SCHEDULED,
            run_at=AT,
            refund=True,
            meta=json.dumps({"snoozes": count}),
        )


@pytest.mark.parametrize("again", [timedelta(minutes=1), AT])
def test_an_explicit_retry_time_applies_while_attempts_are_left(
    again: datetime | timedelta,
) -> None:
    claim = claimed(attempt=2)
    settlement = judge(claim, Raised(OOPS, again=again))
    plain = Settlement(claim.id, claim.lease, State.SCHEDULED, failure=OOPS)
    assert settlement in (plain._replace(delay_s=60.0), plain._replace(run_at=AT))
    assert not settlement.refund
    assert judge(claimed(attempt=3), Raised(OOPS, again=again)).state is State.FAILED


def test_the_last_retry_of_an_error_fails_with_the_error() -> None:
    try:
        try:
            raise ConnectionError("refused")
        except ConnectionError:
            raise Retry(60, "the shop is closed")  # noqa: B904 (the error that is being handled counts too)
    except Retry as error:
        asked = Raised(Failure.of(error), again=error.moment)
    retried = judge(claimed(attempt=2), asked).failure
    assert retried is not None
    assert retried.types[0] == "chancy.attempt.control.Retry"
    failure = judge(claimed(attempt=3), asked).failure
    assert failure is not None
    assert failure.types[:2] == ("builtins.ConnectionError", "builtins.OSError")
    assert failure.is_a("chancy.attempt.control.Retry")
    assert (failure.message, failure.causes, failure.args) == ("refused", (), None)
    assert failure.notes == ("chancy.attempt.control.Retry: the shop is closed",)
    assert failure.trace == retried.trace
    encoded = replace(retried, message="(encoded)", causes=(), args=({},))
    failure = judge(claimed(attempt=3), replace(asked, failure=encoded)).failure
    assert failure is not None
    assert (failure.types[0], failure.message) == ("builtins.ConnectionError", "(encoded)")


def test_the_last_retry_without_an_error_fails_as_it_is() -> None:
    failure = Failure.of(Retry(60))
    asked = Raised(failure, again=AT)
    assert judge(claimed(attempt=3), asked).failure == failure


def test_a_release_costs_nothing() -> None:
    claim = claimed()
    assert judge(claim, Released("the worker stops")) == Settlement(
        claim.id, claim.lease, State.PENDING, refund=True
    )


def test_a_death_counts_a_crash_and_no_attempt() -> None:
    settlement = judge(claimed(crashes=0), Lost("SIGKILL"))
    assert settlement.state is State.PENDING
    assert (settlement.crashed, settlement.refund) == (True, True)
    assert settlement.failure is not None
    assert settlement.failure.message == "crash 1 of 3: SIGKILL; it is run again"


@pytest.mark.parametrize("crashes", [MAX_CRASHES - 1, MAX_CRASHES, 32_767])
def test_the_last_death_is_for_good(crashes: int) -> None:
    settlement = judge(claimed(crashes=crashes), Lost("SIGSEGV"))
    assert settlement.state is State.FAILED
    assert (settlement.crashed, settlement.refund) == (True, False)
    assert settlement.failure is not None
    assert "it fails for good" in settlement.failure.message


def test_a_job_set_aside_is_held_without_an_attempt() -> None:
    settlement = judge(claimed(meta='{"cron": {"n": 1}}'), SetAside("no job is registered"))
    assert (settlement.state, settlement.refund) == (State.HELD, True)
    assert json.loads(settlement.meta or "") == {SET_ASIDE: 1}


def test_an_unknown_function_fails_for_good() -> None:
    settlement = judge(claimed(), Raised(UNKNOWN))
    assert (settlement.state, settlement.failure) == (State.FAILED, UNKNOWN)


failures = st.builds(Failure, types=st.tuples(st.text()), message=st.text()) | st.just(UNKNOWN)
times = st.datetimes(timezones=st.just(UTC)) | st.timedeltas()
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    *(
        st.builds(Raised, failures)
        if kind is Raised
        else st.builds(Snoozed, times)
        if kind is Snoozed
        else st.from_type(kind)
        for kind in get_args(Outcome)
    )
)


@given(
    outcomes, st.integers(0, 5), st.none() | st.text() | st.dictionaries(st.text(), st.integers())
)
def test_every_outcome_has_a_legal_decision_for_its_own_claim(
    outcome: Outcome, crashes: int, meta: object
) -> None:
    text = json.dumps(meta) if isinstance(meta, dict) else meta
    claim = claimed(crashes=crashes, meta=text if isinstance(text, str) else None)
    settlement = judge(claim, outcome)
    assert (settlement.id, settlement.lease) == (claim.id, claim.lease)
    assert settlement.state in TRANSITIONS[State.RUNNING]
    if settlement.state is State.FAILED:
        assert settlement.failure is not None


@pytest.mark.parametrize(
    ("outcome", "resets"),
    [
        (Raised(OOPS), True),
        (Raised(OOPS, again=AT), True),
        (TimedOut(1.0), True),
        (MemoryExceeded(1), True),
        (Snoozed(AT, asked=True), True),
        (Snoozed(AT), False),
        (Released("the worker is stopping"), False),
        (SetAside("no job is registered"), False),
        (Lost("died"), False),
    ],
)
def test_an_attempt_that_the_process_survives_resets_the_crashes(
    outcome: Outcome, resets: bool
) -> None:
    assert judge(claimed(crashes=1), outcome).resets_crashes is resets
    assert not judge(claimed(crashes=0), outcome).resets_crashes
