"""Encoding and decoding of the replies of an executor process."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

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
from chancy.executors.items import decode_time, encode_time
from chancy.executors.process.attempt import ProcessAttempt
from chancy.executors.process.call import ChildCall
from chancy.executors.process.protocol import (
    CANCELLED,
    MEMORY,
    RAISED,
    RATE_LIMITED,
    RETRY,
    RETURNED,
    RETURNED_NONE,
    SNOOZED,
    STOPPED,
    TIMED_OUT,
    Frame,
    packed,
)


def outcome_of(frame: Frame, attempt: ProcessAttempt) -> Outcome | None:
    """The outcome of an attempt from a reply frame; None if the frame is not a reply.

    :raises ValueError: the body is invalid; likewise KeyError or TypeError.
    """
    kind, _, elapsed_s, body = frame
    if kind == RETURNED:
        return Returned(body.decode(), elapsed_s)
    if kind == RETURNED_NONE:
        return Returned(None, elapsed_s)
    if kind == RAISED:
        return Raised(Failure.from_json(json.loads(body)), elapsed_s)
    if kind == RETRY:
        data = json.loads(body)
        return Raised(Failure.from_json(data["failure"]), elapsed_s, decode_time(data["at"]))
    if kind in (SNOOZED, RATE_LIMITED):
        until = decode_time(json.loads(body))
        return Snoozed(until, elapsed_s, asked=True, rate_limited=kind == RATE_LIMITED)
    if kind == CANCELLED:
        return Cancelled(body.decode(), elapsed_s)
    if kind == STOPPED:
        return attempt.interruption or Cancelled(body.decode(), elapsed_s)
    if kind == TIMED_OUT:
        return TimedOut(attempt.limits.time_s or 0.0, elapsed_s)
    if kind == MEMORY:
        return MemoryExceeded(attempt.limits.memory_bytes or 0, elapsed_s)
    return None


def answer(call: ChildCall, outcome: Outcome) -> bytes:
    """The reply to a call that was not stopped."""
    match outcome:
        case Returned(None, elapsed_s):
            return packed(RETURNED_NONE, call.number, elapsed_s)
        case Returned(result, elapsed_s):
            return packed(RETURNED, call.number, elapsed_s, (result or "").encode())
        case Raised(failure, elapsed_s, None):
            # A MemoryError of a job with a memory limit counts as exceeding the limit.
            if call.memory_bytes and failure.is_a("builtins.MemoryError"):
                return packed(MEMORY, call.number, elapsed_s)
            return packed(RAISED, call.number, elapsed_s, json.dumps(failure.as_json()).encode())
        case Raised(failure, elapsed_s, datetime() | timedelta() as again):
            data = {"failure": failure.as_json(), "at": encode_time(again)}
            return packed(RETRY, call.number, elapsed_s, json.dumps(data).encode())
        case Snoozed(until, elapsed_s, rate_limited=limited):
            body = json.dumps(encode_time(until)).encode()
            return packed(RATE_LIMITED if limited else SNOOZED, call.number, elapsed_s, body)
        case Cancelled(why, elapsed_s):
            return packed(CANCELLED, call.number, elapsed_s, why.encode())
        case _:
            raise TypeError(f"a call cannot end as {outcome!r}")


def stopped(call: ChildCall, elapsed_s: float, why: str, at_limit: bool) -> bytes:
    """The reply to a call that was stopped."""
    kind = TIMED_OUT if at_limit else STOPPED
    return packed(kind, call.number, elapsed_s, why.encode(errors="replace"))


def encode_error(error: BaseException | None) -> bytes:
    """Encode why a checkpoint was not stored; empty if it was. Decoded by `decode_error`."""
    if error is None:
        return b""
    kind = b"L" if isinstance(error, LeaseLost) else b"B"
    return kind + str(error).encode(errors="replace")


def decode_error(body: bytes) -> BaseException | None:
    """Decode the result of `encode_error`."""
    if not body:
        return None
    text = body[1:].decode(errors="replace")
    return LeaseLost(text) if body.startswith(b"L") else BrokerError(text)
