"""The protocol between the process executor and its processes, over a stream socket.

A frame is a kind, the number of a call, a number whose meaning depends on the kind, and bytes with
their length in front. Nothing is pickled, and results are sent as the JSON strings in which they
are stored. The output of jobs goes elsewhere and cannot corrupt frames. Calls are sent through a
channel of their own: see `prefetch`.
"""

from __future__ import annotations

import struct

from chancy.errors import ChancyError

# Executor process to worker.
READY = b"+"
#: The initializer failed. bytes: JSON of the `Failure`.
UNREADY = b"-"
# Replies. The number is the duration of the call in seconds, by the executor process's clock.
#: bytes: JSON string of the result.
RETURNED = b"R"
#: The function returned None.
RETURNED_NONE = b"N"
#: It ended otherwise, usually with an exception. bytes: JSON of `chancy.executors.items.describe`.
RAISED = b"F"
#: It was asked to stop, and has ended.
STOPPED = b"S"
#: It was stopped at its time limit.
TIMED_OUT = b"T"
#: It exceeded its memory limit.
MEMORY = b"M"
#: Request for the body of a call, which was too large for the channel.
FETCH = b"W"
#: The import of the job's module begins; its time limit has not started.
IMPORTING = b"I"
#: It has ended, and the time limit starts.
IMPORTED = b"J"
#: Progress. The number is the fraction. bytes: the text.
PROGRESS = b"P"
#: Request to store a finished checkpoint. The number identifies the request. bytes: JSON of the
#: meta.
STORE = b"K"
#: The job is about to be completed in a transaction of its own.
COMPLETING = b"E"
#: Log record. The number is the level. bytes: name of the logger, NUL, message. Call 0: no job.
LOG = b"L"
# Worker to executor process.
#: bytes: the body of a call.
BODY = b"B"
#: Reply to `STORE`. The number is that of the request. bytes: empty if it is stored, otherwise the
#: kind of the error and its message.
STORED = b"H"
#: Request to stop the job. The number is 1 at its time limit, else 0. bytes: the reason, if 0.
STOP = b"X"

#: Kind, number of the call, number of the kind, length of the bytes.
_HEADER = struct.Struct("!cQdI")
_SIZE = _HEADER.size
#: All of the kinds above.
_KINDS = frozenset(value for value in vars().values() if isinstance(value, bytes))

#: Maximum number of bytes in a frame. A greater length means that the data is not a frame.
MAX_BODY = 1 << 30

#: Kind, number of the call, number of the kind, bytes. A plain tuple, since there is one for each
#: job: creating a named tuple takes three times as long.
Frame = tuple[bytes, int, float, bytes]


class GarbledFrame(ChancyError):
    """Received data that is not a frame."""


def packed(kind: bytes, call: int = 0, number: float = 0.0, body: bytes = b"") -> bytes:
    """Encode a frame."""
    return _HEADER.pack(kind, call, number, len(body)) + body


class FrameReader:
    """Assembles frames from the chunks of a stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._chunks: list[bytes] = []
        self._missing = 0

    def frames(self, data: bytes) -> list[Frame]:
        """Add a chunk; returns the frames that are complete now.

        :raises GarbledFrame: the data is not a frame.
        """
        if self._missing > len(data):
            # Part of a large frame: the chunks are joined once, when it is complete.
            self._chunks.append(data)
            self._missing -= len(data)
            return []
        if self._rest or self._chunks:
            data = b"".join((self._rest, *self._chunks, data))
            self._chunks.clear()
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
