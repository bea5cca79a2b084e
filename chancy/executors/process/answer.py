"""How attempts end, as a child answers it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from chancy.attempt.failure import Failure
from chancy.attempt.outcome import (
    Cancelled,
    MemoryExceeded,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    TimedOut,
)
from chancy.errors import BrokerError, LeaseLost
from chancy.executors.process.attempt import ProcessAttempt
from chancy.executors.process.call import ChildCall
from chancy.executors.process.protocol import (
    AGAIN,
    CANCELLED,
    MEMORY,
    RAISED,
    RETURNED,
    RETURNED_NONE,
    SNOOZED,
    STOPPED,
    TIMED_OUT,
    Frame,
    packed,
)


def outcome_of(frame: Frame, attempt: ProcessAttempt) -> Outcome | None:
    """The outcome that a frame gives an attempt; None if it is no answer.

    Raises KeyError, TypeError or ValueError for what no child of ours says.
    """
    kind, _, elapsed_s, body = frame
    if kind == RETURNED:
        return Returned(body.decode(), elapsed_s)
    if kind == RETURNED_NONE:
        return Returned(None, elapsed_s)
    if kind == RAISED:
        return Raised(Failure.from_json(json.loads(body)), elapsed_s)
    if kind == AGAIN:
        said = json.loads(body)
        return Raised(Failure.from_json(said["failure"]), elapsed_s, _moment(said["at"]))
    if kind == SNOOZED:
        return Snoozed(_moment(json.loads(body)), elapsed_s, asked=True)
    if kind == CANCELLED:
        return Cancelled(body.decode(), elapsed_s)
    if kind == STOPPED:
        return attempt.given or Cancelled(body.decode(), elapsed_s)
    if kind == TIMED_OUT:
        return TimedOut(attempt.limits.time_s or 0.0, elapsed_s)
    if kind == MEMORY:
        return MemoryExceeded(attempt.limits.memory_bytes or 0, elapsed_s)
    return None


def answer(call: ChildCall, outcome: Outcome) -> bytes:
    """The frame that answers a call which has ended by itself."""
    match outcome:
        case Returned(None, elapsed_s):
            return packed(RETURNED_NONE, call.number, elapsed_s)
        case Returned(result, elapsed_s):
            return packed(RETURNED, call.number, elapsed_s, (result or "").encode())
        case Raised(failure, elapsed_s, None):
            # Refused memory is a matter of its limit, if it has one.
            if call.memory_bytes and failure.is_a("builtins.MemoryError"):
                return packed(MEMORY, call.number, elapsed_s)
            return packed(RAISED, call.number, elapsed_s, json.dumps(failure.as_json()).encode())
        case Raised(failure, elapsed_s, datetime() | timedelta() as again):
            said = {"failure": failure.as_json(), "at": _number(again)}
            return packed(AGAIN, call.number, elapsed_s, json.dumps(said).encode())
        case Snoozed(until, elapsed_s):
            return packed(SNOOZED, call.number, elapsed_s, json.dumps(_number(until)).encode())
        case Cancelled(why, elapsed_s):
            return packed(CANCELLED, call.number, elapsed_s, why.encode())
        case _:
            raise TypeError(f"a call cannot end as {outcome!r}")


def stopped(call: ChildCall, elapsed_s: float, why: str, at_limit: bool) -> bytes:
    """The frame that answers a call which was stopped."""
    kind = TIMED_OUT if at_limit else STOPPED
    return packed(kind, call.number, elapsed_s, why.encode(errors="replace"))


def unkept(error: BaseException | None) -> bytes:
    """Why something was not stored, for `error_of`; empty if it was."""
    if error is None:
        return b""
    kind = b"L" if isinstance(error, LeaseLost) else b"B"
    return kind + str(error).encode(errors="replace")


def error_of(body: bytes) -> BaseException | None:
    """The error that `unkept` wrote down."""
    if not body:
        return None
    text = body[1:].decode(errors="replace")
    return LeaseLost(text) if body.startswith(b"L") else BrokerError(text)


def _number(moment: datetime | timedelta) -> float | str:
    """Seconds of a delay, or the text of a moment."""
    return moment.total_seconds() if isinstance(moment, timedelta) else moment.isoformat()


def _moment(number: object) -> datetime | timedelta:
    if isinstance(number, str):
        return datetime.fromisoformat(number).astimezone(UTC)
    if isinstance(number, int | float):
        return timedelta(seconds=number)
    raise ValueError(f"{number!r} is no moment")
