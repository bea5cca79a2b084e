"""What the process executor and its children say to each other over a stream socket, the line.

A frame is a kind, the number of a call, a number that belongs to the kind, and bytes; their length
stands in front, so anything may be in them. Nothing is pickled, and results cross as the JSON text
they are stored as. What a child prints goes elsewhere and cannot disturb it. The calls themselves
go by a channel of their own: see `hand_over`.
"""

from __future__ import annotations

import struct

from chancy.errors import ChancyError

# Child to parent.
READY = b"+"
#: The initializer failed. bytes: JSON of the `Failure`.
UNREADY = b"-"
# Answers. The number is the seconds that the call took, by the child's clock.
#: bytes: JSON text of the result.
RETURNED = b"R"
#: The function returned None.
RETURNED_NONE = b"N"
#: bytes: JSON of the `Failure`.
RAISED = b"F"
#: It raised, and said when the next attempt is to begin. bytes: JSON of that and the `Failure`.
AGAIN = b"A"
#: It put itself off. bytes: JSON of until when.
SNOOZED = b"Z"
#: It cancelled itself. bytes: why.
CANCELLED = b"C"
#: It was told to stop, and has ended.
STOPPED = b"S"
#: It was stopped at its time limit.
TIMED_OUT = b"T"
#: It was refused memory over its limit.
MEMORY = b"M"
#: The child asks for the body of a call, which was too large for the channel.
WANT = b"W"
#: The number is the fraction. bytes: the text.
PROGRESS = b"P"
#: A step has ended. The number is that of the request. bytes: JSON of the meta to be kept.
KEEP = b"K"
#: The job is completed in a transaction of its own, if that will be committed.
COMPLETING = b"E"
#: The number is the level. bytes: name of the logger, NUL, message. Call 0: of no job.
LOG = b"L"
# Parent to child.
#: bytes: the body of a call.
BODY = b"B"
#: What was to be kept is stored, or not. The number is that of the request. bytes: empty, or the
#: kind of the error and its text.
KEPT = b"H"
#: The job is to stop. bytes: why.
STOP = b"X"

#: Kind, number of the call, number of the kind, length of the bytes.
_HEADER = struct.Struct("!cQdI")
_SIZE = _HEADER.size
_KINDS = frozenset(
    {READY, UNREADY, RETURNED, RETURNED_NONE, RAISED, STOPPED, TIMED_OUT, MEMORY}
    | {AGAIN, SNOOZED, CANCELLED, WANT, PROGRESS, KEEP, COMPLETING, LOG, BODY, KEPT, STOP}
)
#: The most bytes in a frame. A length above it is nonsense on the line.
MAX_BODY = 1 << 30

#: Kind, number of the call, number of the kind, bytes. A bare tuple: there is one for each job,
#: and a named one takes three times as long to make.
Frame = tuple[bytes, int, float, bytes]


class GarbledFrame(ChancyError):
    """What came over the line is not a frame."""


def packed(kind: bytes, call: int = 0, number: float = 0.0, body: bytes = b"") -> bytes:
    """A frame as it goes over the line."""
    return _HEADER.pack(kind, call, number, len(body)) + body


class FrameReader:
    """Puts frames together from the pieces in which a stream delivers them."""

    def __init__(self) -> None:
        self._rest = b""
        self._pieces: list[bytes] = []
        self._missing = 0

    def frames(self, data: bytes) -> list[Frame]:
        """Take a piece in; give the frames that are whole now. Raises `GarbledFrame`."""
        if self._missing > len(data):
            # In the middle of a large frame: joined once, when it is whole.
            self._pieces.append(data)
            self._missing -= len(data)
            return []
        if self._rest or self._pieces:
            data = b"".join((self._rest, *self._pieces, data))
            self._pieces.clear()
        found: list[Frame] = []
        start, end = 0, len(data)
        self._missing = 0
        while end - start >= _SIZE:
            kind, call, number, size = _HEADER.unpack_from(data, start)
            if kind not in _KINDS or size > MAX_BODY:
                raise GarbledFrame(f"not a frame: {data[start : start + _SIZE]!r}")
            after = start + _SIZE + size
            if after > end:
                self._missing = after - end
                break
            found.append((kind, call, number, data[start + _SIZE : after]))
            start = after
        self._rest = data[start:]
        return found
