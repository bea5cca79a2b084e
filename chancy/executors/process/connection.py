"""The parent's end of the line to a child: frames both ways over a stream socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from chancy.executors.process.protocol import Frame, FrameReader

#: Bytes taken from a line at a time, so that the loop gets round to the others.
_READ = 256 * 1024


class ParentConnection:
    """Reads in the loop as frames come, and writes without ever waiting.

    :param received: takes the frames that came together. What it raises ends the line, as garbled
        frames do.
    :param ended: called once, when the line has ended by itself: with the reason if it was garbled.
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
        self._feed = FrameReader()
        self._unwritten = bytearray()
        #: Whether more may come.
        self.open = True
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._readable)

    def tell(self, frame: bytes) -> None:
        """Say something to the child. It is kept here until the child's buffer has room."""
        if not self.open:
            return
        if not self._unwritten:
            frame = frame[self._write(frame) :]
            if not frame or not self.open:
                return
            self._loop.add_writer(self._socket.fileno(), self._writable)
        self._unwritten += frame

    def read_out(self) -> None:
        """Take everything that is there, now that the child has ended and no more will come."""
        while self.open and self._read():
            pass
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._unwritten.clear()

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Whether something was there."""
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
            self._received(self._feed.frames(data))
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
                # Its last words are still to be read.
                return len(data)
        return 0

    def _writable(self) -> None:
        del self._unwritten[: self._write(self._unwritten)]
        if not self._unwritten:
            self._loop.remove_writer(self._socket.fileno())
