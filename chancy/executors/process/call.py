"""Calls as they cross to a child: what it must know of a claim, and no more.

Arguments and meta cross as the JSON text they are stored as. What is short goes whole; of what is
long only the head, and the child asks for the body on its line when it comes to it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.job.limits import Limits

#: Bytes of the longest call that goes whole. A few such fill the buffer of a socket (200 KB).
MAX_WHOLE = 32 * 1024
#: Bytes to be read for any call.
MAX_CALL = 64 * 1024

#: Number; time limit in seconds and memory limit in bytes, 0 for none; attempt, most attempts and
#: crashes, as odd as a row may have them; id; lease; whether the body follows here; lengths of
#: function, queue and meta.
_HEAD = struct.Struct("!QdQiii16s16s?HHI")
HEAD_SIZE = _HEAD.size
_NUMBER = struct.Struct("!Q")


class PackedCall(NamedTuple):
    """A call on its way: what goes to the child at once, and what when it asks."""

    message: bytes
    body: bytes | None


def pack(number: int, claim: Claim, limits: Limits) -> PackedCall:
    """Pack a call. Raises UnicodeEncodeError for arguments that are not text."""
    function, queue, names = _names(claim.func, claim.queue)
    meta = claim.meta.encode() if claim.meta else b""
    body = meta + claim.arguments.encode() if claim.arguments else meta
    whole = len(names) + len(body) <= MAX_WHOLE
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
        function,
        queue,
        len(meta),
    )
    if whole:
        return PackedCall(head + names + body, None)
    return PackedCall(head + names, body)


@lru_cache(maxsize=1_000)
def _names(function: str, queue: str) -> tuple[int, int, bytes]:
    function_bytes, queue_bytes = function.encode(), queue.encode()
    return len(function_bytes), len(queue_bytes), function_bytes + queue_bytes


def number_of(message: bytes) -> int:
    """The number of a packed call, from its head."""
    number: int = _NUMBER.unpack_from(message)[0]
    return number


class ChildCall:
    """A call as a child has it. What few jobs ask for is decoded when they do."""

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
        """Add the body, if it did not come with the head."""
        self._body = body
        self.whole = True

    @property
    def arguments(self) -> str:
        """JSON text; empty for none."""
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
