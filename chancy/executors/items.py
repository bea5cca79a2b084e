"""Outcomes as JSON: of calls in executor processes, and of the items of batch functions.

Each item is a pair: a result and null, or null and an object that describes another outcome.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Cancelled, Outcome, Raised, Returned, Snoozed

#: A result, and the description of an outcome in its place.
Item = tuple[Any, dict[str, Any] | None]


def encode_items(outcomes: Iterable[Outcome]) -> str:
    """Encode the outcome of each item of a call, in order."""
    return f"[{','.join(map(_encode, outcomes))}]"


def describe(outcome: Outcome) -> dict[str, Any]:
    """An outcome that the function has chosen in place of a result; see `decode_other`."""
    match outcome:
        case Raised(failure, again=None):
            return failure.as_json()
        case Raised(failure, again=datetime() | timedelta() as again):
            return {**failure.as_json(), "again": encode_time(again)}
        case Snoozed(until, rate_limited=limited):
            return {"until": encode_time(until), "rate_limited": limited}
        case Cancelled(why):
            return {"reason": why}
        case _:
            raise TypeError(f"a call cannot end as {outcome!r}")


def decode_other(data: dict[str, Any], elapsed_s: float) -> Outcome:
    """The outcome of `describe`; raises KeyError, TypeError or ValueError if invalid."""
    if "reason" in data:
        return Cancelled(str(data["reason"]), elapsed_s)
    if "until" in data:
        limited = bool(data["rate_limited"])
        return Snoozed(decode_time(data["until"]), elapsed_s, asked=True, rate_limited=limited)
    again = None if data.get("again") is None else decode_time(data["again"])
    return Raised(Failure.from_json(data), elapsed_s, again)


def _encode(outcome: Outcome) -> str:
    if isinstance(outcome, Returned):
        return f"[{outcome.result or 'null'},null]"
    return f"[null,{json.dumps(describe(outcome))}]"


def encode_time(time: datetime | timedelta) -> float | str:
    """Seconds of a delay, or a datetime in ISO format."""
    return time.total_seconds() if isinstance(time, timedelta) else time.isoformat()


def decode_time(value: object) -> datetime | timedelta:
    """Decode the result of `encode_time`; raises ValueError if it is none."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).astimezone(UTC)
    if isinstance(value, int | float):
        return timedelta(seconds=value)
    raise ValueError(f"{value!r} is not a time")
