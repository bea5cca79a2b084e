"""Log records of attempts: one at the start, one once it is decided how the job continues.

The fields of a record are its attributes as well as part of its message, so that handlers get them
as values. A record of a failed job has the exception, if it was raised in this process.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import UTC, datetime, timedelta

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Cancelled, Lost, Outcome, Raised, Released, SetAside, Snoozed
from chancy.attempt.settlement import Settlement
from chancy.states import State

logger = logging.getLogger("chancy.attempts")

_UNKNOWN_ERROR = Failure.named("chancy.Failed", "no error was recorded")


def debug_enabled() -> bool:
    """Whether the start and the success of attempts are logged."""
    return logger.isEnabledFor(logging.DEBUG)


def log_started(claim: Claim) -> None:
    """Log that an attempt starts. Never raises."""
    _log(logging.DEBUG, "job_started", claim, {})


def log_settled(claim: Claim, outcome: Outcome, settlement: Settlement) -> None:
    """Log how an attempt ended and what was decided. Never raises.

    Failures are logged with their type and message, at the length at which they are stored.
    """
    if settlement.state is State.SUCCEEDED:
        _log(logging.DEBUG, "job_succeeded", claim, _duration(outcome))
        return
    if settlement.state is State.CANCELLED:
        why = outcome.why if isinstance(outcome, Cancelled) else ""
        _log(logging.INFO, "job_cancelled", claim, {**_duration(outcome), "why": why})
        return
    failure = settlement.failure or (outcome.failure if isinstance(outcome, Raised) else None)
    if settlement.state is State.FAILED:
        failure = failure or _UNKNOWN_ERROR
        error = outcome.error if isinstance(outcome, Raised) else None
        fields = {**_duration(outcome), **_error(failure)}
        _log(logging.ERROR, "job_failed", claim, fields, trace=failure.trace, error=error)
    elif isinstance(outcome, Snoozed | Released | SetAside) or failure is None:
        why = outcome.why if isinstance(outcome, Released | SetAside) else "snoozed"
        _log(logging.DEBUG, "job_released", claim, {**_duration(outcome), "why": why})
    elif isinstance(outcome, Lost):
        _log(logging.ERROR, "job_crashed", claim, {**_duration(outcome), **_error(failure)})
    else:
        fields = {**_duration(outcome), "next_at": _next_at(settlement), **_error(failure)}
        _log(logging.WARNING, "job_retrying", claim, fields)


def _duration(outcome: Outcome) -> dict[str, object]:
    return {"duration_s": round(outcome.elapsed_s, 3)}


def _error(failure: Failure) -> dict[str, object]:
    type_name = failure.types[0] if failure.types else "unknown"  # that of a plugin may have none
    return {"error": f"{type_name}: {failure.message}"}


def _next_at(settlement: Settlement) -> str | None:
    """When the next attempt starts, by the clock of this machine; None: as soon as possible."""
    at = settlement.run_at
    if at is None and settlement.delay_s is not None:
        with contextlib.suppress(OverflowError, ValueError):  # a plugin's, which may be any number
            at = datetime.now(UTC) + timedelta(seconds=settlement.delay_s)
    return None if at is None else at.isoformat(timespec="milliseconds")


def _log(
    level: int,
    event: str,
    claim: Claim,
    fields: dict[str, object],
    *,
    trace: str = "",
    error: BaseException | None = None,
) -> None:
    if not logger.isEnabledFor(level):
        return
    known: dict[str, object] = {
        "job": str(claim.id),
        "func": claim.func,
        "queue": claim.queue,
        "attempt": claim.attempt,
        "max_attempts": claim.max_attempts,
        **{name: value for name, value in fields.items() if value is not None},
    }
    message = " ".join([event, *(f"{name}=%s" for name in known)])
    arguments = tuple(known.values())
    extra = {"event": event, "job_id": known.pop("job"), **known}
    if trace and error is None:
        extra["trace"] = trace
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    # Filters and handlers may raise anything, which must not stop the worker.
    with contextlib.suppress(Exception):
        record = logger.makeRecord(
            logger.name, level, __file__, 0, message, arguments, exc_info, extra=extra
        )
        # Formatters use this text instead of formatting the exception, which has no limit.
        record.exc_text = trace or None
        logger.handle(record)
