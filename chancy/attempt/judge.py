"""The default decision on an outcome. Pure: plugins change it with their `judging` hook."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from chancy.attempt.claim import Claim
from chancy.attempt.failure import MAX_HOST, MAX_NOTE, MAX_NOTES, RETRY, Failure
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
from chancy.states import State
from chancy.text import storable

#: Crashes of the worker or executor process during a job after which the job fails for good.
MAX_CRASHES = 3
# An attribute of an enumeration takes 0.1 µs.
_SUCCEEDED = State.SUCCEEDED
_EVERY = {"builtins.Exception", "builtins.BaseException"}
#: The keys of a job's meta that count its snoozes, and how often it raised `RateLimited`.
SNOOZES, RATE_LIMITED = "snoozes", "rate_limited"


def judge(claim: Claim, outcome: Outcome, carried: Claim | None = None) -> Settlement:
    """Return the default settlement of an outcome, which plugins may change.

    A failed attempt fails the job for good, unless the function raised `Retry` and attempts are
    left; the retry plugin decides about other retries. If the process died, a crash is counted
    instead of an attempt, up to `MAX_CRASHES`. An attempt that the process survives resets that
    count if the job runs again.

    :param carried: the claim that a settlement of `Returned` carries.
    """
    match outcome:
        case Returned():
            # The path of nearly every job: a tuple takes 0.4 µs, a call with names 1.0.
            elapsed_s = 0.0 if carried is None else outcome.elapsed_s
            ended = (False, False, None, False, carried, elapsed_s, None)
            succeeded = (claim.id, claim.lease, _SUCCEEDED, None, None, None, outcome.result)
            return tuple.__new__(Settlement, succeeded + ended)
        case Raised(failure, again=again) if again is not None:
            return _again(claim, failure, again)
        case Raised(failure):
            return _failed(claim, failure)
        case TimedOut(limit_s):
            message = f"stopped at its time limit of {limit_s:g} s"
            return _failed(claim, Failure.named("chancy.TimedOut", message))
        case MemoryExceeded(limit_bytes):
            message = f"stopped at its memory limit of {limit_bytes:,} bytes"
            return _failed(claim, Failure.named("chancy.MemoryExceeded", message))
        case Cancelled(why):
            failure = Failure.named("chancy.Cancelled", why)
            return Settlement(claim.id, claim.lease, State.CANCELLED, failure=failure)
        case Snoozed(until, asked=asked, rate_limited=limited):
            key = RATE_LIMITED if limited else SNOOZES
            meta = _counted(key, _count(claim, key) + 1) if asked else None
            survived = asked and claim.crashes > 0
            return _later(claim, until)._replace(refund=True, meta=meta, resets_crashes=survived)
        case Released():
            return Settlement(claim.id, claim.lease, State.PENDING, refund=True)
        case SetAside():
            return Settlement(
                claim.id, claim.lease, State.HELD, refund=True, meta=_counted(SET_ASIDE, 1)
            )
        case Lost(why, host=host):
            return _lost(claim, why, host)
        case _:
            assert_never(outcome)


def _failed(claim: Claim, failure: Failure) -> Settlement:
    survived = claim.crashes > 0
    return Settlement(claim.id, claim.lease, State.FAILED, failure=failure, resets_crashes=survived)


def _lost(claim: Claim, why: str, host: str | None) -> Settlement:
    crashes = claim.crashes + 1
    for_good = crashes >= MAX_CRASHES
    ending = "it fails for good" if for_good else "it is run again"
    failure = Failure.named("chancy.Lost", f"crash {crashes} of {MAX_CRASHES}: {why}; {ending}")
    if host is not None:
        failure = replace(failure, host=storable(host, MAX_HOST))
    state = State.FAILED if for_good else State.PENDING
    return Settlement(
        claim.id, claim.lease, state, failure=failure, refund=not for_good, crashed=True
    )


def _later(claim: Claim, when: datetime | timedelta) -> Settlement:
    if isinstance(when, timedelta):
        delay_s = when.total_seconds()
        return Settlement(claim.id, claim.lease, State.SCHEDULED, delay_s=delay_s)
    return Settlement(claim.id, claim.lease, State.SCHEDULED, run_at=when)


def _again(claim: Claim, failure: Failure, when: datetime | timedelta) -> Settlement:
    if claim.attempt >= claim.max_attempts:
        return _failed(claim, _cause_of(failure))
    return _later(claim, when)._replace(failure=failure, resets_crashes=claim.crashes > 0)


def _cause_of(failure: Failure) -> Failure:
    """The failure of the error for which a job asked for a retry that it does not get, if there is
    one: dead letters and alerts are grouped by the error, not by the request, which is a note."""
    own = failure.types.index(RETRY) + 1 if RETRY in failure.types else 0
    types = failure.types[own:] + failure.types[:own]
    if failure.causes:
        (_, message), *causes = failure.causes
        asked = storable(f"{failure.types[0]}: {failure.message}", MAX_NOTE)
        notes = (asked, *failure.notes)[:MAX_NOTES]
        cause = replace(failure, types=types, message=message, notes=notes)
        return replace(cause, causes=tuple(causes), args=None)
    # A codec leaves the types alone, which are those of every exception without a cause.
    return failure if set(types[:-own]) <= _EVERY else replace(failure, types=types)


def _counted(key: str, count: int) -> str:
    return json.dumps({key: count})


def _count(claim: Claim, key: str) -> int:
    try:
        count = json.loads(claim.meta or "{}").get(key, 0)
    except (ValueError, AttributeError, RecursionError):
        return 0
    return count if isinstance(count, int) and count >= 0 else 0
