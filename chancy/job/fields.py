"""Validates the fields of a job, for all code that stores jobs.

Pure, except that an expiry is compared with the current time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from chancy.attempt.control import MAX_DELAY
from chancy.checks import check_function_path, check_queue_name
from chancy.errors import PushError
from chancy.job.definition import ATTEMPTS as ATTEMPTS
from chancy.job.definition import HOLD, Job
from chancy.job.definition import PRIORITIES as PRIORITIES
from chancy.text import shown

#: The maximum characters of the key of a job on hold.
MAX_HOLD = 200


def check_job(job: Job) -> None:
    """Raise `PushError` if a field other than the arguments and limits is invalid."""
    check_function_path(job.func)
    check_queue_name(job.queue)
    _check_number("priority", job.priority, PRIORITIES, job.func)
    _check_number("max_attempts", job.max_attempts, ATTEMPTS, job.func)
    if job.run_at is not None:
        check_run_at(job.run_at, job.func)
    id: object = job.id
    if id is not None and not isinstance(id, UUID):
        raise PushError(f"job {job.func}: id={shown(id)} must be a uuid.UUID")


def check_hold(job: Job) -> None:
    """Raise `PushError` if a job is on hold with a key that cannot be stored."""
    key: object = job.meta.get(HOLD)
    if HOLD in job.meta and not (isinstance(key, str) and 1 <= len(key) <= MAX_HOLD):
        raise PushError(
            f"job {job.func}: hold={shown(key)} must be a string of 1 to {MAX_HOLD} characters"
        )


def _check_number(name: str, value: object, allowed: range, func: str) -> None:
    if type(value) is not int or value not in allowed:
        raise PushError(
            f"job {func}: {name}={shown(value)} must be a whole number "
            f"from {allowed[0]} to {allowed[-1]:,}"
        )


def check_run_at(run_at: object, func: str, name: str = "run_at") -> None:
    """Raise `PushError` unless ``run_at`` is an aware datetime or a timedelta within bounds."""
    match run_at:
        case datetime() if run_at.tzinfo is None:
            raise PushError(
                f"job {func}: {name}={run_at!r} has no time zone: "
                "use datetime.now(timezone.utc), or .astimezone()"
            )
        case datetime():
            return
        case timedelta():
            if abs(run_at) > MAX_DELAY:
                raise PushError(
                    f"job {func}: {name}={run_at!r} is more than {MAX_DELAY.days:,} days"
                )
        case _:
            raise PushError(
                f"job {func}: {name}={shown(run_at)} must be an aware datetime or a timedelta"
            )


def due(job: Job) -> tuple[datetime | None, float | None]:
    """The time at which a checked job is due, in UTC, or its delay in seconds."""
    match job.run_at:
        case None:
            return None, None
        case timedelta() as delay:
            return None, delay.total_seconds()
        case at:
            return _utc(at, job.func, "run_at"), None


def expiry(job: Job) -> datetime | float | None:
    """The time at which a job expires, in UTC, or its seconds after the push.

    :raises PushError: the value is not a time, or the job would expire before it is due.
    """
    if job.expires_at is None:
        return None
    check_run_at(job.expires_at, job.func, "expires_at")
    now = datetime.now(UTC)
    if _after(job.expires_at, now) <= max(now, _after(job.run_at or now, now)):
        raise PushError(
            f"job {job.func}: expires_at={job.expires_at} is not after its run_at="
            f"{job.run_at or 'now'}: it could never start"
        )
    if isinstance(job.expires_at, timedelta):
        return job.expires_at.total_seconds()
    return _utc(job.expires_at, job.func, "expires_at")


def _after(at: datetime | timedelta, now: datetime) -> datetime:
    return now + at if isinstance(at, timedelta) else at


def _utc(at: datetime, func: str, name: str) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise PushError(f"job {func}: {name}={at} is outside the years 1 to 9999 in UTC") from None
