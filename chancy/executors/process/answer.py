"""Encoding and decoding of the replies of an executor process."""

from __future__ import annotations

import json

from chancy.attempt.outcome import (
    Cancelled,
    MemoryExceeded,
    Outcome,
    Raised,
    Returned,
    TimedOut,
)
from chancy.errors import BrokerError, LeaseLost
from chancy.executors.items import decode_other, describe
from chancy.executors.process.call import ChildCall, ProcessAttempt
from chancy.executors.process.protocol import (
    MEMORY,
    RAISED,
    RETURNED,
    RETURNED_NONE,
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
        return decode_other(json.loads(body), elapsed_s)
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
        case Raised(failure, elapsed_s, None) if (
            # A MemoryError of a job with a memory limit counts as exceeding the limit.
            call.memory_bytes and failure.is_a("builtins.MemoryError")
        ):
            return packed(MEMORY, call.number, elapsed_s)
        case _:
            body = json.dumps(describe(outcome)).encode()
            return packed(RAISED, call.number, outcome.elapsed_s, body)


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
