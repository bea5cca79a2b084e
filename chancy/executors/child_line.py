"""The child's end of the line to its parent."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator

from chancy.executors.frames import BODY, Feed, Frame
from chancy.executors.guard import Guard


class ChildLine:
    """Says frames, whole and one after the other, from any thread; hears those of the parent.

    A copy of the process that a job has made by forking has no line: what it says is dropped.

    :param guard: puts off what would interrupt the job in the middle of a frame.
    """

    def __init__(self, end: socket.socket, guard: Guard) -> None:
        self._socket = end
        self._guard = guard
        self._lock = threading.Lock()
        self._speaker = 0
        self._feed = Feed()
        self._asking = False
        #: Whether this process is a copy.
        self.cut = False
        os.register_at_fork(after_in_child=self._cut)

    def say(self, frame: bytes) -> bool:
        """Say something; False if it cannot be said: in a copy, or by a signal handler or
        destructor which has broken in upon a frame of the same thread."""
        thread = threading.get_ident()
        if self.cut or self._speaker == thread:
            return False
        self._guard.hold()
        try:
            with self._lock:
                self._speaker = thread
                try:
                    self._socket.sendall(frame)
                finally:
                    self._speaker = 0
        except OSError:
            # Closed by the job or by the parent's end; without a line there is nothing to do.
            os._exit(1)
        finally:
            self._guard.let_go()
        return True

    def heard(self) -> Iterator[Frame]:
        """What the parent has said by now."""
        if self.cut or self._asking:
            return
        try:
            while data := self._socket.recv(65536, socket.MSG_DONTWAIT):
                yield from self._feed.frames(data)
        except BlockingIOError:
            return

    def ask(self, question: bytes, number: int) -> Iterator[Frame]:
        """Ask for the body of a call: gives what the parent says until that is there."""
        self._asking = True
        try:
            self.say(question)
            while data := self._socket.recv(1 << 20):
                for frame in self._feed.frames(data):
                    yield frame
                    if frame[0] == BODY and frame[1] == number:
                        return
            os._exit(1)
        finally:
            self._asking = False

    def wait_for_end(self) -> None:
        """Return when the parent has closed its end."""
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)  # a hang-up is reported without being asked for
        poll.poll()

    def _cut(self) -> None:
        self.cut = True
        self._socket.close()
