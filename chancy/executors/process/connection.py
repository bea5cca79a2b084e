"""The worker's end of the connection to an executor process: frames over a stream socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from chancy.executors.process.protocol import Frame, FrameReader

#: Bytes to read from a connection at a time, so that the loop can serve the others.
_READ = 256 * 1024


class ParentConnection:
    """Reads frames in the loop, and writes without blocking.

    :param received: called with the frames of each read. If it raises, the connection is closed, as
        it is for invalid frames.
    :param ended: called once when the connection was not closed from here; with the error if frames
        were invalid.
    """

    def __init__(
        self,
        end: socket.socket,
        received: Callable[[list[Frame]], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._received = received
        self._ended = ended
        self._reader = FrameReader()
        self._unwritten = bytearray()
        #: Whether the connection is open.
        self.open = True
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._read)

    def send(self, frame: bytes) -> None:
        """Send a frame. It is buffered here until the socket's buffer has room."""
        if not self.open:
            return
        if not self._unwritten:
            frame = frame[self._write(frame) :]
            if not frame or not self.open:
                return
            self._loop.add_writer(self._socket.fileno(), self._writable)
        self._unwritten += frame

    def read_out(self) -> None:
        """Read the remaining data after the executor process has exited, and close."""
        while self.open and self._read():
            pass
        self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._unwritten.clear()

    def _read(self) -> bool:
        """Read once. Returns whether there was data."""
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._end(None)
            return False
        try:
            self._received(self._reader.frames(data))
        except Exception as error:
            self._end(error)
        return True

    def _end(self, error: Exception | None) -> None:
        if self.open:
            self.close()
            self._ended(error)

    def _write(self, data: bytes | bytearray) -> int:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                return self._socket.send(data)
            except (BrokenPipeError, ConnectionResetError):
                # The last frames of the peer are still to be read.
                return len(data)
        return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write(self._unwritten)]
        if not self._unwritten:
            self._loop.remove_writer(self._socket.fileno())
