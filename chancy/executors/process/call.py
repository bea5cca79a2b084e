"""Calls to an executor process: the part of a claim that it needs, encoded, and the attempt.

Arguments and meta are sent as the JSON strings in which they are stored. A short call is sent
whole. Of a long call only the head is sent, and the executor process fetches the body through its
connection when it starts the call.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.job.limits import Limits

if TYPE_CHECKING:
    import asyncio

#: Maximum size in bytes of a call that is sent whole. A few such calls fill the buffer of a socket
#: (200 KB).
MAX_WHOLE = 32 * 1024
#: Bytes to read for any call.
MAX_CALL = 64 * 1024

#: Number; time limit in seconds and memory limit in bytes, 0 for none; attempt, maximum attempts
#: and crashes, unchecked from the row; id; lease; whether the body is included; lengths of
#: function, queue and meta.
_HEAD = struct.Struct("!QdQiii16s16s?HHI")
HEAD_SIZE = _HEAD.size
_NUMBER = struct.Struct("!Q")
#: Executor processes compare the numbers of their calls, which several executors may give them.
_numbers = itertools.count(1)


def pack(number: int, claim: Claim, limits: Limits) -> tuple[bytes, bytes | None]:
    """Encode a call: the message, and the body if it is sent only on request.

    :raises UnicodeEncodeError: the arguments are not valid Unicode.
    """
    function, queue = claim.func.encode(), claim.queue.encode()
    meta = claim.meta.encode() if claim.meta else b""
    body = meta + claim.arguments.encode() if claim.arguments else meta
    whole = len(function) + len(queue) + len(body) <= MAX_WHOLE
    head = _HEAD.pack(
        number,
        limits.time_s or 0.0,
        limits.memory_bytes or 0,
        claim.attempt,
        claim.max_attempts,
        claim.crashes,
        claim.id.bytes,
        claim.lease.bytes,
        whole,
        len(function),
        len(queue),
        len(meta),
    )
    if whole:
        return head + function + queue + body, None
    return head + function + queue, body


def number_of(message: bytes) -> int:
    """The number of an encoded call, from its head."""
    number: int = _NUMBER.unpack_from(message)[0]
    return number


class ChildCall:
    """A call in an executor process. Rarely used fields are decoded on demand."""

    __slots__ = (
        "_body",
        "_id",
        "_lease",
        "_meta",
        "_queue",
        "attempt",
        "crashes",
        "func",
        "max_attempts",
        "memory_bytes",
        "number",
        "time_s",
        "whole",
    )

    def __init__(self, message: bytes) -> None:
        (
            self.number,
            self.time_s,
            self.memory_bytes,
            self.attempt,
            self.max_attempts,
            self.crashes,
            self._id,
            self._lease,
            self.whole,
            function,
            queue,
            self._meta,
        ) = _HEAD.unpack_from(message)
        end = HEAD_SIZE + function
        self.func = message[HEAD_SIZE:end].decode()
        self._queue = message[end : end + queue]
        self._body = message[end + queue :]

    def complete(self, body: bytes) -> None:
        """Add the body, if it was not sent with the head."""
        self._body = body
        self.whole = True

    @property
    def arguments(self) -> str:
        """JSON string; empty for none."""
        return self._body[self._meta :].decode()

    @property
    def id(self) -> UUID:
        return UUID(bytes=self._id)

    @property
    def lease(self) -> UUID:
        return UUID(bytes=self._lease)

    @property
    def queue(self) -> str:
        return self._queue.decode()

    @property
    def meta(self) -> str | None:
        return self._body[: self._meta].decode() or None


class AttemptHolder(Protocol):
    """The executor process that holds an attempt."""

    def interrupt(self, attempt: ProcessAttempt, outcome: Outcome, now: float) -> None: ...


class ProcessAttempt:
    """An attempt that waits for an executor process or is held by one.

    ``child``: the executor process that holds it.
    ``started_at``: when it became the next call of its executor process, or when the import of its
    module ended, by the loop's clock.
    ``import_until``: when that import is given up; None while there is none.
    ``interruption``: the outcome that it was interrupted with; it may still end by itself.
    ``kill_at``: when its executor process is killed unless it has ended, by the loop's clock.
    """

    __slots__ = (
        "body",
        "child",
        "claim",
        "future",
        "import_until",
        "interruption",
        "kill_at",
        "late",
        "limits",
        "message",
        "number",
        "started_at",
    )

    def __init__(self, claim: Claim, limits: Limits, future: asyncio.Future[Outcome]) -> None:
        self.number = next(_numbers)
        self.message, self.body = pack(self.number, claim, limits)
        self.claim = claim
        self.limits = limits
        self.future = future
        self.child: AttemptHolder | None = None
        self.started_at = 0.0
        self.import_until: float | None = None
        self.interruption: Outcome | None = None
        self.kill_at: float | None = None
        #: Whether it was told to stop at its time limit.
        self.late = False

    def finish(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)
