"""What the process executor and its children say to each other over a stream socket.

A frame is a kind, a number and two texts as bytes; their lengths stand in front, so anything may
be in them. Nothing is pickled, and arguments and results cross as the JSON text they are stored
as. What a child prints goes elsewhere and cannot disturb it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from chancy.errors import ChancyError

# Child to parent.
READY = b"+"
#: head: JSON text of the result.
RETURNED = b"R"
#: The function returned None.
RETURNED_NONE = b"N"
#: head: JSON of the `Failure`.
RAISED = b"F"
# Parent to child.
#: head: the function's path; body: the arguments as JSON text.
CALL = b"C"

_HEADER = struct.Struct("!cdII")
_KINDS = frozenset({READY, RETURNED, RETURNED_NONE, RAISED, CALL})
#: The longest head or body, in bytes. A length above it is nonsense on the line.
MAX_PART = 1 << 30


class GarbledFrame(ChancyError):
    """What came over the line is not a frame."""


class Frame(NamedTuple):
    """``elapsed_s``: how long the call took, by the child's clock."""

    kind: bytes
    elapsed_s: float = 0.0
    head: bytes = b""
    body: bytes = b""

    def packed(self) -> bytes:
        kind, elapsed_s, head, body = self
        return _HEADER.pack(kind, elapsed_s, len(head), len(body)) + head + body


class Feed:
    """Puts frames together from the pieces in which a stream delivers them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Take a piece in; give the frames that are whole now. Raises `GarbledFrame`."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEADER.size:
            kind, elapsed_s, head_size, body_size = _HEADER.unpack_from(buffer)
            if kind not in _KINDS or head_size > MAX_PART or body_size > MAX_PART:
                raise GarbledFrame(f"not a frame: {bytes(buffer[: _HEADER.size])!r}")
            head_end = _HEADER.size + head_size
            end = head_end + body_size
            if len(buffer) < end:
                return
            frame = Frame(
                kind, elapsed_s, bytes(buffer[_HEADER.size : head_end]), bytes(buffer[head_end:end])
            )
            del buffer[:end]
            yield frame
